/* tests/cli/test_io_faults.c -- every call that reads or writes a file fails in its turn, as SQLite's tests do it: a
 * command that could not do its work says so in one sentence, leaves no file of its own behind, and the file that was
 * there is whole. The same with memory. Runs the program itself (argv[1], or ../verbatim beside this one) in the
 * repository's root, with fail_io.so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/cli.h"
#include "tests/support/turn.h"

#define MOST_FILES 4

static const char *fail_io; /* the library that is preloaded */
static char dir[64], log_path[96], synced_path[128];

/* ---- the files of a directory ---- */

struct files {
    int count;
    struct {
        char name[64], *bytes;
        size_t size;
    } file[MOST_FILES];
};

static void forget_files(struct files *f)
{
    for (int i = 0; i < f->count; i++)
        free(f->file[i].bytes);
    *f = (struct files){0};
}

static struct files read_files(void)
{
    struct files f = {0};
    struct dirent **entries;
    int n = scandir(dir, &entries, NULL, alphasort);
    assert_true(n >= 0);
    for (int i = 0; i < n; i++) {
        char path[400];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, entries[i]->d_name);
        if (!lstat(path, &st) && S_ISREG(st.st_mode)) {
            assert_true(f.count < MOST_FILES && strlen(entries[i]->d_name) < 64);
            strcpy(f.file[f.count].name, entries[i]->d_name);
            f.file[f.count].size = (size_t)st.st_size;
            f.file[f.count].bytes = malloc((size_t)st.st_size + 1);
            FILE *in = fopen(path, "rb");
            assert_int_equal(fread(f.file[f.count].bytes, 1, (size_t)st.st_size, in), st.st_size);
            fclose(in);
            f.count++;
        }
        free(entries[i]);
    }
    free(entries);
    return f;
}

static void write_files(const struct files *f)
{
    remove_dir(dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    for (int i = 0; i < f->count; i++)
        write_file(dir, f->file[i].name, f->file[i].bytes, f->file[i].size);
}

/* names_alone: what is in them is left to differ. */
static int same_files(const struct files *a, const struct files *b, int names_alone)
{
    int same = a->count == b->count;
    for (int i = 0; i < a->count && same; i++)
        same = !strcmp(a->file[i].name, b->file[i].name) &&
               (names_alone ||
                (a->file[i].size == b->file[i].size && !memcmp(a->file[i].bytes, b->file[i].bytes, a->file[i].size)));
    return same;
}

/* ---- a command ---- */

struct command {
    const char *name;
    const char *const *arguments; /* {verbatim, ..., "--json", NULL} */
    struct files before, after;   /* the directory when it begins, and when it has done its work */
    int appends;                  /* what it could not write may be there in part: the same command goes on */
    int reads;                    /* nothing is written, and so nothing is synced */
    int tells_times;              /* in its file: no two are alike */
    int reports;                  /* it reads or computes for its report when the file is done: a failure then leaves
                                     the file */
    char *out;                    /* on stdout when nothing fails, unless it tells times; NULL: any */
};

static struct said run_failing(const struct command *c, const char *how, long at)
{
    char number[24];
    snprintf(number, sizeof number, "%ld", at);
    unlink(log_path);
    unlink(synced_path);
    setenv("LD_PRELOAD", fail_io, 1);
    setenv("FAIL_UNDER", dir, 1);
    setenv("FAIL_LOG", log_path, 1);
    setenv("FAIL_HOW", how, 1);
    setenv("FAIL_AT", number, 1);
    struct said s = run_to(PIPE, c->arguments);
    unsetenv("LD_PRELOAD");
    return s;
}

static int has_failed_call(void) { return access(log_path, F_OK) == 0; }

/* One object with the sentence. Some are on stderr, where what is short of memory is not even JSON. */
static void expect_sentence(const struct command *c, const struct said *s, const char *how, long at)
{
    json_t *j = json_loadb(s->out, s->out_size, JSON_DECODE_ANY, NULL);
    const char *text = json_string_value(json_object_get(j, "error"));
    const char *line = text ? text : s->err;
    if (s->exit_code != 1 || !*line ||
        (text ? strchr(text, '\n') != NULL : strchr(line, '\n') != line + s->err_size - 1))
        fail_msg("%s, %s %ld: exit code %d; stdout: %.300s; stderr: %.300s", c->name, how, at, s->exit_code, s->out,
                 s->err);
    json_decref(j);
}

/* What is there still begins with what was there, and the same command goes on from it. */
static void expect_resumed(const struct command *c, const char *how, long at)
{
    struct files now = read_files();
    int whole = now.count >= c->before.count;
    for (int i = 0; i < c->before.count && whole; i++)
        whole = now.file[i].size >= c->before.file[i].size &&
                !memcmp(now.file[i].bytes, c->before.file[i].bytes, c->before.file[i].size);
    if (!whole)
        fail_msg("%s, %s %ld: a file that was there is not", c->name, how, at);
    forget_files(&now);
    struct said s = run_to(PIPE, c->arguments);
    expect_code(&s, 0);
    forget(&s);
    now = read_files();
    if (!same_files(&now, &c->after, c->tells_times))
        fail_msg("%s, %s %ld: the same command ends with other files", c->name, how, at);
    forget_files(&now);
}

/* Fails the calls in turn, `step` apart, until there is none with that number. Returns how many failed. */
static long fail_each(const struct command *c, const char *how, long step)
{
    long failed = 0;
    for (long at = 1;; at += step) {
        write_files(&c->before);
        struct said s = run_failing(c, how, at);
        struct files now = read_files();
        int done = s.exit_code == 0;
        if (!has_failed_call() && !done)
            fail_msg("%s, %s %ld: no call failed, and the exit code is %d: %s%s", c->name, how, at, s.exit_code, s.out,
                     s.err);
        if (done && (!same_files(&now, &c->after, c->tells_times) || (c->out && strcmp(c->out, s.out))))
            fail_msg("%s, %s %ld: the exit code is 0, and the files or the output are not those of an undisturbed run: "
                     "%s%s",
                     c->name, how, at, s.out, s.err);
        if (!done)
            expect_sentence(c, &s, how, at);
        if (!done && !c->appends && !same_files(&now, &c->before, 0) &&
            !(c->reports && same_files(&now, &c->after, c->tells_times)))
            fail_msg("%s, %s %ld: %d files are there and not the %d that were: %s%s", c->name, how, at, now.count,
                     c->before.count, s.out, s.err);
        if (!done && c->appends)
            expect_resumed(c, how, at);
        forget(&s);
        forget_files(&now);
        if (!has_failed_call())
            return failed;
        failed++;
    }
}

/* Runs it undisturbed, for what it shall come to. */
static void learn(struct command *c, int keeps_out)
{
    write_files(&c->before);
    struct said s = run_to(PIPE, c->arguments);
    expect_code(&s, 0);
    c->after = read_files();
    c->out = keeps_out ? strdup(s.out) : NULL;
    forget(&s);
}

static void check(struct command *c, int keeps_out, long least)
{
    static const char *const ways[] = {"error", "full", "half", "end"};
    long all = 0, tried = 0;
    learn(c, keeps_out);
    for (size_t i = 0; i < COUNT(ways); i++)
        if (has_turn(i, 2)) {
            all += fail_each(c, ways[i], 1);
            tried++;
        }
    if (!c->reads && access(synced_path, F_OK))
        fail_msg("%s: the file is not synced", c->name);
    print_message("%s: %ld calls failed\n", c->name, all);
    if (all * (long)COUNT(ways) < least * tried)
        fail_msg("%s: only %ld calls failed, wanted %ld", c->name, all, least);
    forget_files(&c->before);
    forget_files(&c->after);
    free(c->out);
}

static const char *in(const char *name)
{
    static char paths[4][96];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

/* Twice: in an empty directory; and over files that are there, with --force. */
#define CHECK_WRITER(what, least, keeps_out, reads_back, name_of_output, other, ...) \
    do { \
        const char *out_ = in(name_of_output); \
        struct command fresh_ = {.name = what, .reports = reads_back, \
                                 .arguments = (const char *const[]){verbatim, __VA_ARGS__, out_, "--json", NULL}}; \
        check(&fresh_, keeps_out, least); \
        struct said s_ = RUN(__VA_ARGS__, out_, "--force", other); \
        expect_code(&s_, 0); \
        forget(&s_); \
        struct command over_ = {.name = what ", over another one", .before = read_files(), .reports = reads_back, \
                                .arguments = (const char *const[]){verbatim, __VA_ARGS__, out_, "--json", "--force", \
                                                                   NULL}}; \
        check(&over_, keeps_out, least); \
    } while (0)

TEST(quantize)
{
    CHECK_WRITER("quantize", 40, 1, 0, "q.gguf", "--head-type=f32", "quantize", V3, "--type", "q8_0", "-o");
}

TEST(session_save)
{
    CHECK_WRITER("session save", 6, 1, 1, "s", "--without-hidden", "session", "save", V3, "--tokens",
                 "5,6,7,70,9,33,17,2", "--draft", "mtp-eagle", "-o");
}

TEST(logits)
{
    CHECK_WRITER("logits", 6, 1, 0, "l.safetensors", "--precision=bf16", "logits", V3, "--tokens", "5,6,7,70,9,33,17,2",
                 "-o");
}

TEST(dump)
{
    CHECK_WRITER("dump", 20, 1, 0, "d.safetensors", "--precision=bf16", "dump", V3, "--tokens", "5,6,7,70,9,33",
                 "--taps", "*norm.output,*mlp.gate.*", "-o");
    CHECK_WRITER("dump into a directory", 20, 1, 0, "", "--precision=bf16", "dump", V3, "--tokens", "5,6,7", "--taps",
                 "*norm.output", "-o");
}

TEST(trace)
{
    struct command c = {.name = "trace", .tells_times = 1,
                        .arguments = (const char *const[]){verbatim, "trace", "golden/tiny/moonlight", "--tokens",
                                                           "5,6,7", "-n", "2", "--html", in("t.html"), "--json", NULL}};
    check(&c, 0, 10);
}

TEST(session_load)
{
    struct said s = RUN("session", "save", V3, "--tokens", "5,6,7,70,9,33,17,2", "--draft", "mtp-eagle", "-o", in("s"),
                        "--force");
    expect_code(&s, 0);
    forget(&s);
    struct command info = {.name = "session info", .reads = 1, .before = read_files(),
                           .arguments = (const char *const[]){verbatim, "session", "info", in("s"), "--json", NULL}};
    struct command load = {.name = "generate --session", .reads = 1, .before = read_files(),
                           .arguments = (const char *const[]){verbatim, "generate", V3, "--session", in("s"), "-n", "3",
                                                              "--json", NULL}};
    check(&info, 1, 3);
    check(&load, 0, 3);
}

TEST(prompts)
{
    static const char lines[] = "{\"tokens\": [5, 6, 7]}\n{\"tokens\": [9, 8]}\n{\"tokens\": [11]}\n";
    char answers[96];
    struct files empty = {0};
    write_files(&empty);
    write_file(dir, "p", lines, sizeof lines - 1);
    snprintf(answers, sizeof answers, "%s", in("z")); /* the last of the names: before the file of prompts is there
                                                         nothing */
    const char *const arguments[] = {verbatim, "generate", V3, "--prompts", in("p"), "-n", "3", "-o", answers, "--json",
                                     NULL};
    struct command fresh = {.name = "--prompts", .arguments = arguments, .before = read_files(), .appends = 1};
    check(&fresh, 0, 10);
    write_files(&empty);
    write_file(dir, "p", lines, sizeof lines - 1);
    struct said s = run_to(PIPE, arguments);
    expect_code(&s, 0);
    forget(&s);
    struct files all = read_files();
    char *first = memchr(all.file[1].bytes, '\n', all.file[1].size);
    assert_non_null(first);
    all.file[1].size = (size_t)(first + 1 - all.file[1].bytes);
    struct command more = {.name = "--prompts, going on", .arguments = arguments, .before = all, .appends = 1};
    check(&more, 0, 10);
}

/* The command's own memory, jansson's, and the library's, which test_faults looks at more closely: some of the
 * allocations of each. */
TEST(memory)
{
    const struct {
        struct command c;
        int keeps_out;
    } cases[] = {
        {{"inspect", (const char *const[]){verbatim, "inspect", V3, "--json", NULL}, .reports = 1}, 1},
        {{"dump",
          (const char *const[]){verbatim, "dump", V3, "--tokens", "5,6", "--taps", "*norm.output", "-o",
                                in("d.safetensors"), "--threads", "1", "--json", NULL},
          .reports = 1},
         1},
        {{"trace",
          (const char *const[]){verbatim, "trace", V3, "--tokens", "5,6", "-n", "3", "--threads", "1", "--json", NULL},
          .reports = 1},
         0},
        {{"quantize",
          (const char *const[]){verbatim, "quantize", V3, "--type", "q8_0", "-o", in("q.gguf"), "--threads", "1",
                                "--json", NULL},
          .reports = 1},
         1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct command c = cases[i].c;
        learn(&c, cases[i].keeps_out);
        long failed = fail_each(&c, "memory", 97);
        print_message("%s: %ld allocations failed\n", c.name, failed);
        assert_true(failed > 3);
        forget_files(&c.after);
        free(c.out);
    }
}

/* A new file gets its name, an existing one is kept without --force, and no part is left, whatever renames a file
 * system has. */
TEST(file_systems_with_old_renames)
{
    static const char *const renames[] = {"old", "simple"};
    static const char text[] = "not a model";
    for (size_t i = 0; i < COUNT(renames); i++) {
        struct files empty = {0};
        write_files(&empty);
        setenv("LD_PRELOAD", fail_io, 1);
        setenv("FAIL_RENAME", renames[i], 1);
        struct said made = RUN("quantize", V3, "--type", "q8_0", "-o", in("q.gguf"));
        write_file(dir, "kept.gguf", text, sizeof text - 1);
        struct said refused = RUN("quantize", V3, "--type", "q8_0", "-o", in("kept.gguf"));
        struct said forced = RUN("quantize", V3, "--type", "q8_0", "-o", in("forced.gguf"), "--force");
        write_file(dir, "forced2.gguf", text, sizeof text - 1);
        struct said replaced = RUN("quantize", V3, "--type", "q8_0", "-o", in("forced2.gguf"), "--force");
        unsetenv("LD_PRELOAD");
        unsetenv("FAIL_RENAME");
        expect_code(&made, 0);
        assert_int_not_equal(refused.exit_code, 0);
        expect_code(&forced, 0);
        expect_code(&replaced, 0);
        struct files now = read_files();
        assert_int_equal(now.count, 4); /* forced, forced2, kept, q: and no part */
        for (int f = 0; f < now.count; f++) {
            int kept = now.file[f].size == sizeof text - 1;
            assert_int_equal(kept, !strcmp(now.file[f].name, "kept.gguf"));
        }
        forget_files(&now);
        forget(&made);
        forget(&refused);
        forget(&forced);
        forget(&replaced);
    }
}

static int begin(void **unused)
{
    (void)unused;
    make_dir(dir);
    snprintf(log_path, sizeof log_path, "%s.failed", dir);
    snprintf(synced_path, sizeof synced_path, "%s.synced", log_path);
    return 0;
}

static int end(void **unused)
{
    (void)unused;
    unlink(log_path);
    unlink(synced_path);
    remove_dir(dir);
    return 0;
}

int main(int argc, char **argv)
{
    static char path[4096];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(quantize, begin, end),
        cmocka_unit_test_setup_teardown(session_save, begin, end),
        cmocka_unit_test_setup_teardown(logits, begin, end),
        cmocka_unit_test_setup_teardown(dump, begin, end),
        cmocka_unit_test_setup_teardown(trace, begin, end),
        cmocka_unit_test_setup_teardown(session_load, begin, end),
        cmocka_unit_test_setup_teardown(prompts, begin, end),
        cmocka_unit_test_setup_teardown(memory, begin, end),
        cmocka_unit_test_setup_teardown(file_systems_with_old_renames, begin, end),
    };
    find_verbatim(argc, argv);
    snprintf(path, sizeof path, "%.*sfail_io.so", (int)(strrchr(argv[0], '/') + 1 - argv[0]), argv[0]);
    fail_io = realpath(path, NULL);
    if (!fail_io) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
