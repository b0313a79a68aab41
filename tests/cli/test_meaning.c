/* tests/cli/test_meaning.c -- reasoning, content and tool calls in the text of a chat answer
 * (tools/serve/meaning.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/support/failing.h"
#include "tests/support/meanings.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))

/* How DeepSeek, Kimi and GLM write one call. */
#define CALLS "<｜tool▁calls▁begin｜>"
#define END_CALLS "<｜tool▁calls▁end｜>"
#define V3(name, json) "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" name "\n```json\n" json "\n```<｜tool▁call▁end｜>"
#define V31(name, json) "<｜tool▁call▁begin｜>" name "<｜tool▁sep｜>" json "<｜tool▁call▁end｜>"
#define KIMI_CALLS "<|tool_calls_section_begin|>"
#define KIMI_END "<|tool_calls_section_end|>"
#define KIMI(name, json) "<|tool_call_begin|>" name "<|tool_call_argument_begin|>" json "<|tool_call_end|>"
#define GLM(name, arguments) "<tool_call>" name arguments "</tool_call>"
#define DSML "｜DSML｜"
#define DSML_CALLS(calls) "<" DSML "function_calls>\n" calls "</" DSML "function_calls>"
#define V32(name, parameters) "<" DSML "invoke name=\"" name "\">\n" parameters "</" DSML "invoke>\n"
#define V32_ARG(key, kind, value) \
    "<" DSML "parameter name=\"" key "\" string=\"" kind "\">" value "</" DSML "parameter>\n"
#define GLM_ARG(key, value) "<arg_key>" key "</arg_key><arg_value>" value "</arg_value>"

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"find\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {\"text\": {\"type\": \"string\"}, \"count\": {\"type\": \"integer\"}, \"any\": {\"type\": "
    "[\"string\", \"null\"]}, \"none\": true}}}}, {\"type\": \"function\", \"function\": {\"name\": \"bare\"}}]";
static json_t *tools;

struct meaning_case {
    enum meaning_calls calls;
    enum meaning_start start;
    const char *text, *wanted;
};

#define MAY MEANING_MAY_THINK
#define IN MEANING_THINKS
#define NO MEANING_ANSWERS

/* What models write. */
static const struct meaning_case recorded[] = {
    /* thinking */
    {MEANING_NO_CALLS, NO, " It is <b>late</b>.\n", "¦C It is <b>late</b>.\n"},
    {MEANING_NO_CALLS, NO, "<think>a</think>b", "¦C<think>a</think>b"},
    {MEANING_NO_CALLS, MAY, "<think>\nOne, two.\n</think>\n\nThree.\n", "¦ROne, two.¦CThree.\n"},
    {MEANING_NO_CALLS, MAY, "\n <think>a\n\nb</think> c", "¦Ra\n\nb¦Cc"},
    {MEANING_NO_CALLS, MAY, " Hello <think> there</think>.", "¦C Hello <think> there</think>."},
    {MEANING_NO_CALLS, MAY, "<think></think>yes", "¦Cyes"},
    {MEANING_NO_CALLS, MAY, "<think>never ends \n", "¦Rnever ends \n"},
    {MEANING_NO_CALLS, MAY, "<think>a</think>b</think>c<think>d", "¦Ra¦Cb</think>c<think>d"},
    {MEANING_NO_CALLS, MAY, "", ""},
    {MEANING_NO_CALLS, MAY, " \n", "¦C \n"},
    {MEANING_NO_CALLS, IN, "\nSo é <中\n</think>\n\n<p>", "¦RSo é <中¦C<p>"},
    {MEANING_NO_CALLS, IN, "<think>again</think>ok", "¦Ragain¦Cok"},
    {MEANING_NO_CALLS, IN, "a <think> b < c </thin </think>d</think", "¦Ra <think> b < c </thin¦Cd</think"},
    {MEANING_NO_CALLS, IN, "</think>", ""},
    /* DeepSeek-V3 and R1 */
    {MEANING_DEEPSEEK_V3, NO, "I look.\n" CALLS V3("find", "{\"text\": \"a\\\"b\", \"count\": 2}") END_CALLS,
     "¦CI look.¦Tfind {\"text\": \"a\\\"b\", \"count\": 2}"},
    {MEANING_DEEPSEEK_V3, MAY,
     "<think>\nwhich?\n</think>\n\n" CALLS V3("find", "{}") "\n" V3("other.tool-2", "{\n  \"a\": [1, {}]\n}") END_CALLS
     "\n",
     "¦Rwhich?¦Tfind {}¦Tother.tool-2 {\n  \"a\": [1, {}]\n}"},
    {MEANING_DEEPSEEK_V3, IN, "no " CALLS V3("find", "{}") END_CALLS "</think>" CALLS V3("find", "{}") END_CALLS,
     "¦Rno " CALLS V3("find", "{}") END_CALLS "¦Tfind {}"},
    {MEANING_DEEPSEEK_V3, NO, CALLS V3("find", "{\"text\": \"```<｜tool▁call▁end｜>\"}") END_CALLS " and more",
     "¦Tfind {\"text\": \"```<｜tool▁call▁end｜>\"}¦Cand more"},
    /* DeepSeek-V3.1 */
    {MEANING_DEEPSEEK_V31, NO, CALLS V31("find", "{\"text\": \"<think>}\"}") V31("bare", " {} \n") END_CALLS,
     "¦Tfind {\"text\": \"<think>}\"}¦Tbare {}"},
    {MEANING_DEEPSEEK_V31, IN, "I call.</think>" CALLS V31("find", "{\"k\": 1.50, \"a\": \"\\u00e9\"}") END_CALLS,
     "¦RI call.¦Tfind {\"k\": 1.50, \"a\": \"\\u00e9\"}"},
    {MEANING_DEEPSEEK_V31, NO, "a" CALLS V31("f", "{}") END_CALLS "b" CALLS V31("g", "{}") END_CALLS "c",
     "¦Ca¦Tf {}¦Cb¦Tg {}¦Cc"},
    {MEANING_DEEPSEEK_V31, NO, CALLS V31("f", "{}"), "¦Tf {}"},
    {MEANING_DEEPSEEK_V31, NO, CALLS V31("f", "{\"quote\": \"\\\\\"}") END_CALLS, "¦Tf {\"quote\": \"\\\\\"}"},
    /* Kimi-K2 */
    {MEANING_KIMI_K2, NO,
     "Let me see. " KIMI_CALLS KIMI("functions.get_weather:0", "{\"city\": \"北京\"}") KIMI("functions.find:1", "{}")
         KIMI_END,
     "¦CLet me see.¦Tget_weather {\"city\": \"北京\"}¦Tfind {}"},
    {MEANING_KIMI_K2, MAY, "<think>I must know.</think>" KIMI_CALLS " " KIMI(" functions.a.b:12 ", "{}") KIMI_END,
     "¦RI must know.¦Ta.b {}"},
    {MEANING_KIMI_K2, MAY, "<think>I must know." KIMI_CALLS KIMI("functions.find:0", "{}") KIMI_END "done",
     "¦RI must know.¦Tfind {}¦Cdone"},
    {MEANING_KIMI_K2, NO, KIMI_CALLS KIMI("find", "{}") KIMI("x:3", "{}") KIMI_END, "¦Tfind {}¦Tx {}"},
    /* DeepSeek-V3.2 */
    {MEANING_DEEPSEEK_V32, IN,
     "Hm.</think>I look.\n\n" DSML_CALLS(V32("find", V32_ARG("text", "true", " a \"<b>\"\n")
                                                         V32_ARG("count", "false", "3")) V32("bare", "")),
     "¦RHm.¦CI look.¦Tfind {\"text\": \" a \\\"<b>\\\"\\n\", \"count\": 3}¦Tbare {}"},
    {MEANING_DEEPSEEK_V32, NO,
     DSML_CALLS(V32("f", V32_ARG("a", "false", " [1, {\"k\": null}] ") V32_ARG("b", "true", "12")
                             V32_ARG("", "true", "") V32_ARG("c", "true", "x\" string=\"false\">1"))) "\n",
     "¦Tf {\"a\": [1, {\"k\": null}], \"b\": \"12\", \"\": \"\", \"c\": \"x\\\" string=\\\"false\\\">1\"}"},
    {MEANING_DEEPSEEK_V32, NO, DSML_CALLS(V32("f", V32_ARG("a", "true", "</think></" DSML "param"))),
     "¦Tf {\"a\": \"</think></" DSML "param\"}"},
    /* GLM */
    {MEANING_GLM, IN, "Hm.\n</think>Yes.\n" GLM("find", GLM_ARG("text", " a <b> \"c\"\n") GLM_ARG("count", "3")),
     "¦RHm.¦CYes.¦Tfind {\"text\": \" a <b> \\\"c\\\"\\n\", \"count\": 3}"},
    {MEANING_GLM, NO,
     "\n<tool_call>find\n<arg_key>text</arg_key>\n<arg_value>12</arg_value>\n<arg_key>count</arg_key>\n<arg_value> 12 "
     "</arg_value>\n</tool_call>\n" GLM("bare", "") "\n",
     "¦Tfind {\"text\": \"12\", \"count\": 12}¦Tbare {}"},
    {MEANING_GLM, NO,
     GLM("find", GLM_ARG("any", "null") GLM_ARG("none", "{\"a\": [1.5, true]}") GLM_ARG("new", "\"q\"")
                     GLM_ARG("x", "12 monkeys")),
     "¦Tfind {\"any\": null, \"none\": {\"a\": [1.5, true]}, \"new\": \"q\", \"x\": \"12 monkeys\"}"},
    {MEANING_GLM, NO, GLM("unknown", GLM_ARG("a", "") GLM_ARG(" b ", "<think></think></arg_valu")),
     "¦Tunknown {\"a\": \"\", \"b\": \"<think></think></arg_valu\"}"},
};

/* What no template writes: it stays content. NULL: all of it, as it is. */
static const struct meaning_case malformed[] = {
    {MEANING_DEEPSEEK_V3, NO, "a " CALLS V3("find", "{\"text\": }") END_CALLS " b\n", NULL},
    {MEANING_DEEPSEEK_V3, NO, CALLS V3("find", "[1]") END_CALLS, NULL},
    {MEANING_DEEPSEEK_V3, NO, CALLS V3("", "{}") END_CALLS, NULL},
    {MEANING_DEEPSEEK_V3, NO, CALLS V3("two words", "{}") END_CALLS, NULL},
    {MEANING_DEEPSEEK_V3, NO, CALLS V31("find", "{}") END_CALLS, NULL},
    {MEANING_DEEPSEEK_V3, NO, CALLS "<｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n{}<｜tool▁call▁end｜>" END_CALLS, NULL},
    {MEANING_DEEPSEEK_V3, NO, CALLS "<｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n```json```<｜tool▁call▁end｜>", NULL},
    {MEANING_DEEPSEEK_V3, NO, CALLS END_CALLS, NULL},
    {MEANING_DEEPSEEK_V3, NO, CALLS " " END_CALLS " \n", NULL},
    {MEANING_DEEPSEEK_V3, NO, V3("find", "{}") END_CALLS, NULL},
    {MEANING_DEEPSEEK_V3, NO, END_CALLS CALLS "x", NULL},
    {MEANING_DEEPSEEK_V31, NO, CALLS "<｜tool▁call▁begin｜>find<｜tool▁call▁end｜>" END_CALLS, NULL},
    {MEANING_DEEPSEEK_V31, NO, CALLS V31("f", "{\"a\": \"\n\"}"), NULL},
    {MEANING_DEEPSEEK_V31, NO, CALLS V31("f", "x{}"), NULL},
    {MEANING_DEEPSEEK_V31, NO, CALLS V31("f", "{\"a\": \"open}") END_CALLS "\nend", NULL},
    {MEANING_DEEPSEEK_V31, NO, CALLS V31("f", "{} {}") END_CALLS, NULL},
    {MEANING_DEEPSEEK_V31, NO, CALLS V31("f", "") END_CALLS, NULL},
    {MEANING_DEEPSEEK_V31, NO, CALLS "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1", NULL},
    {MEANING_DEEPSEEK_V31, NO, CALLS "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁e", NULL},
    {MEANING_DEEPSEEK_V31, NO, CALLS "<｜tool▁call", NULL},
    {MEANING_DEEPSEEK_V31, MAY, CALLS "<｜tool▁call▁begin｜></think>", NULL},
    {MEANING_DEEPSEEK_V31, NO, "x" CALLS V31("f", "{]}") V31("g", "{}") END_CALLS "y",
     "¦Cx" CALLS V31("f", "{]}") "¦Tg {}¦C" END_CALLS "y"},
    {MEANING_DEEPSEEK_V31, NO, CALLS V31("f", "{}") " and " V31("g", "{}") END_CALLS,
     "¦Tf {}¦Cand " V31("g", "{}") END_CALLS},
    {MEANING_DEEPSEEK_V31, NO, CALLS "<｜tool▁call▁begin｜>x" CALLS V31("f", "{}") END_CALLS,
     "¦C" CALLS "<｜tool▁call▁begin｜>x¦Tf {}"},
    {MEANING_DEEPSEEK_V31, NO, CALLS CALLS V31("f", "{}") END_CALLS, "¦C" CALLS "¦Tf {}"},
    {MEANING_KIMI_K2, NO, KIMI_CALLS KIMI("functions.:0", "{}") KIMI_END, NULL},
    {MEANING_KIMI_K2, NO, KIMI_CALLS KIMI(":0", "{}") KIMI_END, NULL},
    {MEANING_KIMI_K2, NO, KIMI_CALLS KIMI("", "{}") KIMI_END, NULL},
    {MEANING_KIMI_K2, NO, KIMI_CALLS "<|tool_call_begin|>f<|tool_call_end|>" KIMI_END, NULL},
    {MEANING_KIMI_K2, IN, "thought " KIMI_CALLS KIMI("f", "no") KIMI_END "</think>ok",
     "¦Rthought " KIMI_CALLS KIMI("f", "no") KIMI_END "¦Cok"},
    {MEANING_KIMI_K2, IN, "thought " KIMI_CALLS "</think>ok", "¦Rthought " KIMI_CALLS "¦Cok"},
    {MEANING_DEEPSEEK_V32, NO, DSML_CALLS(V32("f", V32_ARG("a", "false", "b"))), NULL},
    {MEANING_DEEPSEEK_V32, NO, DSML_CALLS(V32("f", V32_ARG("a", "maybe", "1"))), NULL},
    {MEANING_DEEPSEEK_V32, NO, DSML_CALLS(V32("", "")), NULL},
    {MEANING_DEEPSEEK_V32, NO, DSML_CALLS(V32("f\" x=\"", "")), NULL},
    {MEANING_DEEPSEEK_V32, NO, DSML_CALLS(V32("f", "x")), NULL},
    {MEANING_DEEPSEEK_V32, NO, DSML_CALLS(V32("f", V32_ARG("a", "true", "<" DSML "invoke name=\""))), NULL},
    {MEANING_DEEPSEEK_V32, NO,
     "<" DSML "function_calls>\n<" DSML "invoke name=\"f\">\n<" DSML "parameter name=\"a\" string=\"true\">never ends",
     NULL},
    {MEANING_GLM, NO, "a\n<tool_call></tool_call>", NULL},
    {MEANING_GLM, NO, "<tool_call>f<arg_key>a</arg_key></tool_call>", NULL},
    {MEANING_GLM, NO, "<tool_call>f<arg_key>a</arg_key>x<arg_value>1</arg_value></tool_call>", NULL},
    {MEANING_GLM, NO, "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>x</tool_call>", NULL},
    {MEANING_GLM, NO, "<tool_call>f<arg_value>1</arg_value></tool_call>", NULL},
    {MEANING_GLM, NO, "<tool_call>f g" GLM_ARG("a", "1") "</tool_call>", NULL},
    {MEANING_GLM, NO, "<tool_call>f<arg_key>a</arg_key><arg_value>never ends", NULL},
    {MEANING_GLM, NO, "</tool_call></arg_key><arg_value>", NULL},
    {MEANING_GLM, NO, "<tool_call>f<arg_key>a</arg_key><arg_value>1" GLM("g", ""),
     "¦C<tool_call>f<arg_key>a</arg_key><arg_value>1¦Tg {}"},
    {MEANING_GLM, NO, "<tool_call><tool_call>g</tool_call>", "¦C<tool_call>¦Tg {}"},
    {MEANING_GLM, NO, "<tool_call <tool_call>g</tool_call><", "¦C<tool_call¦Tg {}¦C<"},
};

static struct meaning_options options_of(const struct meaning_case *c)
{
    return (struct meaning_options){.kind = {c->calls, 1}, .start = c->start, .parse_calls = 1, .tools = tools,
                                    .salt = 7};
}

static void check(const struct meaning_options *o, const char *text, size_t size, size_t a, size_t b, size_t step,
                  const char *wanted)
{
    struct meaning_said said = {0};
    int rc = meaning_of(&said, o, text, size, a, b, step);
    writer_bytes(&said.text, "", 1);
    const char *got = said.text.text;
    if (rc || strcmp(got, wanted))
        fail_msg("cut at %zu and %zu, or every %zu: %d\n%s\nis read as\n%s\nwanted\n%s", a, b, step, rc, text, got,
                 wanted);
    writer_close(&said.text);
}

static size_t share = 1; /* test_meaning N: one of N pairs of cuts */

static void check_cuts(const struct meaning_case *c)
{
    size_t size = strlen(c->text);
    struct meaning_options o = options_of(c);
    char all[1024];
    snprintf(all, sizeof all, "¦C%s", c->text);
    const char *wanted = c->wanted ? c->wanted : all;
    for (size_t step = 1; step < 5; step++)
        check(&o, c->text, size, 0, 0, step, wanted);
    for (size_t a = 0; a <= size; a++)
        for (size_t b = a; b <= size; b += share)
            check(&o, c->text, size, a, b, 0, wanted);
}

TEST(recorded_answers_are_read_whole_and_at_every_pair_of_cuts)
{
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++)
        check_cuts(&recorded[i]);
}

TEST(malformed_calls_stay_content)
{
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++)
        check_cuts(&malformed[i]);
}

/* Arguments as jansson judges them, but for numbers that are too large for it and halves of surrogates. */
TEST(arguments_are_json)
{
    static const char *const values[] = {
                                         "0",
                                         "-0",
                                         "01",
                                         "-",
                                         "1.",
                                         ".5",
                                         "1.5",
                                         "1.5e",
                                         "1.5e+",
                                         "1.5E-07",
                                         "-12",
                                         "+1",
                                         "1 2",
                                         "0x1",
                                         "true",
                                         "truth",
                                         "tru",
                                         "null",
                                         "nulll",
                                         "None",
                                         "\"\"",
                                         "\"a",
                                         "\"\\n\"",
                                         "\"\\x\"",
                                         "\"\\u00e9\"",
                                         "\"\\u00g9\"",
                                         "\"\\u00\"",
                                         "\"\t\"",
                                         "'a'",
                                         "[]",
                                         "[1]",
                                         "[1,]",
                                         "[,1]",
                                         "[1 2]",
                                         "[1",
                                         "1]",
                                         "[ 1 , [ ] , { } ]",
                                         "{}",
                                         "{\"b\"}",
                                         "{\"b\":}",
                                         "{\"b\" : [1]}",
                                         "{\"b\":1,}",
                                         "{b:1}",
                                         "{1:1}",
                                         "{,}",
                                         "[}",
                                         "{]",
                                         "{\"b\":1]",
                                         "",
                                         ",",
                                         ":",
                                         "\"\xc3\xa9\""};
    struct meaning_options o = options_of(&(struct meaning_case){.calls = MEANING_DEEPSEEK_V31, .start = NO});
    char deep[2][600] = {"", ""};
    for (size_t n = 0; n < 2; n++) { /* in the arguments, as many as may be open, and one more */
        memset(deep[n], '[', 254 + n);
        memset(deep[n] + 254 + n, ']', 254 + n);
    }
    size_t count = sizeof values / sizeof *values;
    for (size_t i = 0; i < count + 2; i++) {
        char json[700], text[900], wanted[1000];
        snprintf(json, sizeof json, "{\"a\": %s, \"z\": 0}", i < count ? values[i] : deep[i - count]);
        snprintf(text, sizeof text, CALLS "<｜tool▁call▁begin｜>f<｜tool▁sep｜>%s<｜tool▁call▁end｜>" END_CALLS, json);
        json_t *value = json_loads(json, 0, NULL);
        int valid = value && i != count + 1;
        snprintf(wanted, sizeof wanted, valid ? "¦Tf %s" : "¦C%s", valid ? json : text);
        json_decref(value);
        for (size_t step = 1; step < 1000; step += 333)
            check(&o, text, strlen(text), 0, 0, step, wanted);
    }
}

TEST(long_names_are_no_names)
{
    char name[800] = "", text[2000], wanted[2100];
    for (size_t n = 255; n < 800; n = n < 257 ? n + 1 : n + 255) {
        memset(name, 'n', n);
        snprintf(text, sizeof text, CALLS "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>{}<｜tool▁call▁end｜>" END_CALLS, name);
        snprintf(wanted, sizeof wanted, n <= MEANING_NAME ? "¦T%s {}" : "¦C%s", n <= MEANING_NAME ? name : text);
        struct meaning_options o = options_of(&(struct meaning_case){.calls = MEANING_DEEPSEEK_V31, .start = NO});
        for (size_t step = 1; step < 3000; step += 700)
            check(&o, text, strlen(text), 0, 0, step, wanted);
    }
}

TEST(nothing_is_parsed_unless_it_is_asked_for)
{
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        struct meaning_options o = options_of(&recorded[i]);
        char wanted[1024];
        o.parse_calls = 0;
        o.kind.thinks = 0;
        snprintf(wanted, sizeof wanted, "%s%s", *recorded[i].text ? "¦C" : "", recorded[i].text);
        check(&o, recorded[i].text, strlen(recorded[i].text), 0, 0, 1, wanted);
    }
}

TEST(ids_are_those_of_kimi_or_from_the_salt)
{
    static const char kimi[] = KIMI_CALLS KIMI("functions.f:3", "{}") KIMI("functions.g:3", "{}")
        KIMI("functions.g:4", "{}") KIMI("h", "{}") KIMI_END;
    struct meaning_said said = {.has_ids = 1}, again = {.has_ids = 1}, other = {.has_ids = 1};
    struct meaning_options o = options_of(&(struct meaning_case){.calls = MEANING_KIMI_K2, .start = NO});
    assert_int_equal(meaning_of(&said, &o, kimi, sizeof kimi - 1, 0, 0, 1), 0);
    writer_bytes(&said.text, "", 1);
    assert_non_null(strstr(said.text.text, "¦Tfunctions.f:3 f {}¦Tcall_"));
    assert_non_null(strstr(said.text.text, " g {}¦Tfunctions.g:4 g {}¦Tcall_"));
    assert_int_equal(meaning_of(&again, &o, kimi, sizeof kimi - 1, 0, 0, 0), 0);
    assert_int_equal(again.text.size + 1, said.text.size);
    assert_memory_equal(again.text.text, said.text.text, again.text.size);
    o.salt++;
    assert_int_equal(meaning_of(&other, &o, kimi, sizeof kimi - 1, 0, 0, 0), 0);
    assert_int_equal(other.text.size, again.text.size);
    assert_memory_not_equal(other.text.text, again.text.text, again.text.size);
    writer_close(&said.text);
    writer_close(&again.text);
    writer_close(&other.text);
}

TEST(further_calls_are_left_out)
{
    struct meaning_options o = options_of(&(struct meaning_case){.calls = MEANING_DEEPSEEK_V31, .start = NO});
    static const char text[] = "a" CALLS V31("f", "{}") V31("g", "{}") V31("h", "bad") END_CALLS "b";
    o.most_calls = 1;
    for (size_t step = 1; step < 200; step += 40)
        check(&o, text, sizeof text - 1, 0, 0, step, "¦Ca¦Tf {}¦C" V31("h", "bad") END_CALLS "b");
}

/* With a mask, arguments are said while they are written, and say the same. */
TEST(valid_calls_are_said_piece_by_piece)
{
    static const struct meaning_case cases[] = {
        {MEANING_DEEPSEEK_V3, NO,
         CALLS V3("find", "{\"text\": \"a}\\\"b\", \"count\": 2}") "\n" V3("f", "{}") END_CALLS, NULL},
        {MEANING_DEEPSEEK_V31, NO, CALLS V31("find", "{\"text\": \"<｜tool▁call▁end｜>\", \"count\": 2}") END_CALLS,
         NULL},
        {MEANING_KIMI_K2, NO, KIMI_CALLS KIMI("functions.find:0", "{\"a\": [{}, {\"b\": 1}]} \n") KIMI_END, NULL},
        {MEANING_GLM, NO, GLM("find", GLM_ARG("text", "a") GLM_ARG("count", "2") GLM_ARG("any", "[]")), NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct meaning_options o = options_of(&cases[i]);
        size_t size = strlen(cases[i].text);
        struct meaning_said late = {0}, early = {0};
        assert_int_equal(meaning_of(&late, &o, cases[i].text, size, 0, 0, 1), 0);
        o.valid = 1;
        assert_int_equal(meaning_of(&early, &o, cases[i].text, size, 0, 0, 1), 0);
        assert_int_equal(late.pieces, late.number);
        if (early.pieces < 3)
            fail_msg("the arguments of %s come in %d pieces", cases[i].text, early.pieces);
        writer_bytes(&late.text, "", 1);
        for (size_t a = 0; a <= size; a++)
            check(&o, cases[i].text, size, a, a, 0, late.text.text);
        writer_close(&early.text);
        writer_close(&late.text);
    }
    struct meaning_options o = options_of(&(struct meaning_case){.calls = MEANING_DEEPSEEK_V31, .start = NO});
    o.valid = 1;
    static const char cut[] = CALLS "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": \"bc";
    check(&o, cut, sizeof cut - 1, 0, 0, 1, "¦Tf {\"a\": \"bc"); /* max_tokens ended it */
    static const char whole[] = CALLS V31("f", "{}");
    struct meaning_said one = {0}, other = {0};
    assert_int_equal(meaning_of(&one, &o, whole, sizeof whole - 1, 0, 0, 1), 0);
    assert_int_equal(meaning_of(&other, &o, cut, sizeof cut - 1, 0, 0, 1), 0);
    if (one.is_cut || !other.is_cut)
        fail_msg("a whole call counts as %s, a cut one as %s", one.is_cut ? "cut" : "whole",
                 other.is_cut ? "cut" : "whole");
    writer_close(&one.text);
    writer_close(&other.text);
    static const char thought[] = "a" KIMI_CALLS KIMI("f:0", "{]") "b</think>" KIMI_CALLS KIMI("functions.f:0", "{}")
        KIMI_END;
    o = options_of(&(struct meaning_case){.calls = MEANING_KIMI_K2, .start = IN});
    o.valid = 1;
    /* the mask begins behind the reasoning */
    check(&o, thought, sizeof thought - 1, 0, 0, 1, "¦Ra" KIMI_CALLS KIMI("f:0", "{]") "b¦Tf {}");
}

/* ---- formats ---- */

struct meaning_template {
    const char *file;
    enum meaning_calls calls;
    int thinks;
};

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = file ? calloc(1, 1 << 16) : NULL;
    if (file) {
        assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
        fclose(file);
    }
    return text;
}

/* Those of the models themselves, where they are there, and our own in their style. */
TEST(the_format_follows_from_the_template)
{
    static const struct meaning_template files[] = {
        {"golden/tale/chat_template.jinja", MEANING_NO_CALLS, 0},
        {"golden/chat/thinking.jinja", MEANING_GLM, 1},
        {"../shared/assets/chat-templates/deepseek-ai-DeepSeek-V2.jinja", MEANING_NO_CALLS, 0},
        {"../shared/assets/chat-templates/deepseek-api-docs-v3-tokenizer.jinja", MEANING_DEEPSEEK_V3, 1},
        {"../shared/assets/chat-templates/deepseek-ai-DeepSeek-R1.jan2025.jinja", MEANING_DEEPSEEK_V3, 1},
        {"../shared/assets/chat-templates/llama-cpp-deepseek-r1.jinja", MEANING_DEEPSEEK_V3, 1},
        {"../shared/assets/chat-templates/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja", MEANING_DEEPSEEK_V3, 1},
        {"../shared/assets/chat-templates/deepseek-ai-DeepSeek-V3.1.jinja", MEANING_DEEPSEEK_V31, 1},
        {"../shared/assets/chat-templates/deepseek-ai-DeepSeek-V3.2.jinja", MEANING_DEEPSEEK_V32, 1},
        {"../shared/assets/chat-templates/deepseek-ai-DeepSeek-V4.jinja", MEANING_NO_CALLS, 1},
        {"../shared/assets/chat-templates/Kimi-K2-Instruct.jinja", MEANING_KIMI_K2, 0},
        {"../shared/assets/chat-templates/moonshotai-Kimi-K2.jinja", MEANING_KIMI_K2, 0},
        {"../shared/assets/chat-templates/Kimi-K2-Thinking.jinja", MEANING_KIMI_K2, 1},
        {"../shared/assets/chat-templates/GLM-4.7-Flash.jinja", MEANING_GLM, 1},
        {"../shared/assets/chat-templates/GLM-4.6.jinja", MEANING_GLM, 1},
        {"../shared/assets/chat-templates/MiMo-VL.jinja", MEANING_NO_CALLS, 0},
    };
    struct meaning_kind kind;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *text = read_text(files[i].file);
        if (!text) {
            assert_int_equal(strncmp(files[i].file, "../", 3), 0);
            continue;
        }
        meaning_of_template(text, &kind);
        if (kind.calls != files[i].calls || kind.thinks != files[i].thinks)
            fail_msg("%s: %d and %d, wanted %d and %d", files[i].file, kind.calls, kind.thinks, files[i].calls,
                     files[i].thinks);
        free(text);
    }
    meaning_of_template(NULL, &kind);
    assert_true(kind.calls == MEANING_NO_CALLS && !kind.thinks);
}

TEST(the_prompt_shows_how_the_answer_begins)
{
    static const struct {
        const char *prompt;
        enum meaning_start start;
    } prompts[] = {{"<｜Assistant｜><think>", IN}, {"<｜Assistant｜><think>\n", IN},
                   {"<｜Assistant｜><think></think>", NO}, {"<|assistant|></think>", NO}, {"<think>\n</think>\n\n", NO},
                   {"<｜Assistant｜>", MAY}, {"<think>a</think>b<｜Assistant｜>", MAY}, {"", MAY}, {" think>", MAY}};
    struct meaning_kind thinks = {MEANING_GLM, 1}, does_not = {MEANING_GLM, 0};
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        assert_int_equal(meaning_start_of(&thinks, prompts[i].prompt, strlen(prompts[i].prompt)), prompts[i].start);
        assert_int_equal(meaning_start_of(&does_not, prompts[i].prompt, strlen(prompts[i].prompt)), NO);
    }
}

/* ---- missing memory ---- */

static int parse_failing(struct meaning_said *said, const struct meaning_case *c, long n)
{
    struct meaning_options o = options_of(c);
    failing = n;
    int rc = meaning_of(said, &o, c->text, strlen(c->text), 0, 0, 3);
    int all_done = failing >= 0;
    failing = -1;
    if (rc != VB_OK && rc != VB_NO_MEMORY)
        fail_msg("allocation %ld of %s: %d", n, c->text, rc);
    return rc ? rc : all_done ? 0 : -1;
}

TEST(missing_memory_is_an_error_and_nothing_leaks)
{
    long most = 0;
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        int rc = VB_NO_MEMORY;
        for (long n = 0; rc; n++) {
            struct meaning_said said = {0};
            rc = parse_failing(&said, &recorded[i], n);
            if (rc != VB_NO_MEMORY) {
                writer_bytes(&said.text, "", 1);
                assert_string_equal(said.text.text, recorded[i].wanted);
            }
            writer_close(&said.text);
            most = n > most ? n : most;
        }
    }
    assert_true(most > 4);
}

static int make_tools(void **unused)
{
    (void)unused;
    tools = json_loads(tools_text, 0, NULL);
    return tools == NULL;
}

static int drop_tools(void **unused)
{
    (void)unused;
    json_decref(tools);
    return 0;
}

int main(int argc, char **argv)
{
    share = argc > 1 ? (size_t)atoi(argv[1]) : 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_answers_are_read_whole_and_at_every_pair_of_cuts),
        cmocka_unit_test(malformed_calls_stay_content),
        cmocka_unit_test(arguments_are_json),
        cmocka_unit_test(long_names_are_no_names),
        cmocka_unit_test(nothing_is_parsed_unless_it_is_asked_for),
        cmocka_unit_test(ids_are_those_of_kimi_or_from_the_salt),
        cmocka_unit_test(further_calls_are_left_out),
        cmocka_unit_test(valid_calls_are_said_piece_by_piece),
        cmocka_unit_test(the_format_follows_from_the_template),
        cmocka_unit_test(the_prompt_shows_how_the_answer_begins),
        cmocka_unit_test(missing_memory_is_an_error_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, make_tools, drop_tools);
}
