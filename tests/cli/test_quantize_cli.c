/* tests/cli/test_quantize_cli.c -- `verbatim quantize` as its users run it: what it says, and that OUT is there whole
 * or not at all. Runs the program itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define V3 "golden/tiny/v3"
#define MTP3 "golden/tiny/v3-mtp3"
enum { WRONG = 1, USAGE = 2 };

static const char *in(const char *dir, const char *name)
{
    static char path[4][256];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", dir, name);
    return path[next];
}

static size_t files_in(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static long long size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) ? -1 : (long long)st.st_size;
}

TEST(a_quantized_file_runs_as_its_directory)
{
    static const char *const types[] = {"f32", "bf16"};
    char dir[64], was[64];
    make_dir(dir);
    const char *q = in(dir, "q.gguf");
    for (size_t i = 0; i < COUNT(types); i++) {
        struct said s = RUN("quantize", V3, "-o", q, "--type", types[i], "--force");
        expect_code(&s, 0);
        assert_int_equal(s.err_size, 0); /* progress is for terminals */
        forget(&s);
        assert_int_equal(files_in(dir), 1);
#define DRAFTED "--tokens", "5,6,7", "-n", "20", "--ignore-eos", "--draft", "mtp-vanilla"
        json_t *a = JSON("generate", V3, DRAFTED, "--precision", types[i]);
        json_t *b = JSON("generate", q, DRAFTED, "--precision", types[i]);
        snprintf(was, sizeof was, "%s", string(a, "fingerprint"));
        assert_string_equal(string(b, "fingerprint"), was);
        json_decref(a);
        json_decref(b);
        b = JSON("verify", q, "--tokens", "5,6,7", "-n", "8");
        assert_true(json_is_true(json_object_get(b, "equal")));
        json_decref(b);
    }
    remove_dir(dir);
}

static void expect_text(const struct said *s, const char *part)
{
    if (!strstr(s->out, part))
        fail_msg("%s: no \"%s\" in\n%s", s->command, part, s->out);
}

TEST(the_report_tells_types_and_what_was_kept)
{
    char dir[64];
    make_dir(dir);
    struct said s = RUN("quantize", MTP3, "-o", in(dir, "a.gguf"), "--type", "q8_0");
    expect_code(&s, 0);
    expect_text(&s, "linear layers   Q8_0 ");
    expect_text(&s, "as stored, because their rows are no multiple of 32 numbers: attn_q_b (24) attn_k_b (16) "
                    "ffn_down_exps (8)");
    expect_text(&s, "embedding       BF16 ");
    expect_text(&s, "output head     Q8_0 ");
    expect_text(&s, "norms, routers  F32 ");
    expect_text(&s, "no tokenizer: golden/tiny/v3-mtp3/tokenizer.json: No such file");
    forget(&s);
    s = RUN("quantize", MTP3, "-o", in(dir, "b.gguf"), "--type", "q4_0", "--embedding-type", "q8_0", "--head-type",
            "as-stored");
    expect_code(&s, 0);
    expect_text(&s, "embedding       Q8_0 ");
    expect_text(&s, "output head     BF16 ");
    forget(&s);
    json_t *j = JSON("quantize", MTP3, "-o", in(dir, "c.gguf"), "--type", "q4_0", "--threads", "3"), *t;
    expect_keys(j, "file:s bytes:i tokenizer:n tensors:a notes:a");
    assert_string_equal(string(j, "file"), in(dir, "c.gguf"));
    assert_int_equal(integer(j, "bytes"), size_of(in(dir, "c.gguf")));
    size_t i, kept = 0;
    json_array_foreach(json_object_get(j, "tensors"), i, t)
    {
        expect_keys(t, "name:s type:s role:s kept:b bytes:i");
        kept += json_is_true(json_object_get(t, "kept"));
    }
    assert_int_equal(kept, 22); /* of 6 layers q_b and k_b, of 5 two kinds of down_proj */
    json_decref(j);
    assert_int_equal(files_in(dir), 3);
    remove_dir(dir);
}

#define REFUSE(code, part, ...) expect_failure(RUN(__VA_ARGS__), code, part)

TEST(what_is_wrong_is_said_and_nothing_is_written)
{
    char dir[64];
    make_dir(dir);
    const char *out = in(dir, "q.gguf");
    REFUSE(USAGE, "--type is missing", "quantize", V3, "-o", out);
    REFUSE(USAGE, "-o is missing", "quantize", V3, "--type", "q8_0");
    REFUSE(USAGE, "type is q5_1, wanted f32, bf16, q8_0 or q4_0", "quantize", V3, "-o", out, "--type", "q5_1");
    REFUSE(USAGE, "type is as-stored, wanted f32", "quantize", V3, "-o", out, "--type", "as-stored");
    REFUSE(USAGE, "head type is Q8_0, wanted as-stored, f32", "quantize", V3, "-o", out, "--type", "f32", "--head-type",
           "Q8_0");
    REFUSE(USAGE, "embedding type is , wanted", "quantize", V3, "-o", out, "--type", "f32", "--embedding-type", "");
    REFUSE(USAGE, "verbatim quantize has no option --precision", "quantize", V3, "-o", out, "--type", "f32",
           "--precision", "q8");
    REFUSE(USAGE, "verbatim generate has no option --type", "generate", V3, "--tokens", "5", "--type", "f32");
    REFUSE(WRONG, "golden/gguf/tiny.gguf is a file", "quantize", "golden/gguf/tiny.gguf", "-o", out, "--type", "f32");
    REFUSE(WRONG, "golden/missing", "quantize", "golden/missing", "-o", out, "--type", "f32");
    REFUSE(WRONG, "No such file or directory", "quantize", V3, "-o", in(dir, "no/q.gguf"), "--type", "f32");
    REFUSE(WRONG, "it is a directory", "quantize", V3, "-o", dir, "--type", "f32", "--force");
    REFUSE(WRONG, "there is a link or a device", "quantize", V3, "-o", "/dev/full", "--type", "f32", "--force");
    assert_int_equal(files_in(dir), 0);
    remove_dir(dir);
}

TEST(a_file_that_exists_is_replaced_only_by_force)
{
    char dir[64];
    make_dir(dir);
    const char *out = in(dir, "q.gguf");
    write_text(dir, "q.gguf", "mine");
    REFUSE(WRONG, "q.gguf: it exists, and --force is not given", "quantize", V3, "-o", out, "--type", "q8_0");
    assert_int_equal(size_of(out), 4);
    struct said s = RUN("quantize", V3, "-o", out, "--type", "q8_0", "--force");
    expect_code(&s, 0);
    forget(&s);
    assert_true(size_of(out) > 4);
    assert_int_equal(files_in(dir), 1);
    remove_dir(dir);
}

/* The first number of lm_head, BF16, becomes a NaN. */
static void break_head(const char *path)
{
    int fd = open(path, O_RDWR);
    uint64_t size = 0;
    assert_int_equal(pread(fd, &size, 8, 0), 8);
    char *header = malloc(size);
    assert_non_null(header);
    assert_int_equal(pread(fd, header, size, 8), size);
    json_t *all = json_loadb(header, size, 0, NULL);
    json_t *offsets = json_object_get(json_object_get(all, "lm_head.weight"), "data_offsets");
    assert_non_null(offsets);
    assert_int_equal(pwrite(fd, "\xc0\x7f", 2, (off_t)(8 + size) + json_integer_value(json_array_get(offsets, 0))), 2);
    json_decref(all);
    free(header);
    close(fd);
}

/* No room, and a weight that is no number: what stood there stands there. */
TEST(a_file_that_cannot_be_finished_leaves_nothing)
{
    char dir[64], broken[64];
    make_dir(dir);
    const char *out = in(dir, "q.gguf");
    expect_failure(RUN_TO(SMALL_FILES, "quantize", V3, "-o", out, "--type", "q8_0"), WRONG, "q.gguf: File too large");
    assert_int_equal(files_in(dir), 0);
    write_text(dir, "q.gguf", "mine");
    expect_failure(RUN_TO(SMALL_FILES, "quantize", V3, "-o", out, "--type", "q8_0", "--force"), WRONG,
                   "q.gguf: File too large");
    assert_int_equal(files_in(dir), 1);
    assert_int_equal(size_of(out), 4);
    make_dir(broken);
    copy_files("golden/tale", broken);
    break_head(in(broken, "model.safetensors"));
    REFUSE(WRONG, "lm_head.weight [0,0] is nan, which Q4_0 cannot hold", "quantize", broken, "-o", out, "--type",
           "q4_0", "--force");
    assert_int_equal(files_in(dir), 1);
    assert_int_equal(size_of(out), 4);
    remove_dir(broken);
    remove_dir(dir);
}

/* Quantizes golden/tale to DIR/q.gguf, and does `then` when the file beside it has been made and not been filled: the
 * program's first word of its progress is held. It must fail with this sentence and leave so many files. */
static void check_disturbed(void (*then)(pid_t child, const char *out), const char *sentence, size_t left)
{
    char dir[64];
    make_dir(dir);
    const char *out = in(dir, "q.gguf");
    struct said s = {.command = "quantize", .err = calloc(1, 1)};
    int terminal, status, err = holding_terminal(&terminal);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        become((const char *const[]){verbatim, "quantize", "golden/tale", "-o", out, "--type", "f32", NULL}, PIPE,
               open("/dev/null", O_WRONLY), terminal);
    WAIT_UNTIL(child, files_in(dir) == 1);
    then(child, out);
    let_on(terminal);
    listen_to(child, (int[]){-1, err}, PIPE, &s);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != WRONG || !strstr(s.err, sentence))
        fail_msg("status %x, %s", (unsigned)status, s.err);
    assert_int_equal(files_in(dir), left);
    assert_true(!left || size_of(out) == 0);
    forget(&s);
    remove_dir(dir);
}

static void interrupt(pid_t child, const char *out)
{
    (void)out;
    kill(child, SIGINT);
}

static void take_its_place(pid_t child, const char *out)
{
    (void)child;
    int fd = open(out, O_CREAT | O_EXCL | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
}

TEST(an_interrupted_run_leaves_nothing)
{
    check_disturbed(interrupt, "q.gguf: stopped by a signal (Interrupt); nothing was left behind\n", 0);
}

TEST(a_file_that_came_meanwhile_is_not_replaced)
{
    check_disturbed(take_its_place, "q.gguf: File exists\n", 1);
}

TEST(the_tokenizer_comes_along)
{
    char dir[64];
    make_dir(dir);
    const char *q = in(dir, "q.gguf");
    json_t *j = JSON("quantize", "golden/tale", "-o", q, "--type", "bf16"), *a, *b;
    assert_string_equal(string(j, "tokenizer"), "deepseek-v3");
    assert_int_equal(json_array_size(json_object_get(j, "notes")), 0);
    json_decref(j);
    a = JSON("tokenize", "golden/tale", "--bos", "Once upon a time, 1234 cats");
    b = JSON("tokenize", q, "--bos", "Once upon a time, 1234 cats");
    assert_true(json_equal(a, b));
    json_decref(a);
    json_decref(b);
    a = JSON("generate", "golden/tale", "--prompt", "Once upon a time", "-n", "24", "--draft", "mtp-eagle");
    b = JSON("generate", q, "--prompt", "Once upon a time", "-n", "24", "--draft", "mtp-eagle");
    assert_string_equal(string(a, "text"), string(b, "text"));
    assert_string_equal(string(a, "fingerprint"), string(b, "fingerprint"));
    json_decref(a);
    json_decref(b);
    remove_dir(dir);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quantized_file_runs_as_its_directory),
        cmocka_unit_test(the_report_tells_types_and_what_was_kept),
        cmocka_unit_test(what_is_wrong_is_said_and_nothing_is_written),
        cmocka_unit_test(a_file_that_exists_is_replaced_only_by_force),
        cmocka_unit_test(a_file_that_cannot_be_finished_leaves_nothing),
        cmocka_unit_test(an_interrupted_run_leaves_nothing),
        cmocka_unit_test(a_file_that_came_meanwhile_is_not_replaced),
        cmocka_unit_test(the_tokenizer_comes_along),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
