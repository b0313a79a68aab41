/* tests/cli/test_cli_gguf.c -- the `verbatim` command on a GGUF file: whatever takes a MODEL takes one. Runs the
 * program itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define TINY "golden/gguf/tiny.gguf"
#define INDEXER "golden/gguf/tiny-indexer.gguf"

/* Writes DIR/tiny.gguf: the file FROM without a key, which becomes one of another architecture. */
static void write_without(const char *dir, const char *from, const char *key)
{
    static char bytes[1 << 20];
    FILE *f = fopen(from, "rb");
    assert_non_null(f);
    size_t size = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    assert_true(size < sizeof bytes);
    char *at = memmem(bytes, size, key, strlen(key));
    assert_non_null(at);
    at[strcspn(key, ".") - 1] = '9';
    write_file(dir, "tiny.gguf", bytes, size);
}

/* Checks that `generate` warns once, and that `inspect` says the same among its rows and does not warn. */
static void check_told_once(const char *path, const char *part)
{
    struct said s = RUN("generate", path, "--tokens", "5,6", "-n", "2", "--json");
    const char *told = strstr(s.err, part);
    if (!told || strstr(told + 1, part))
        fail_msg("%s: %s", s.command, s.err);
    forget(&s);
    s = RUN("inspect", path);
    expect_code(&s, 0);
    if (s.err_size || !strstr(s.out, part))
        fail_msg("%s: %s%s", s.command, s.out, s.err);
    forget(&s);
}

TEST(a_gguf_file_is_a_model)
{
    json_t *j = JSON("verify", TINY, "--prompt", "the abc", "-n", "8");
    assert_true(json_is_true(json_object_get(j, "equal")));
    json_decref(j);
    j = JSON("inspect", TINY, "--check");
    assert_string_equal(json_string_value(json_object_get(j, "architecture")), "DeepseekV3ForCausalLM");
    assert_int_equal(json_integer_value(json_object_get(j, "mtp_modules")), 1);
    json_decref(j);
    j = JSON("tokenize", TINY, "--bos", "the abc");
    char *ids = json_dumps(j, JSON_COMPACT);
    assert_string_equal(ids, "[0,11,8,2,3,4]");
    free(ids);
    json_decref(j);
}

static void expect_reference(const char *model)
{
    char dir[64], a[128];
    make_dir(dir);
    snprintf(a, sizeof a, "%s/reference.safetensors", dir);
    struct said s = RUN("dump", model, "--tokens", "5,6,7,11,2,13", "--reference", "-o", a);
    expect_code(&s, 0);
    forget(&s);
    s = RUN("diff", a, model);
    expect_code(&s, 0);
    forget(&s);
    remove_dir(dir);
}

/* The reference, which shares no arithmetic with the engine, reads the same file. */
TEST(the_reference_agrees_on_a_gguf_file)
{
    expect_reference(TINY);
    expect_reference(INDEXER); /* more tokens than index_topk */
}

/* glm-dsa, with a shared layer and fused experts. */
TEST(a_gguf_file_may_have_an_indexer)
{
    json_t *j = JSON("verify", INDEXER, "--prompt", "the abc the abc", "-n", "8");
    assert_true(json_is_true(json_object_get(j, "equal")));
    json_decref(j);
    j = JSON("inspect", INDEXER, "--check");
    assert_string_equal(json_string_value(json_object_get(j, "architecture")), "GlmMoeDsaForCausalLM");
    assert_string_equal(json_string_value(json_object_get(json_object_get(j, "config"), "indexers")), "FS");
    json_decref(j);
}

TEST(a_file_without_groups_is_told_once)
{
    char dir[64], path[128];
    make_dir(dir);
    write_without(dir, TINY, "deepseek2.expert_group_count");
    snprintf(path, sizeof path, "%s/tiny.gguf", dir);
    check_told_once(path, " has no expert_group_count: experts are chosen among all;");
    struct said s = RUN("inspect", TINY);
    if (strstr(s.out, "expert_group_count") || !strstr(s.out, "\ncopied "))
        fail_msg("%s: %s%s", s.command, s.out, s.err);
    forget(&s);
    remove_dir(dir);
}

TEST(a_file_that_does_not_scale_queries_is_told_once)
{
    static const char part[] = " has no attention.temperature_scale: queries are not scaled;";
    char dir[64], path[128], whole[128];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/tiny.gguf", dir);
    snprintf(whole, sizeof whole, "%s/whole.gguf", dir);
    struct said s = RUN("quantize", "golden/tiny/mistral4", "-o", whole, "--type", "bf16");
    expect_code(&s, 0);
    forget(&s);
    write_without(dir, whole, "mistral4.attention.temperature_scale");
    check_told_once(path, part);
    s = RUN("inspect", whole);
    if (strstr(s.out, part))
        fail_msg("%s: %s", s.command, s.out);
    forget(&s);
    remove_dir(dir);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gguf_file_is_a_model),
        cmocka_unit_test(the_reference_agrees_on_a_gguf_file),
        cmocka_unit_test(a_gguf_file_may_have_an_indexer),
        cmocka_unit_test(a_file_without_groups_is_told_once),
        cmocka_unit_test(a_file_that_does_not_scale_queries_is_told_once),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
