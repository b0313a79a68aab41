/* tests/cli/test_help.c -- the help and the manual page name every option where it is taken; topics, short names, and
 * what is said of names that do not exist. The options come from the table that the program is made from; which command
 * takes which is asked of the program itself. Runs it in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/process.h"
#include "tools/cli/options.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define V3 "golden/tiny/v3"
#define MOST_NAMES 8

static const char *const commands[] = {"generate", "chat", "verify", "logits", "draft", "tokenize", "inspect", "demo",
                                       "eval", "dump", "diff", "conventions", "trace", "bench", "quantize", "session",
                                       "serve", "plan", "train"};

/* "-c", "--context", "--ctx-size" */
static size_t names_of(const struct option *o, char names[MOST_NAMES][40])
{
    char also[120], *place = NULL;
    size_t count = 0;
    snprintf(names[count++], 40, "%s", o->name);
    snprintf(also, sizeof also, "%s", o->also ? o->also : "");
    for (char *name = strtok_r(also, " ", &place); name; name = strtok_r(NULL, " ", &place)) {
        assert_true(count < MOST_NAMES);
        snprintf(names[count++], 40, "%s", name);
    }
    return count;
}

static const struct option *table_at(size_t i)
{
    const struct option *tables[] = {options_to_run, options_to_inspect, options_to_train};
    for (size_t t = 0; t < COUNT(tables); t++)
        for (const struct option *o = tables[t]; o->name; o++)
            if (i-- == 0)
                return o;
    return NULL;
}

/* Whether a line of help begins with this name, or with names of which it is one. */
static int begins_a_line(const char *help, const char *name)
{
    size_t size = strlen(name);
    for (const char *line = help; line; line = (line = strchr(line, '\n')) ? line + 1 : NULL) {
        if (strncmp(line, "  -", 3))
            continue;
        for (const char *p = line + 2; *p == '-'; p += p[0] == ',' ? 2 : 0) {
            size_t length = strcspn(p, ", \n");
            if (length == size && !strncmp(p, name, size))
                return 1;
            p += length;
            if (*p != ',')
                break;
        }
    }
    return 0;
}

#define END "=== the end of this run\n"

/* What the command says when it is given each option alone, each answer followed by END. It runs in a child that is no
 * new program: to load thousands of them would take ten seconds. */
static char *answers_of(const char *command)
{
    char names[MOST_NAMES][40], *text = NULL, *subcommand = strcmp(command, "session") ? NULL : "save";
    const struct option *o;
    size_t size = 0;
    int fds[2], status;
    assert_int_equal(pipe(fds), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (dup2(open("/dev/null", O_RDONLY), 0) < 0 || dup2(fds[1], 1) < 0 || dup2(fds[1], 2) < 0)
            _exit(1);
        for (size_t i = 0; (o = table_at(i)); i++)
            for (size_t n = 0, count = names_of(o, names); n < count; n++) {
                char *arguments[] = {(char *)"verbatim", (char *)command, subcommand ? subcommand : names[n],
                                     subcommand ? names[n] : NULL, NULL};
                cli_main(3 + !!subcommand, arguments, NULL, 1);
                fputs(END, stdout);
                fflush(stdout);
            }
        _exit(0);
    }
    close(fds[1]);
    while (take(fds[0], &text, &size))
        ;
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return text;
}

/* The program says "has no option" of those that exist and are not taken. *answer: what follows this option's END
 * afterwards. */
static int takes(const char *command, const char *name, char **answer)
{
    char *end = strstr(*answer, END);
    if (!end)
        fail_msg("verbatim %s %s ended the process", command, name);
    *end = '\0';
    if (strstr(*answer, "unknown option"))
        fail_msg("verbatim %s %s: %s", command, name, *answer);
    int none = strstr(*answer, "has no option") != NULL;
    *answer = end + strlen(END);
    return !none;
}

TEST(every_option_is_in_the_help_of_each_command_that_takes_it_and_of_no_other)
{
    char names[MOST_NAMES][40];
    const struct option *o;
    size_t taken = 0;
    for (size_t k = 0; k < COUNT(commands); k++) {
        struct said help = RUN(commands[k], "--help"), topic = RUN("help", commands[k]);
        char *answers = answers_of(commands[k]), *answer = answers;
        expect_code(&help, 0);
        expect_code(&topic, 0);
        if (strcmp(commands[k], "draft")) /* which is the name of a group, too */
            assert_string_equal(help.out, topic.out);
        for (size_t i = 0; (o = table_at(i)); i++) {
            size_t count = names_of(o, names);
            for (size_t n = 0; n < count; n++) {
                int is_taken = takes(commands[k], names[n], &answer);
                if (begins_a_line(help.out, names[n]) != is_taken)
                    fail_msg("verbatim %s %s %s, and its help %s", commands[k], is_taken ? "takes" : "does not take",
                             names[n], is_taken ? "does not say so" : "says that it does");
                taken += (size_t)is_taken;
            }
        }
        assert_string_equal(answer, "");
        free(answers);
        forget(&help);
        forget(&topic);
    }
    assert_true(taken > 400);
}

static char *manual(void)
{
    char command[4200];
    size_t size = 1 << 20, used;
    char *text = malloc(size);
    snprintf(command, sizeof command, "tools/scripts/man.sh 1 '%s' 0", verbatim);
    FILE *from = popen(command, "r");
    assert_true(text && from);
    used = fread(text, 1, size - 1, from);
    text[used] = '\0';
    assert_int_equal(pclose(from), 0);
    return text;
}

TEST(every_option_is_in_a_group_and_in_the_manual)
{
    static const char *const groups[] = {"model", "prompt", "conversation", "sampling", "draft", "acceptance", "output",
                                         "machine", "sessions", "many", "server", "compare", "measure", "types",
                                         "machines", "training", "run"};
    char names[MOST_NAMES][40], all[65536] = "";
    const struct option *o;
    char *page = manual();
    for (size_t g = 0; g < COUNT(groups); g++) {
        struct said s = RUN("help", groups[g]);
        expect_code(&s, 0);
        assert_true(strlen(all) + s.out_size + 1 < sizeof all);
        strcat(all, s.out);
        forget(&s);
    }
    for (size_t i = 0; (o = table_at(i)); i++) {
        size_t count = names_of(o, names);
        char escaped[100] = "", *e = escaped;
        for (const char *p = o->name; *p; p++) { /* the manual writes \- */
            *e = '\\';
            e += *p == '-';
            *e++ = *p;
        }
        *e = '\0';
        if (!strstr(page, escaped))
            fail_msg("the manual does not name %s", o->name);
        for (size_t n = 0; n < count; n++)
            if (!begins_a_line(all, names[n]))
                fail_msg("no group of options has %s", names[n]);
        assert_non_null(o->help);
        if (o->help[strlen(o->help) - 1] != '.')
            fail_msg("the help of %s is no sentence: %s", o->name, o->help);
    }
    free(page);
}

/* One line begins with the method's name, and says what drafts. */
TEST(help_draft_lists_every_method)
{
    struct said s = RUN("help", "draft");
    vb_draft_method m;
    size_t listed = 0;
    const char *list = strstr(s.out, "\nDraft methods:\n");
    assert_non_null(list);
    for (size_t i = 0; vb_draft_methods(i, &m); i++) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "\n  %-23s %.24s", m.name, m.about);
        if ((strstr(list, wanted) != NULL) == m.needs_callback)
            fail_msg("%s is %slisted; wanted:%s", m.name, m.needs_callback ? "" : "not ", wanted);
        listed += !m.needs_callback;
    }
    assert_true(listed > 5);
    assert_non_null(strstr(list, "ngram-min=2,ngram-max=4"));
    forget(&s);
    s = RUN("help", "sampling");
    assert_null(strstr(s.out, "Draft methods"));
    forget(&s);
}

TEST(topics_are_groups_commands_and_options)
{
    struct said s = RUN("help", "draft");
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "Drafting:\n  --draft METHOD "));
    assert_non_null(strstr(s.out, "`verbatim draft --help`"));
    assert_null(strstr(s.out, "--temperature"));
    forget(&s);
    s = RUN("help", "--draft-tokens");
    expect_code(&s, 0);
    assert_int_equal(strncmp(s.out, "  --draft-tokens K ", 19), 0);
    struct said same = RUN("help", "draft-tokens");
    assert_string_equal(s.out, same.out);
    forget(&same);
    forget(&s);
    s = RUN("help", "--short", "draft");
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "usage: verbatim draft MODEL "));
    forget(&s);
    s = RUN("help");
    struct said all = RUN("--help");
    assert_string_equal(s.out, all.out);
    forget(&s);
    forget(&all);
    expect_failure(RUN("help", "weather"), 2, "there is no help for weather");
    expect_failure(RUN("help", "draft", "tokens"), 2, "unexpected argument tokens");
}

/* An option's own text may be another where a command says so: -n of dump decodes nothing unless it is given. */
TEST(lines_are_short_and_a_command_has_texts_of_its_own)
{
    for (size_t k = 0; k < COUNT(commands); k++) {
        struct said s = RUN(commands[k], "--help");
        for (const char *line = s.out; *line; line += strcspn(line, "\n") + 1)
            if (strcspn(line, "\n") > 132)
                fail_msg("verbatim %s --help: %.*s", commands[k], (int)strcspn(line, "\n"), line);
        assert_true(strcmp(commands[k], "dump") || strstr(s.out, "Also decode N tokens after the prompt (default 0)"));
        forget(&s);
    }
}

TEST(names_like_those_of_llama_cpp_work)
{
    json_t *plain = JSON("generate", "golden/tale", "--prompt", "Once upon a time", "-n", "6", "--context", "40",
                         "--threads", "1", "--seed", "3", "--temperature", "0.8");
    json_t *like = JSON("generate", "-m", "golden/tale", "-p", "Once upon a time", "--predict", "6", "-c", "40", "-t",
                        "1", "-s", "3", "--temp", "0.8");
    assert_string_equal(string(plain, "fingerprint"), string(like, "fingerprint"));
    json_decref(like);
    like = JSON("generate", "-p", "Once upon a time", "--n-predict=6", "--ctx-size=40", "-t=1", "--seed=3",
                "--temp=0.8", "--model=golden/tale");
    assert_string_equal(string(plain, "fingerprint"), string(like, "fingerprint"));
    json_decref(like);
    json_decref(plain);
    struct said s = RUN("tokenize", "Once", "-m", "golden/tale"), t = RUN("tokenize", "golden/tale", "Once");
    expect_code(&s, 0);
    assert_string_equal(s.out, t.out); /* the argument is TEXT, though it comes first */
    forget(&s);
    forget(&t);
    expect_failure(RUN("generate", "golden/tale", "-m", "golden/tale", "-p", "x"), 2,
                   "unexpected argument golden/tale");
    expect_failure(RUN("generate", "golden/tale", "-p"), 2, "-p wants a value");
}

TEST(unknown_names_have_a_suggestion)
{
    static const char *const wrong[][2] = {
        {"--temprature", "did you mean --temperature?"},
        {"--draft_tokens", "did you mean --draft-tokens?"},
        {"--promt", "did you mean --prompt?"},
        {"--speculative_config", "did you mean --speculative-config?"},
        {"--thraeds=3", "unknown option --thraeds; did you mean --threads?"},
        {"--weather", "unknown option --weather; see verbatim generate --help"},
        {"-x", "unknown option -x"},
        {"--relaxed_topk", "it is one of tensorrt-llm: write --draft-words tensorrt-llm '--relaxed_topk ...'"},
        {"--speculative-num-steps", "it is one of sglang"},
        {"--spec-type", "it is one of llama.cpp"}};
    for (size_t i = 0; i < COUNT(wrong); i++)
        expect_failure(RUN("generate", V3, "--tokens", "5", wrong[i][0]), 2, wrong[i][1]);
    expect_failure(RUN("tokenize", V3, "--temprature", "1"), 2,
                   "unknown option --temprature; see verbatim tokenize --help"); /* it has none */
    expect_failure(RUN("genrate", V3), 2, "unknown command genrate; did you mean generate?");
    expect_failure(RUN("weather", V3), 2, "unknown command weather; see verbatim --help");
}

int main(int argc, char **argv)
{
    find_verbatim(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_option_is_in_the_help_of_each_command_that_takes_it_and_of_no_other),
        cmocka_unit_test(every_option_is_in_a_group_and_in_the_manual),
        cmocka_unit_test(help_draft_lists_every_method),
        cmocka_unit_test(topics_are_groups_commands_and_options),
        cmocka_unit_test(lines_are_short_and_a_command_has_texts_of_its_own),
        cmocka_unit_test(names_like_those_of_llama_cpp_work),
        cmocka_unit_test(unknown_names_have_a_suggestion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
