/* tests/cli/test_cli_gguf.c -- the `verbatim` command on a GGUF file: whatever takes a MODEL takes one. Runs the program itself
 * (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define TINY "golden/gguf/tiny.gguf"

/* DIR/tiny.gguf without expert_group_count: the key is one of another architecture. */
static void write_ungrouped(const char *dir)
{
    static const char key[] = "deepseek2.expert_group_count";
    static char bytes[65536];
    FILE *f = fopen(TINY, "rb");
    assert_non_null(f);
    size_t size = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    char *at = memmem(bytes, size, key, sizeof key - 1);
    assert_non_null(at);
    at[8] = '9';
    write_file(dir, "tiny.gguf", bytes, size);
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

/* The reference, which shares no arithmetic with the engine, reads the same file. */
TEST(the_reference_agrees_on_a_gguf_file)
{
    char dir[64], a[128];
    make_dir(dir);
    snprintf(a, sizeof a, "%s/reference.safetensors", dir);
    struct said s = RUN("dump", TINY, "--tokens", "5,6,7,11,2,13", "--reference", "-o", a);
    expect_code(&s, 0);
    forget(&s);
    s = RUN("diff", a, TINY);
    expect_code(&s, 0);
    forget(&s);
    remove_dir(dir);
}

TEST(a_file_without_groups_is_told_once)
{
    static const char part[] = "/tiny.gguf has no expert_group_count: experts are chosen among all;";
    char dir[64], path[128];
    make_dir(dir);
    write_ungrouped(dir);
    snprintf(path, sizeof path, "%s/tiny.gguf", dir);
    struct said s = RUN("generate", path, "--tokens", "5,6", "-n", "2", "--json");
    const char *told = strstr(s.err, part);
    if (!told || strstr(told + 1, part))
        fail_msg("%s: %s", s.command, s.err);
    forget(&s);
    s = RUN("inspect", path);
    expect_code(&s, 0);
    if (s.err_size || !strstr(s.out, "the file has no expert_group_count"))
        fail_msg("%s: %s%s", s.command, s.out, s.err);
    forget(&s);
    s = RUN("inspect", TINY);
    if (strstr(s.out, "expert_group_count") || !strstr(s.out, "\ncopied "))
        fail_msg("%s: %s%s", s.command, s.out, s.err);
    forget(&s);
    remove_dir(dir);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gguf_file_is_a_model),
        cmocka_unit_test(the_reference_agrees_on_a_gguf_file),
        cmocka_unit_test(a_file_without_groups_is_told_once),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
