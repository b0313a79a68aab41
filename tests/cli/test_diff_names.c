/* tests/cli/test_diff_names.c -- `verbatim diff --names FILE`: a file maps the names of an engine. Runs the program
 * itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

static char file[96]; /* the path of the file of names */

static void write_names(const char *text)
{
    snprintf(file, sizeof file, "%s/names.txt", dir);
    write_text(dir, "names.txt", text);
}

/* Names as an engine with its own modules has them: its layers count from 1, and its MTP modules from 0. */
static int as_another_engine(char name[256], const char **dtype)
{
    int layer, expert, n = 0;
    char rest[200] = "";
    (void)dtype;
    if (sscanf(name, "model.layers.%d.mlp.experts.%d.output%n", &layer, &expert, &n) == 2 && n && layer < 3)
        snprintf(name, 256, "blocks[%d].ffn.expert_%d.out", layer + 1, expert);
    else if (sscanf(name, "model.layers.%d.self_attn.o_proj.%199s", &layer, rest) == 2 && layer < 3)
        snprintf(name, 256, "blocks[%d].mla.wo/%s", layer + 1, rest);
    else if (sscanf(name, "model.layers.%d.%199s", &layer, rest) == 2 && layer == 3)
        snprintf(name, 256, "mtp.%d.%s", layer - 3, rest);
    return 1;
}

TEST(a_file_maps_the_names_of_an_engine)
{
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    copy_dump(a, b, 0);
    rewrite(b, as_another_engine);
    expect_failure(RUN("diff", b, a, "--names", "nothing"), 2,
                   "unknown system nothing in --names; known are hf, llama.cpp, megatron, sglang, vllm, and there is "
                   "no such file");
    write_names("# layers from 1\n"
                "blocks[{n}].ffn.expert_{e}.out = model.layers.{n-1}.mlp.experts.{e}.output\n"
                "blocks[*].mla.*/input = -\n"
                "blocks[7].mla.* = -\n"
                "blocks[{n}].*wo/output = model.layers.{n-1}.self_attn.o_proj.output\r\n"
                "mtp.{k}.self_attn.o_proj.output = model.layers.{k+3}.self_attn.o_proj.output\n"
                "mtp.{k}.enorm.output = model.layers.{k+3}.enorm.output\n"
                "mtp.* = -\n");
    json_t *j = DIFF(0, b, a, "--names", file);
    size_t i, experts = 0;
    json_t *t;
    expect_verdict("names of a file", j, "identical");
    assert_int_equal(json_array_size(json_object_get(j, "only_in_a")), 0);
    tap(j, "model.layers.2.self_attn.o_proj.output");
    tap(j, "model.layers.3.enorm.output");
    json_array_foreach(json_object_get(j, "taps"), i, t)
        experts += strstr(string(t, "name"), ".mlp.experts.") != NULL;
    assert_true(experts >= 8);
    assert_non_null(strstr(json_string_value(json_array_get(json_object_get(j, "notes"), 0)),
                           "names.txt: line 4 matches no tensor"));
    json_decref(j);
}

static int without_layer(char name[256], const char **dtype)
{
    (void)dtype;
    char *end = strstr(name, ".self_attn.q_b_proj.output");
    if (end)
        strcpy(end, ".attention.q_up");
    return 1;
}

TEST(names_that_no_line_matches_are_those_of_the_system)
{
    DUMP(a, TINY "v3", "--tokens", TOKENS, "--names", "megatron");
    copy_dump(a, b, 0);
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    write_names("system = megatron\n");
    json_t *j = DIFF(0, b, a, "--names", file);
    size_t all = json_array_size(json_object_get(j, "taps"));
    assert_true(all > 40);
    json_decref(j);
    copy_dump(a, b, 1); /* a manifest whose names are another engine's */
    rewrite(b, without_layer);
    replace_in(dir, "b.jsonl",
               "model.layers.1.self_attn.q_b_proj.output\",\"name\":\"model.layers.1.self_attn.q_b_proj.output",
               "model.layers.1.attention.q_up\",\"name\":\"model.layers.1.attention.q_up");
    write_names("model.layers.{l}.attention.q_up = model.layers.{l}.self_attn.q_b_proj.output\n");
    j = DIFF(0, b, a, "--names", file);
    assert_int_equal(integer(tap(j, "model.layers.1.self_attn.q_b_proj.output"), "rows"), 10);
    json_decref(j);
}

TEST(a_line_that_is_wrong_is_named)
{
    static const struct { const char *text, *fault; } wrong[] = {
        {"a\n", "line 1: wanted THEIRS = OURS"},
        {"# x\n\na=b\n", "line 3: wanted THEIRS = OURS"},
        {" = lm_head.output\n", "line 1: "},
        {"a = lm_head\n", "line 1: the right side is no name of Verbatim"},
        {"a.{l} = model.layers.{l}.nothing\n", "line 1: the right side is no name of Verbatim"},
        {"a.{l} = model.layers.{m}.output\n", "line 1: the right side has a word in braces that the left side lacks"},
        {"a.{l}.{l} = model.layers.{l}.output\n", "line 1: the same word is in braces twice"},
        {"a.{l+1} = model.layers.{l}.output\n", "line 1: braces are around a word"},
        {"a.{ = lm_head.output\n", "line 1: braces are around a word"},
        {"a.{a}{b}{c}{d}{e} = lm_head.output\n", "line 1: more than 4 words are in braces"},
        {"system = torch\n", "line 1: this system is unknown"},
        {"a = lm_head.output + nothing\n", "line 1: the right side is no name of Verbatim"},
        {"# nothing\n", "it has no names"},
        {"", "it has no names"},
    };
    char *longer = malloc(2000);
    assert_non_null(longer);
    DUMP(a, TINY "v3", "--tokens", "5,6", "--taps", "lm_head.output");
    for (size_t i = 0; i < COUNT(wrong); i++) {
        write_names(wrong[i].text);
        expect_failure(RUN("diff", a, a, "--names", file), 1, wrong[i].fault);
    }
    memset(longer, 'x', 1000);
    strcpy(longer + 1000, " = lm_head.output\n");
    write_names(longer);
    expect_failure(RUN("diff", a, a, "--names", file), 1, "line 1: a name is longer than 300 letters");
    write_file(dir, "names.txt", "a\0b", 3);
    expect_failure(RUN("diff", a, a, "--names", file), 1, "it contains a zero byte");
    expect_failure(RUN("diff", a, a, "--names", dir), 1, dir);
    expect_failure(RUN("dump", TINY "v3", "--tokens", "5", "-o", b, "--names", file), 2, "unknown system");
    free(longer);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(a_file_maps_the_names_of_an_engine),
        IN_DIR(names_that_no_line_matches_are_those_of_the_system),
        IN_DIR(a_line_that_is_wrong_is_named),
    };
    find_verbatim(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]); /* one test of them */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
