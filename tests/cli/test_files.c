/* tests/cli/test_files.c -- what the command does with files, pipes and signals that are not as usual. Runs the program
 * itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/cli.h"

#define WRONG 1
#define TALE "golden/tale"

static char dir[64];

static int begin(void **unused)
{
    (void)unused;
    make_dir(dir);
    return 0;
}

static int end(void **unused)
{
    (void)unused;
    remove_dir(dir);
    return 0;
}

/* One of four names in the directory of the test. */
static const char *in(const char *name)
{
    static char paths[4][160];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static int files_in(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static off_t size_of(const char *path)
{
    struct stat st;
    return lstat(path, &st) ? -1 : st.st_size;
}

/* The program in the background, its stderr a terminal that holds it as soon as it writes there. *err: where that is
 * read. */
static pid_t start(const char *const *arguments, int *err, int *terminal)
{
    *err = holding_terminal(terminal);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        become(arguments, PIPE, open("/dev/null", O_WRONLY), *terminal);
    return child;
}

/* Lets it go on, and wants this end. */
static void finish(pid_t child, int err, int terminal, int code, const char *sentence)
{
    struct said s = {.command = "the program", .err = calloc(1, 1)};
    int status;
    let_on(terminal);
    listen_to(child, (int[]){-1, err}, PIPE, &s);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != code || !strstr(s.err, sentence))
        fail_msg("status %x, wanted exit code %d and \"%s\": %s", (unsigned)status, code, sentence, s.err);
    forget(&s);
}

#define START(err, terminal, ...) start((const char *const[]){verbatim, __VA_ARGS__, NULL}, err, terminal)

/* ---- output ------------------------------------------------------------------------------------------------------ */

TEST(logits_that_are_interrupted_leave_nothing)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    int err, terminal;
    for (size_t i = 0; i < COUNT(signals); i++) {
        write_text(dir, "l.safetensors", "mine");
        pid_t child = START(&err, &terminal, "logits", TALE, "--tokens", "5,6,7,8,9,10,11,12", "-o",
                            in("l.safetensors"), "--force", "--prefill-chunk", "1");
        WAIT_UNTIL(child, files_in(dir) == 2 && handles(child, signals[i]));
        kill(child, signals[i]);
        finish(child, err, terminal, WRONG, "l.safetensors: stopped by a signal");
        assert_int_equal(files_in(dir), 1);
        assert_int_equal(size_of(in("l.safetensors")), 4);
        unlink(in("l.safetensors"));
    }
}

/* While it computes, a dump has no name: even SIGKILL leaves nothing. */
TEST(a_dump_that_is_killed_leaves_nothing)
{
    int err, terminal, status;
    for (int reference = 0; reference < 2; reference++) {
        char held[64];
        pid_t child = reference
                          ? START(&err, &terminal, "dump", TALE, "--tokens", "5,6,7", "-o", in("d"), "--reference")
                          : START(&err, &terminal, "dump", TALE, "--tokens", "5,6,7", "-o", in("d"));
        snprintf(held, sizeof held, "/proc/%d/fd", (int)child);
        WAIT_UNTIL(child, files_in(held) >= 5 && state_of(child) == 'S'); /* it holds both files, and its progress is
                                                                             held */
        assert_int_equal(files_in(dir), 0);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        let_on(terminal);
        close(err);
        assert_int_equal(files_in(dir), 0);
    }
}

/* Nobody can know the name beforehand and put a link there. */
TEST(the_other_name_cannot_be_guessed)
{
    char seen[2][256] = {"", ""};
    for (int i = 0; i < 2; i++) {
        int err, terminal;
        pid_t child = START(&err, &terminal, "quantize", TALE, "--type", "f32", "-o", in("q.gguf"));
        WAIT_UNTIL(child, files_in(dir) == 1);
        DIR *d = opendir(dir);
        for (struct dirent *e; (e = readdir(d));)
            if (e->d_name[0] != '.')
                snprintf(seen[i], sizeof seen[i], "%s", e->d_name);
        closedir(d);
        kill(child, SIGINT);
        finish(child, err, terminal, WRONG, "nothing was left behind");
        assert_int_equal(strlen(seen[i]), strlen("q.gguf.0123456789abcdef.part"));
    }
    assert_string_not_equal(seen[0], seen[1]);
}

/* As after `2>&-`: messages do not become a part of the first file that is opened. */
TEST(a_closed_stderr_does_not_leak_into_the_answers)
{
    char command[512];
    write_text(dir, "p", "{\"tokens\": [5, 6, 7]}\n");
    for (int closed = 0; closed < 3; closed++) {
        snprintf(command, sizeof command, "%s generate %s --prompts %s -n 3 -o %s --stats %d<&- %s", verbatim, V3,
                 in("p"), in("a"), closed, closed == 2 ? "" : "2>/dev/null");
        assert_int_equal(system(command), 0);
        FILE *f = fopen(in("a"), "r");
        char line[512];
        int lines = 0;
        while (fgets(line, sizeof line, f))
            lines += !strncmp(line, "{\"index\": 0, ", 13) ? 1 : 100;
        fclose(f);
        assert_int_equal(lines, 1);
        unlink(in("a"));
    }
    unlink(in("p"));
}

/* ---- input ------------------------------------------------------------------------------------------------------- */

TEST(a_pipe_where_a_file_must_be_is_refused_at_once)
{
    static const char *const names[] = {"config.json", "generation_config.json", "model.safetensors"};
    char sentence[64];
    for (size_t i = 0; i < COUNT(names); i++) {
        copy_files(V3, dir);
        unlink(in(names[i]));
        assert_int_equal(mkfifo(in(names[i]), 0600), 0);
        snprintf(sentence, sizeof sentence, "%s: not a regular file", names[i]);
        expect_failure(RUN("generate", dir, "--tokens", "5", "-n", "1"), WRONG, sentence);
        remove_dir(dir);
        assert_int_equal(mkdir(dir, 0700), 0);
    }
    assert_int_equal(mkfifo(in("fifo"), 0600), 0);
    expect_failure(RUN("inspect", in("fifo")), WRONG, "fifo");
    expect_failure(RUN("session", "info", in("fifo")), WRONG, "fifo: it is no file");
    expect_failure(RUN("generate", V3, "--session", in("fifo")), WRONG, "fifo: it is no file");
    expect_failure(RUN("diff", in("fifo"), in("fifo")), WRONG, "not a file");
    write_text(dir, "p", "{\"tokens\": [5, 6, 7]}\n");
    expect_failure(RUN("generate", V3, "--prompts", in("p"), "-o", in("fifo")), WRONG, "fifo: not a file");
    unlink(in("p"));
    unlink(in("fifo"));
    struct said s = RUN("dump", V3, "--tokens", "5", "-o", in("d.safetensors"));
    expect_code(&s, 0);
    forget(&s);
    unlink(in("d.jsonl"));
    assert_int_equal(mkfifo(in("d.jsonl"), 0600), 0);
    expect_failure(RUN("diff", in("d.safetensors"), in("d.safetensors")), WRONG, "d.jsonl: not a regular file");
    unlink(in("d.jsonl"));
    unlink(in("d.safetensors"));
}

/* What a user wrote may come from another program: more than a pipe holds at once, too. */
TEST(prompts_are_read_from_pipes)
{
    char command[128];
    static const char *const cases[][3] = {
        {"generate", "--prompt-file <(printf 'Once upon a') -n 3", " time there"},
        {"generate", "--tokens @<(echo 79,329,200,311) -n 3", ""},
        {"generate", "--prompts <(echo '{\"prompt\": \"Once upon a\"}') -n 3", "\"text\": \" time there"},
        {"tokenize", "--file <(for i in {1..40000}; do printf 'abc '; done) --json | wc -c", ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *text = NULL;
        size_t room = 0;
        FILE *f = fopen(in("run.sh"), "w");
        fprintf(f, "%s %s golden/tale %s 2>/dev/null\n", verbatim, cases[i][0], cases[i][1]);
        fclose(f);
        snprintf(command, sizeof command, "bash %s/run.sh", dir);
        FILE *p = popen(command, "r");
        assert_non_null(p);
        ssize_t n = getdelim(&text, &room, '\0', p);
        assert_int_equal(pclose(p), 0);
        if (n <= 0 || !strstr(text, cases[i][2]))
            fail_msg("%s %s: %s", cases[i][0], cases[i][1], n > 0 ? text : "nothing");
        free(text);
    }
    unlink(in("run.sh"));
}

/* Cut while it is used: the weights are mapped and the program is held at its first word. */
TEST(a_model_that_is_cut_short_meanwhile_is_a_sentence)
{
    int err, terminal;
    copy_files(TALE, dir);
    int before = files_in(dir);
    pid_t child = START(&err, &terminal, "quantize", dir, "--type", "f32", "-o", in("q.gguf"));
    WAIT_UNTIL(child, files_in(dir) == before + 1 && state_of(child) == 'S');
    assert_int_equal(truncate(in("model.safetensors"), 4096), 0);
    finish(child, err, terminal, WRONG,
           "model.safetensors: it was cut short, or could not be read, while it was in use\n");
    assert_int_equal(files_in(dir), before);
}

/* ---- Ctrl-C ------------------------------------------------------------------------------------------------------ */

/* The first chunk of the prompt is read, and its progress held; what is asked then, before the first layer of the next,
 * ends it. */
TEST(ctrl_c_in_a_long_prompt_ends_it)
{
    char text[8192] = "5";
    int err, terminal;
    for (int i = 0; i < 900; i++)
        strcat(text, ",7");
    write_text(dir, "ids", text);
    char spec[160];
    snprintf(spec, sizeof spec, "@%s", in("ids"));
    pid_t child = START(&err, &terminal, "generate", TALE, "--tokens", spec, "-n", "2", "--threads", "1");
    WAIT_UNTIL(child, handles(child, SIGINT) && state_of(child) == 'S');
    kill(child, SIGINT);
    finish(child, err, terminal, 130, "0 new; interrupted\n");
    unlink(in("ids"));
}

TEST(a_signal_that_was_ignored_stays_ignored)
{
    static const char *const commands[][12] = {{"generate", TALE, "--tokens", "5,6,7", "-n", "300", "--ignore-eos"},
                                               {"quantize", TALE, "--type", "f32", "-o"}};
    for (size_t i = 0; i < COUNT(commands); i++) {
        const char *arguments[14] = {verbatim};
        char line[256];
        int err, terminal, n = 1;
        for (; commands[i][n - 1]; n++)
            arguments[n] = commands[i][n - 1];
        if (i)
            arguments[n] = in("q.gguf");
        signal(SIGINT, SIG_IGN);
        pid_t child = start(arguments, &err, &terminal);
        signal(SIGINT, SIG_DFL);
        WAIT_UNTIL(child, i ? files_in(dir) == 1 : state_of(child) == 'S');
        assert_true(strtoull(status_of(child, "SigIgn:", line), NULL, 16) >> (SIGINT - 1) & 1);
        kill(child, SIGINT);
        finish(child, err, terminal, 0, "");
        unlink(in("q.gguf"));
    }
}

#define EACH(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        EACH(logits_that_are_interrupted_leave_nothing),
        EACH(a_dump_that_is_killed_leaves_nothing),
        EACH(the_other_name_cannot_be_guessed),
        EACH(a_closed_stderr_does_not_leak_into_the_answers),
        EACH(a_pipe_where_a_file_must_be_is_refused_at_once),
        EACH(prompts_are_read_from_pipes),
        EACH(a_model_that_is_cut_short_meanwhile_is_a_sentence),
        EACH(ctrl_c_in_a_long_prompt_ends_it),
        EACH(a_signal_that_was_ignored_stays_ignored),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
