/* tests/engine/test_template.c -- chat templates. Truth: what Jinja2 makes of golden/chat (vectors.jsonl), and, where
 * they are, the published templates with their renderings in ../shared/assets. Then what is refused by name, and that
 * hostile templates end in a sentence. Runs in the repository's root. */
#include "engine/template/template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/text/tokenizer.h"
#include "tests/support/files.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define PUBLISHED "../shared/assets/chat-templates"

static char *read_text(const char *dir, const char *name, size_t *size)
{
    char path[512], *text;
    vb_error err;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (vb_read_file(NULL, path, &text, size, &err))
        fail_msg("%s", err.message);
    return text;
}

/* The text, or NULL with the sentence in err. */
static char *rendered(const char *source, size_t size, const char *name, const json_t *variables, size_t *n,
                      vb_error *err)
{
    struct vb_template *t;
    char *text = NULL;
    *err = (vb_error){0};
    if (!template_parse(&t, source, size, name, NULL, err))
        template_render(t, variables, &text, n, err);
    template_close(t);
    if (!text && (!err->code || !*err->message || strchr(err->message, '\n')))
        fail_msg("%s: not one sentence: %d \"%s\"", name, err->code, err->message);
    return text;
}

static void check_rendering(const char *source, size_t size, const char *name, const json_t *variables,
                            const json_t *expected)
{
    vb_error err;
    size_t n = 0;
    char *text = rendered(source, size, name, variables, &n, &err);
    const char *wanted = json_string_value(expected);
    if (!wanted && text)
        fail_msg("%s: \"%s\"; Jinja2 refuses it", name, text);
    if (wanted && !text)
        fail_msg("%s; Jinja2 makes \"%s\" of it: %s", err.message, wanted, source);
    if (wanted && (n != json_string_length(expected) || memcmp(text, wanted, n) || text[n]))
        fail_msg("%s:\n%s\nwanted:\n%s\nsource: %s", name, text, wanted, source);
    vb_free(NULL, text);
}

static json_t *next_line(FILE *f)
{
    static char *line;
    static size_t room;
    json_error_t why;
    if (getline(&line, &room, f) <= 0) {
        free(line);
        line = NULL;
        room = 0;
        return NULL;
    }
    json_t *j = json_loads(line, 0, &why);
    if (!j)
        fail_msg("%s", why.text);
    return j;
}

TEST(renderings_are_those_of_jinja2)
{
    FILE *f = fopen("golden/chat/vectors.jsonl", "r");
    size_t count = 0, size;
    json_t *j;
    assert_non_null(f);
    for (; (j = next_line(f)); count++, json_decref(j)) {
        const char *file = json_string_value(json_object_get(j, "template")),
                   *source = json_string_value(json_object_get(j, "source"));
        char *text = file ? read_text("golden/chat", file, &size) : NULL;
        check_rendering(text ? text : source, text ? size : strlen(source), file ? file : "template",
                        json_object_get(j, "variables"), json_object_get(j, "expected"));
        vb_free(NULL, text);
    }
    fclose(f);
    assert_true(count > 150);
}

TEST(published_templates_render_as_published)
{
    FILE *f = fopen(PUBLISHED "/renderings.jsonl", "r");
    size_t count = 0, size;
    json_t *j;
    if (!f)
        skip();
    for (; (j = next_line(f)); count++, json_decref(j)) {
        const char *file = json_string_value(json_object_get(j, "template"));
        char *text = read_text(PUBLISHED, file, &size);
        json_t *v = json_deep_copy(json_object_get(j, "kwargs"));
        static const char *const keys[] = {"messages", "bos_token", "eos_token", "add_generation_prompt"};
        for (size_t i = 0; i < COUNT(keys); i++)
            json_object_set(v, keys[i], json_object_get(j, keys[i]));
        check_rendering(text, size, file, v, json_object_get(j, "expected"));
        json_decref(v);
        vb_free(NULL, text);
    }
    fclose(f);
    print_message("%zu renderings of published templates\n", count);
    assert_true(count > 50);
}

/* The sentence of a template that is refused. */
static void expect_refused(const char *source, size_t size, int code, const char *message)
{
    vb_error err;
    size_t n;
    json_t *none = json_pack("{s:s,s:{s:i}}", "s", "text", "d", "a", 1);
    char *text = rendered(source, size, "t.jinja", none, &n, &err);
    json_decref(none);
    if (text)
        fail_msg("\"%.100s\" gives \"%.100s\", wanted \"%s\"", source, text, message);
    if (err.code != code || !strstr(err.message, message))
        fail_msg("\"%.100s\": %d \"%s\", wanted %d \"%s\"", source, err.code, err.message, code, message);
}

TEST(what_is_not_implemented_is_refused_by_name)
{
    static const char *const cases[][2] = {
        {"\n{% include 'x' %}", "t.jinja: line 2: the tag include is not implemented"},
        {"{% raw %}{% endraw %}", "the tag raw"},
        {"{% set x | trim %}a{% endset %}", "set of several names or with a filter"},
        {"{% set a, b = 1, 2 %}", "set of several names or with a filter"},
        {"{% for a in b recursive %}{% endfor %}", "for ... recursive"},
        {"{{ 'a' | title }}", "the filter title"},
        {"{{ 'a' is divisibleby 3 }}", "the test divisibleby"},
        {"{{ 'a'.format(1) }}", "the method format"},
        {"{{ m(*a) }}", "in a call, *"},
        {"{{ 2 ** 3 }}", "the operator **"},
        {"{{ [1](2) }}", "a call of what is neither a name nor a method"},
        {"{{ strftime_now('%d') }}", "the function strftime_now"},
        {"{{ loop.cycle }}", "loop is undefined"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_refused(cases[i][0], strlen(cases[i][0]), i + 1 < COUNT(cases) ? VB_UNSUPPORTED : VB_BAD_ARGUMENT,
                       cases[i][1]);
    expect_refused("{% for a in [1] %}{{ loop.depth }}{% endfor %}", 46, VB_BAD_ARGUMENT,
                   "loop.depth is not implemented");
    static const char *const sorts[][2] = {
        {"{{ [1] | sort(attribute='a.b') }}", "sort takes one attribute='NAME' only"},
        {"{{ ['\u00e9', 'a'] | sort }}", "sort takes ASCII strings only, unless case_sensitive"},
    };
    for (size_t i = 0; i < COUNT(sorts); i++)
        expect_refused(sorts[i][0], strlen(sorts[i][0]), VB_BAD_ARGUMENT, sorts[i][1]);
    expect_refused("{{ d.items }}", 13, VB_BAD_ARGUMENT, "the method items without a call is not implemented");
}

TEST(what_is_wrong_is_told_with_its_line)
{
    static const char *const cases[][2] = {
        {"\r\n\n{% if s %}\nx", "t.jinja: line 4: wanted elif, found the template's end"},
        {"{{ s", "line 1: a tag without an end"},
        {"{{ s 1 }}", "wanted }}, found 1"},
        {"{{ s is eq or 1 }}", "wanted the argument of the test, found or"},
        {"{{ s }", "a bracket is closed that was not opened"},
        {"{{ 'a }}", "a string without an end"},
        {"{{ '\\ud800' }}", "a character that Unicode does not have"},
        {"{{ '\\u12' }}", "not followed by its digits"},
        {"{{ 99999999999999999999 }}", "out of range"},
        {"{{ $ }}", "a character that no tag has"},
        {"{% break %}", "break outside a loop"},
        {"{% endfor %}", "wanted a tag that fits, found endfor"},
        {"{# x", "a comment without an end"},
        {"{{ \"a\nb\" + \n1 +* }}", "line 3: wanted a value, found *"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_refused(cases[i][0], strlen(cases[i][0]), VB_BAD_CHECKPOINT, cases[i][1]);
    expect_refused("a\xff", 2, VB_BAD_CHECKPOINT, "t.jinja: the template is not UTF-8 at byte 1");
    expect_refused("{\0 {{ x.y }}", 12, VB_BAD_ARGUMENT, "x is undefined");
    expect_refused("{{ raise_exception('a\\n' ~ 'b\\x1b' ~ d) }}", 43, VB_BAD_ARGUMENT,
                   "line 1: the template says: a?b?{'a': 1}");
    expect_refused("{{ 'a' + s.b }}", 15, VB_BAD_ARGUMENT, "b is undefined");
}

/* ---- hostile templates ------------------------------------------------------------------------------------------- */

static char *repeated(const char *before, const char *what, size_t times, const char *after)
{
    size_t n = strlen(what);
    char *text = malloc(strlen(before) + n * times + strlen(after) + 1), *to = text;
    assert_non_null(text);
    to += sprintf(to, "%s", before);
    for (size_t i = 0; i < times; i++, to += n)
        memcpy(to, what, n);
    strcpy(to, after);
    return text;
}

/* Ends in this sentence. What it takes is bounded by what is counted, steps and bytes, which the sentences name; the
 * alarm is for a template that never ends. */
static void expect_bounded(char *source, int code, const char *message)
{
    alarm(600);
    expect_refused(source, strlen(source), code, message);
    alarm(0);
    free(source);
}

/* n.s and m.s: four million characters, the same ones, in two places */
#define LONG "{% set n = namespace(s='x') %}{% set m = namespace(s='x') %}" \
             "{% for i in range(22) %}{% set n.s = n.s + n.s %}{% set m.s = m.s + m.s %}{% endfor %}"

TEST(hostile_templates_end_in_a_sentence)
{
    static const char deep[] = "inside each other", nested[] = "nested more than", steps[] = "more than 20000000 steps",
                      memory[] = "more than 256 MB";
    expect_bounded(repeated("{{ ", "(", 100000, "1"), VB_UNSUPPORTED, deep);
    expect_bounded(repeated("{{ ", "[", 100000, "1"), VB_UNSUPPORTED, deep);
    expect_bounded(repeated("{{ ", "{'a':", 40000, "1"), VB_UNSUPPORTED, deep);
    expect_bounded(repeated("{{ ", "- ", 100000, "1 }}"), VB_UNSUPPORTED, deep);
    expect_bounded(repeated("{{ ", "not ", 60000, "1 }}"), VB_UNSUPPORTED, deep);
    expect_bounded(repeated("{{ ", "1 if 1 else ", 20000, "1 }}"), VB_UNSUPPORTED, deep);
    expect_bounded(repeated("", "{% if s %}", 20000, ""), VB_UNSUPPORTED, deep);
    expect_bounded(repeated("", "{% macro m() %}", 10000, ""), VB_UNSUPPORTED, deep);
    expect_bounded(repeated("{{ 1", " + 1", 60000, " }}"), VB_BAD_ARGUMENT, nested);
    expect_bounded(repeated("{{ s", "[0]", 60000, " }}"), VB_BAD_ARGUMENT, nested);
    expect_bounded(repeated("{{ s", "|string", 30000, " }}"), VB_BAD_ARGUMENT, nested);
    expect_bounded(strdup("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), VB_BAD_ARGUMENT, nested);
    expect_bounded(strdup("{% set n = namespace(l=[]) %}{% set x = n.l.append(n.l) %}{{ n.l }}"), VB_BAD_ARGUMENT,
                   nested);
    expect_bounded(strdup("{% set n = namespace(l=[]) %}{% set x = n.l.append(n.l) %}{{ n.l | tojson }}"),
                   VB_BAD_ARGUMENT, nested);
    expect_bounded(strdup("{% set n = [] %}{% set m = [] %}{% set x = n.append(m) %}{% set x = m.append(n) %}{{ n == m "
                          "}}"),
                   VB_BAD_ARGUMENT, nested);
    expect_bounded(strdup("{% for i in range(1000000000) %}x{% endfor %}"), VB_BAD_ARGUMENT, memory);
    expect_bounded(strdup("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"),
                   VB_BAD_ARGUMENT, memory);
    expect_bounded(strdup("{% set l = [1] %}{% for i in l %}{% set x = l.append(1) %}{% endfor %}"), VB_BAD_ARGUMENT,
                   "more than");
    expect_bounded(strdup("{% set n = namespace(s='0123456789abcdef') %}{% for i in range(99) %}{% set n.s = n.s + n.s "
                          "%}{% endfor %}"),
                   VB_BAD_ARGUMENT, memory);
    expect_bounded(strdup("{% set n = namespace(s='0123456789abcdef') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s "
                          "%}{% endfor %}"),
                   VB_BAD_ARGUMENT, memory);
    expect_bounded(strdup("{% set n = namespace(s='x') %}{% for i in range(22) %}{% set n.s = n.s + n.s %}{% endfor %}"
                          "{% for i in range(999999) %}{{ 'y' in n.s }}{% endfor %}"), VB_BAD_ARGUMENT, steps);
    expect_bounded(strdup("{% set n = namespace(s='x') %}{% for i in range(22) %}{% set n.s = n.s + n.s %}{% endfor %}"
                          "{% for i in range(999999) %}{{ n.s.strip('y') | length }}{% endfor "
                          "%}"), VB_BAD_ARGUMENT, steps);
    expect_bounded(strdup("{% set n = namespace(s='x') %}{% for i in range(22) %}{% set n.s = n.s + n.s %}{% endfor %}"
                          "{{ n.s.rstrip(('y' ~ n.s).replace('yx', 'yz')) | length }}"), VB_BAD_ARGUMENT, steps);
    expect_bounded(strdup(LONG "{% for i in range(99999) %}{{ n.s == m.s }}{% endfor %}"), VB_BAD_ARGUMENT, steps);
    expect_bounded(strdup(LONG "{% for i in range(99999) %}{{ n.s < m.s }}{% endfor %}"), VB_BAD_ARGUMENT, steps);
    expect_bounded(strdup(LONG "{% for i in range(99999) %}{{ n.s in [m.s] }}{% endfor %}"), VB_BAD_ARGUMENT, steps);
    expect_bounded(strdup(LONG "{% for i in range(99999) %}{{ n.s.startswith(m.s) }}{% endfor %}"), VB_BAD_ARGUMENT,
                   steps);
    expect_bounded(strdup(LONG "{% set d = {n.s: 1} %}{% for i in range(99999) %}{{ d[m.s] }}{% endfor %}"),
                   VB_BAD_ARGUMENT, steps);
    expect_bounded(strdup("{% for i in range(1500) %}{% for j in range(999) %}{{ 0.1 + i }}{% endfor %}{% endfor %}"),
                   VB_BAD_ARGUMENT, steps);
    expect_bounded(strdup("{% set n = namespace(s='[],') %}{% for i in range(20) %}{% set n.s = n.s + n.s %}{% endfor "
                          "%}"
                          "{{ ('[' ~ n.s ~ '0]') | from_json }}"),
                   VB_BAD_ARGUMENT, steps);
    expect_bounded(strdup("{% set n = namespace(l=[1]) %}{% for i in range(40) %}{% set n.l = n.l + n.l %}{% endfor "
                          "%}"),
                   VB_BAD_ARGUMENT, "more than");
    expect_bounded(strdup("{{ 9223372036854775807 + 1 }}"), VB_BAD_ARGUMENT, "an integer out of range");
    expect_bounded(strdup("{{ (-9223372036854775807 - 1) // -1 }}"), VB_BAD_ARGUMENT, "an integer out of range");
    expect_bounded(repeated("", "x", 256 * 1024 + 1, ""), VB_UNSUPPORTED, "at most 262144 are taken");
}

TEST(the_largest_steps_and_integers_are_no_trouble)
{
    static const char
        source[] = "{{ range(9223372036854775806, 9223372036854775807, 9) | list }}{{ 'abc'[::9223372036854775807] }}"
                   "{{ 'abc'[::-9223372036854775807] }}{{ "
                   "'abc'[-9223372036854775807:9223372036854775807] }}{{ (-9223372036854775807 - 1) % -1 "
                   "}}";
    json_t *none = json_object(), *wanted = json_string("[9223372036854775806]acabc0");
    check_rendering(source, sizeof source - 1, "t", none, wanted);
    json_decref(none);
    json_decref(wanted);
}

/* ---- a checkpoint's template ------------------------------------------------------------------------------------- */

static char *chat_text(const char *dir, vb_error *err)
{
    struct vb_template *t;
    char *text = NULL;
    size_t size;
    *err = (vb_error){0};
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "Hello");
    json_t *more = json_pack("{s:s}", "extra", "!");
    if (!chat_template_open(&t, dir, NULL, err))
        chat_template_render(t, NULL, messages, 1, more, &text, &size, err);
    template_close(t);
    json_decref(messages);
    json_decref(more);
    return text;
}

static void expect_chat(const char *dir, const char *wanted)
{
    vb_error err;
    char *text = chat_text(dir, &err);
    if (!text || strcmp(text, wanted))
        fail_msg("\"%s\" (%s), wanted \"%s\"", text ? text : "nothing", err.message, wanted);
    vb_free(NULL, text);
}

static void expect_no_chat(const char *dir, int code, const char *message)
{
    vb_error err;
    char *text = chat_text(dir, &err);
    if (text || err.code != code || !strstr(err.message, message))
        fail_msg("%d \"%s\", wanted %d \"%s\"", err.code, text ? text : err.message, code, message);
}

#define WRITE(name, text) write_file(dir, name, text, strlen(text))

TEST(a_checkpoint_keeps_its_template_in_one_of_three_places)
{
    char dir[64];
    make_dir(dir);
    expect_no_chat(dir, VB_IO, "there is no chat template");
    WRITE("tokenizer_config.json", "{\"bos_token\":\"<s>\"}");
    expect_no_chat(dir, VB_IO, "tokenizer_config.json: there is no chat template");
    WRITE("tokenizer_config.json", "{\"chat_template\":7}");
    expect_no_chat(dir, VB_BAD_CHECKPOINT, "neither a string nor a list");
    WRITE("tokenizer_config.json", "{\"chat_template\":\"{{ messages[0].role }}{{ extra }}{{ add_generation_prompt "
                                   "}}{{ tools }}{{ bos_token }}\"}");
    expect_chat(dir, "user!TrueNone");
    WRITE("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"no\"},{\"name\":"
                                   "\"default\",\"template\":\"yes\"}]}");
    expect_chat(dir, "yes");
    WRITE("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"no\"}]}");
    expect_no_chat(dir, VB_BAD_CHECKPOINT, "one named \"default\"");
    WRITE("chat_template.jinja", "{{ messages[0].content }}\n");
    expect_chat(dir, "Hello");
    WRITE("chat_template.jinja", "{% include 'x' %}");
    expect_no_chat(dir, VB_UNSUPPORTED, "chat_template.jinja: line 1: the tag include is not implemented");
    remove_dir(dir);
}

/* The text that the marks of a template frame, each followed by a |; "moved" if some are not known */
static void expect_marks(const char *source, const char *wanted)
{
    struct vb_template *t;
    struct template_marks marks;
    char *text, found[256] = "";
    size_t n;
    vb_error err;
    json_t *variables = json_pack("{s:[s,s,s]}", "all", "a", "bc", "d");
    if (template_parse(&t, source, strlen(source), "t", NULL, &err) ||
        template_render_marked(t, variables, &marks, &text, &n, &err))
        fail_msg("%s: %s", source, err.message);
    for (size_t i = 0; i < marks.count; i++)
        snprintf(found + strlen(found), sizeof found - strlen(found), "%.*s|",
                 (int)(marks.at[i].end - marks.at[i].first), text + marks.at[i].first);
    strcat(found, marks.moved ? "moved" : "");
    assert_string_equal(found, wanted);
    vb_free(NULL, marks.at);
    vb_free(NULL, text);
    template_close(t);
    json_decref(variables);
}

TEST(generation_blocks_are_marked_in_the_text)
{
    expect_marks("x{% for c in all %}<{% generation %}{{ c }}{% endgeneration %}>{% endfor %}", "a|bc|d|");
    expect_marks("{% generation %}{% endgeneration %}{{ all[1] }}", "|");
    expect_marks("{% generation %}{{ all[0] }}{% generation %}x{% endgeneration %}{% endgeneration %}", "x|ax|");
    expect_marks("{% generation %}k{% endgeneration %}{% set v %}{% generation %}x{% endgeneration %}{% endset %}{{ v "
                 "}}",
                 "k|moved");
    expect_marks("{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}-{{ m() }}", "moved");
    expect_marks("{% for i in range(40) %}{% generation %}{{ i % 10 }}{% endgeneration %}{% endfor %}",
                 "0|1|2|3|4|5|6|7|8|9|0|1|2|3|4|5|6|7|8|9|0|1|2|3|4|5|6|7|8|9|0|1|2|3|4|5|6|7|8|9|");
}

TEST(bos_and_eos_are_the_tokenizers)
{
    struct vb_tokenizer *t;
    struct vb_template *chat;
    vb_error err;
    char *text;
    size_t size;
    json_t *messages = json_array();
    assert_int_equal(tokenizer_open(&t, "golden/tokenizer", NULL, &err), 0);
    assert_int_equal(template_parse(&chat, "{{ bos_token }}|{{ eos_token }}", 31, "t", NULL, &err), 0);
    assert_int_equal(chat_template_render(chat, t, messages, 0, NULL, &text, &size, &err), 0);
    assert_string_equal(text, "<|begin|>|<|end|>");
    vb_free(NULL, text);
    template_close(chat);
    tokenizer_close(t);
    json_decref(messages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renderings_are_those_of_jinja2),
        cmocka_unit_test(published_templates_render_as_published),
        cmocka_unit_test(what_is_not_implemented_is_refused_by_name),
        cmocka_unit_test(what_is_wrong_is_told_with_its_line),
        cmocka_unit_test(hostile_templates_end_in_a_sentence),
        cmocka_unit_test(the_largest_steps_and_integers_are_no_trouble),
        cmocka_unit_test(a_checkpoint_keeps_its_template_in_one_of_three_places),
        cmocka_unit_test(generation_blocks_are_marked_in_the_text),
        cmocka_unit_test(bos_and_eos_are_the_tokenizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
