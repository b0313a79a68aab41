/* tests/cli/test_prompts.c -- `generate --prompts`: each answer is the one that its prompt has alone, whatever ran
 * beside it; what was answered when a run was ended, in whatever way, is kept and not computed again. What is refused
 * is in test_prompts_errors.c. Runs the program itself (argv[1], or ../verbatim beside this one) in the repository's
 * root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/prompts.h"

#define TALE "golden/tale"
#define NEEDS_TALE if (access(TALE "/config.json", R_OK)) skip()

static void expect_same(const json_t *a, const json_t *b, const char *what)
{
    static const char *const keys[] = {"prompt_tokens", "tokens", "text", "finish_reason", "stop_string",
                                       "fingerprint"};
    if (!a || !b)
        fail_msg("%s: there is no answer", what);
    for (size_t i = 0; i < COUNT(keys); i++)
        if (!json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i])))
            fail_msg("%s: %s differs: %s and %s", what, keys[i], json_dumps(a, 0), json_dumps(b, 0));
}

/* ---- the promise ------------------------------------------------------------------------------------------------- */

/* A line of the file, and what generate is told for the same. */
static const struct pair {
    const char *line, *arguments[10];
} pairs[] = {
    {"{\"prompt\": \"Once upon a time\", \"id\": \"a\"}", {"--prompt", "Once upon a time"}},
    {"{\"prompt\": \"Once upon a time there was\", \"temperature\": 0.9, \"seed\": 7, \"id\": 17}",
     {"--prompt", "Once upon a time there was", "--temperature", "0.9", "--seed", "7"}},
    {"{\"tokens\": [5, 6, 7, 8, 9, 10], \"max_tokens\": 70}", {"--tokens", "5,6,7,8,9,10", "-n", "70"}},
    {"{\"prompt\": \"The King\", \"temperature\": 1.2, \"top_k\": 20, \"top_p\": 0.9, \"min_p\": 0.02}",
     {"--prompt", "The King", "--temperature", "1.2", "--top-k", "20", "--top-p=0.9", "--min-p=0.02"}},
    {"{\"prompt\": \"Once upon a time\", \"stop\": [\"gambl\", \"x y z\"]}",
     {"--prompt", "Once upon a time", "--stop", "gambl", "--stop", "x y z"}},
    {"{\"prompt\": \"And then\", \"repetition_penalty\": 1.3, \"presence_penalty\": 0.5, \"frequency_penalty\": 0.25}",
     {"--prompt", "And then", "--repetition-penalty", "1.3", "--presence-penalty", "0.5", "--frequency-penalty",
      "0.25"}},
    {"{\"prompt\": \"Once upon a time there was a poor\", \"draft\": \"ngram\", \"draft_tokens\": 5}",
     {"--prompt", "Once upon a time there was a poor"}},
    {"{\"prompt\": \"Now\", \"max_tokens\": 0}", {"--prompt", "Now", "-n", "0"}},
    {"{\"prompt\": \"Once upon a time\", \"draft\": \"none\", \"max_tokens\": null}", {"--prompt", "Once upon a time"}},
    {"{\"prompt\": \"The wolf\", \"draft_tokens\": 0, \"temperature\": 0.5}",
     {"--prompt", "The wolf", "--temperature", "0.5"}},
    {"{\"prompt\": \"The fox\", \"draft\": \"mtp-vanilla\", \"temperature\": 1, \"seed\": 3}",
     {"--prompt", "The fox", "--temperature", "1", "--seed", "3"}},
    {"{\"prompt\": \"The hen\", \"max_tokens\": 64}", {"--prompt", "The hen", "-n", "64"}},
};

static void write_pairs(void)
{
    char text[4096] = "\n"; /* a blank line: the first prompt's index is 1 */
    for (size_t i = 0; i < COUNT(pairs); i++)
        sprintf(text + strlen(text), "%s\r\n", pairs[i].line);
    write_text(dir, "in.jsonl", text);
}

static json_t *alone(const struct pair *p)
{
    const char *arguments[MOST_ARGUMENTS] = {verbatim, "generate", TALE, "--json", "-n", "40", "--threads", "1"};
    memcpy(arguments + 8, p->arguments, sizeof p->arguments);
    return json_of(arguments);
}

TEST(each_answer_is_that_of_its_prompt_alone)
{
    static const char *const settings[][10] = {
        {"--max-sequences", "1"},
        {"--max-sequences", "3", "--draft", "mtp-vanilla"},
        {"--max-sequences", "8", "--draft", "mtp-eagle", "--prefill-chunk", "3", "--threads", "2"},
        {"--max-sequences", "16", "--cache-tokens", "160", "--draft", "mtp-eagle"},
        {"--max-sequences", "5", "--cache-tokens", "130"},
        {"--max-sequences", "12", "--draft", "ngram", "--isa", "scalar"},
        {"--max-sequences", "4", "--draft", "mtp-eagle", "--draft-tokens", "auto"},
        {"--max-sequences", "6", "--draft", "mtp-eagle", "--draft-topk", "1", "--padded"}};
    json_t *wanted[COUNT(pairs)], *answer[MOST];
    long long preemptions = 0, shared = 0;
    NEEDS_TALE;
    write_pairs();
    for (size_t i = 0; i < COUNT(pairs); i++)
        wanted[i] = alone(&pairs[i]);
    for (size_t s = 0; s < COUNT(settings); s++) {
        const char *arguments[MOST_ARGUMENTS] = {verbatim, "generate", TALE, "--json", "-n", "40", "--prompts", in,
                                                 "-o", out};
        memcpy(arguments + 10, settings[s], sizeof settings[s]);
        json_t *j = json_of(arguments);
        assert_int_equal(integer(j, "answered"), COUNT(pairs));
        assert_int_equal(integer(j, "kept"), 0);
        preemptions += integer(j, "preemptions");
        shared += integer(j, "shared_tokens");
        json_decref(j);
        assert_int_equal(read_answers(answer), COUNT(pairs));
        for (size_t i = 0; i < COUNT(pairs); i++)
            expect_same(answer[i + 1], wanted[i], pairs[i].line);
        assert_string_equal(string(answer[1], "id"), "a");
        assert_int_equal(integer(answer[2], "id"), 17);
        assert_true(json_is_null(json_object_get(answer[3], "id")));
        drop_answers(answer);
        unlink(out);
    }
    if (!preemptions || !shared)
        fail_msg("%lld preemptions and %lld tokens shared: the cases are too easy", preemptions, shared);
    for (size_t i = 0; i < COUNT(pairs); i++)
        json_decref(wanted[i]);
}

TEST(drafts_that_lead_the_path_lead_it_to_the_same_place)
{
    static const char *const options[] = {"-n", "40", "--ignore-eos", "--temperature", "0.8", "--acceptance",
                                          "rejection", "--draft", "mtp-vanilla"};
    static const char *const prompts[] = {"Once upon a time", "The King", "The wolf and the"};
    json_t *answer[MOST];
    NEEDS_TALE;
    write_text(dir, "in.jsonl",
               "{\"prompt\": \"Once upon a time\"}\n{\"prompt\": \"The King\"}\n{\"prompt\": \"The wolf and the\"}");
    const char *arguments[MOST_ARGUMENTS] = {verbatim, "generate", TALE, "--json", "--prompts", in, "-o", out};
    memcpy(arguments + 8, options, sizeof options);
    json_decref(json_of(arguments));
    assert_int_equal(read_answers(answer), 3);
    for (size_t i = 0; i < COUNT(prompts); i++) {
        const char *one[MOST_ARGUMENTS] = {verbatim, "generate", TALE, "--json", "--prompt", prompts[i]};
        memcpy(one + 6, options, sizeof options);
        json_t *j = json_of(one);
        expect_same(answer[i], j, prompts[i]);
        json_decref(j);
    }
    drop_answers(answer);
    arguments[8 + COUNT(options) - 1] = "mtp-eagle"; /* another path: those answers are not this run's */
    struct said s = run_to(PIPE, arguments);
    expect_code(&s, 1);
    forget(&s);
}

TEST(messages_go_through_the_chat_template)
{
    static const char template[] =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>{{ mood }}";
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"Hello\"}]";
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    char from[4096], to[128], here[2048], line[256], file[128];
    json_t *answer[MOST];
    NEEDS_TALE;
    assert_non_null(getcwd(here, sizeof here));
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(from, sizeof from, "%s/" TALE "/%s", here, files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    write_text(dir, "chat_template.jinja", template);
    write_text(dir, "m.json", messages);
    snprintf(file, sizeof file, "%s/m.json", dir);
    snprintf(line, sizeof line, "{\"messages\": %s}\n{\"prompt\": \"Hello\"}\n", messages);
    write_text(dir, "in.jsonl", line);
    for (int chat = 0; chat < 2; chat++) {
        json_t *j = chat ? JSON("generate", dir, "-n", "9", "--prompts", in, "-o", out, "--chat", "--system", "Be good",
                                "--chat-template-kwargs", "{\"mood\": \"!\"}")
                         : JSON("generate", dir, "-n", "9", "--prompts", in, "-o", out);
        json_decref(j);
        assert_int_equal(read_answers(answer), 2);
        json_t *m = chat ? JSON("generate", dir, "-n", "9", "--chat", "--messages", file, "--system", "Be good",
                                "--chat-template-kwargs", "{\"mood\": \"!\"}")
                         : JSON("generate", dir, "-n", "9", "--chat", "--messages", file);
        json_t *p = chat ? json_incref(m) : JSON("generate", dir, "-n", "9", "--prompt", "Hello");
        expect_same(answer[0], m, "messages");
        expect_same(answer[1], p, "prompt");
        json_decref(m);
        json_decref(p);
        drop_answers(answer);
        unlink(out);
    }
}

/* ---- runs that end too early ------------------------------------------------------------------------------------- */

#define MANY 40

static void write_many(void)
{
    char text[MANY * 64] = "";
    for (int i = 0; i < MANY; i++)
        sprintf(text + strlen(text), "{\"tokens\": [%d, 6, 7], \"seed\": %d}\n", 5 + i, i);
    write_text(dir, "in.jsonl", text);
}

#define MANY_RUN \
    "generate", V3, "-n", "120", "--ignore-eos", "--temperature", "1", "--max-sequences", "3", "--threads", "1", \
        "--prompts", in

static size_t lines_there(void)
{
    size_t size, lines = 0;
    if (access(out, F_OK))
        return 0;
    char *text = bytes_of(out, &size);
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    free(text);
    return lines;
}

/* Begins a run, sends it the signal when it has written so many answers, and gives its status and what it said. A
 * signal that comes when all is answered ends nothing: then the same again. */
static int end_many(int number, size_t answers, struct said *said)
{
    int status = 0, fds[2];
    for (int tries = 0; tries < 100 && WIFEXITED(status) && !WEXITSTATUS(status); tries++) {
        if (tries) {
            unlink(out);
            forget(said);
        }
        *said = (struct said){.command = "generate --prompts", .err = calloc(1, 1)};
        assert_int_equal(pipe(fds), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            become((const char *const[]){verbatim, MANY_RUN, "-o", out, NULL}, PIPE, open("/dev/null", O_WRONLY),
                   fds[1]);
        close(fds[1]);
        WAIT_UNTIL(child, lines_there() >= answers || state_of(child) == 'Z');
        kill(child, number);
        listen_to(child, (int[]){-1, fds[0]}, PIPE, said);
        assert_int_equal(waitpid(child, &status, 0), child);
    }
    return status;
}

TEST(what_was_answered_when_a_run_was_killed_is_kept_and_the_rest_is_as_without)
{
    json_t *wanted[MOST], *answer[MOST];
    write_many();
    struct said s = RUN(MANY_RUN);
    expect_code(&s, 0);
    assert_int_equal(answers_in(s.out, wanted), MANY);
    forget(&s);
    static const struct {
        int signal;
        size_t answers;
    } ends[] = {{SIGKILL, 1}, {SIGINT, 2}, {SIGKILL, 9}, {SIGTERM, 16}, {SIGINT, 23}};
    for (size_t k = 0; k < COUNT(ends); k++) {
        struct said said = {0};
        size_t size;
        int number = ends[k].signal, status = end_many(number, ends[k].answers, &said);
        char *before = bytes_of(out, &size);
        if (number == SIGINT ? !WIFEXITED(status) || WEXITSTATUS(status) != 130
                             : !WIFSIGNALED(status) || WTERMSIG(status) != number)
            fail_msg("signal %d: status %x, %s", number, (unsigned)status, said.err);
        if (number == SIGINT) {
            size_t there = answers_in(before, answer); /* whole lines */
            drop_answers(answer);
            char sentence[64];
            snprintf(sentence, sizeof sentence, "interrupted: %zu of %d answers are in ", there, MANY);
            if (!strstr(said.err, sentence) || !strstr(said.err, "the same command goes on"))
                fail_msg("wanted \"%s\": %s", sentence, said.err);
        }
        const char *last = strrchr(before, '\n');
        assert_non_null(last);
        size_t kept = (size_t)(last + 1 - before), whole;
        s = RUN(MANY_RUN, "-o", out);
        expect_code(&s, 0);
        if (!strstr(s.err, "resuming: "))
            fail_msg("it should resume: %s", s.err);
        forget(&s);
        char *after = bytes_of(out, &whole);
        assert_true(whole > kept);
        assert_memory_equal(before, after, kept);
        assert_int_equal(answers_in(after, answer), MANY);
        for (size_t i = 0; i < MANY; i++)
            if (!json_equal(answer[i], wanted[i]))
                fail_msg("signal %d, line %zu: %s, wanted %s", number, i, json_dumps(answer[i], 0),
                         json_dumps(wanted[i], 0));
        drop_answers(answer);
        free(before);
        free(after);
        forget(&said);
        unlink(out);
    }
    drop_answers(wanted);
}

TEST(a_line_torn_anywhere_is_cut_off_and_computed_again)
{
    size_t size, now;
    write_few();
    struct said s = RUN(FEW_RUN, "--max-sequences", "1");
    expect_code(&s, 0);
    forget(&s);
    char *whole = bytes_of(out, &size), *last = memrchr(whole, '\n', size - 1);
    assert_non_null(last);
    for (size_t at = (size_t)(last - whole); at < size; at += at < (size_t)(last - whole) + 14 ? 1 : 11) {
        write_file(dir, "out.jsonl", whole, at);
        s = RUN(FEW_RUN);
        expect_code(&s, 0);
        if (!strstr(s.err, at == (size_t)(last - whole) ? "resuming: 1 of 3 are there" : "resuming: 2 of 3 are there"))
            fail_msg("cut at %zu: %s", at, s.err);
        forget(&s);
        char *again = bytes_of(out, &now);
        json_t *answer[MOST];
        assert_int_equal(answers_in(again, answer), 3);
        drop_answers(answer);
        if (at > (size_t)(last - whole)) {
            assert_int_equal(now, size);
            assert_memory_equal(again, whole, size);
        }
        free(again);
    }
    /* what a power cut may leave: blocks that were never written */
    memset(last + 1, 0, size - (size_t)(last + 1 - whole));
    write_file(dir, "out.jsonl", whole, size);
    s = RUN(FEW_RUN);
    expect_code(&s, 0);
    forget(&s);
    s = RUN(FEW_RUN); /* nothing is left to do */
    expect_code(&s, 0);
    assert_non_null(strstr(s.err, "3 of 3 prompts: 0 prompt tokens, 0 new"));
    forget(&s);
    free(whole);
}

/* More prompts behind the others are computed, those that are there are not. */
TEST(a_file_of_prompts_may_grow)
{
    json_t *answer[MOST];
    write_few();
    json_decref(JSON(FEW_RUN));
    write_text(dir, "in.jsonl",
               "{\"tokens\": [5, 6, 7]}\n{\"tokens\": [8]}\n{\"tokens\": [9, 10], \"id\": \"x\"}\n\n{\"tokens\": "
               "[11]}");
    json_t *j = JSON(FEW_RUN, "--draft", "mtp-eagle", "--threads", "1", "--max-sequences", "2"); /* reach no answer */
    assert_int_equal(integer(j, "kept"), 3);
    assert_int_equal(integer(j, "answered"), 1);
    json_decref(j);
    assert_int_equal(read_answers(answer), 4);
    assert_non_null(answer[4]);
    drop_answers(answer);
}

TEST(a_disk_that_is_full_leaves_whole_lines)
{
    json_t *answer[MOST];
    write_many();
    struct said s = RUN_TO(SMALL_FILES, MANY_RUN, "-o", out);
    expect_code(&s, 1);
    if (!strstr(s.err, out) || !strstr(s.err, "File too large"))
        fail_msg("it should say what could not be written: %s", s.err);
    forget(&s);
    size_t there = read_answers(answer);
    assert_true(there > 0 && there < MANY);
    drop_answers(answer);
    s = RUN(MANY_RUN, "-o", out);
    expect_code(&s, 0);
    forget(&s);
    assert_int_equal(read_answers(answer), MANY);
    drop_answers(answer);
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

TEST(prompts_come_from_stdin_and_answers_go_to_stdout)
{
    json_t *answer[MOST], *from_file[MOST];
    write_few();
    struct said s = RUN("generate", V3, "-n", "5", "--prompts", in);
    expect_code(&s, 0);
    if (!strstr(s.err, "3 prompts, 3 at once; cache of ") ||
        !strstr(s.err, "3 of 3 prompts: 6 prompt tokens, 15 new in "))
        fail_msg("bounds and statistics: %s", s.err);
    assert_int_equal(answers_in(s.out, from_file), 3);
    expect_keys(from_file[0],
                "index:i request:s id:n prompt_tokens:i tokens:a text:n finish_reason:s stop_string:n fingerprint:s");
    forget(&s);
    stdin_of_runs = in;
    s = RUN("generate", V3, "-n", "5", "--prompts", "-", "--stats");
    stdin_of_runs = "/dev/null";
    expect_code(&s, 0);
    assert_non_null(strstr(s.err, "peak memory"));
    assert_int_equal(answers_in(s.out, answer), 3);
    for (size_t i = 0; i < 3; i++)
        assert_true(json_equal(answer[i], from_file[i]));
    forget(&s);
    drop_answers(answer);
    drop_answers(from_file);
    for (enum stdout_kind kind = CLOSED; kind <= READER_GONE; kind++) {
        s = RUN_TO(kind, "generate", V3, "-n", "5", "--prompts", in);
        expect_code(&s, 1);
        assert_non_null(strstr(s.err, "stdout cannot be written"));
        forget(&s);
    }
}

TEST(the_statistics_are_an_object)
{
    write_few();
    json_t *j = JSON(FEW_RUN, "--draft", "mtp-eagle");
    expect_keys(j, "prompts:i kept:i answered:i errors:i interrupted:b prompt_tokens:i tokens:i seconds:r "
                   "tokens_per_second:r passes:i forwards:i "
                   "drafted:i accepted:i draft:s draft_tokens:i max_sequences:i preemptions:i shared_tokens:i "
                   "cache_tokens:i most_cache_tokens_used:i cache_bytes:i pass_bytes:i draft_bytes:i");
    assert_int_equal(integer(j, "prompts"), 3);
    assert_int_equal(integer(j, "tokens"), 15);
    assert_int_equal(integer(j, "prompt_tokens"), 6);
    assert_true(integer(j, "draft_bytes") > 0 && integer(j, "cache_bytes") > 0 &&
                integer(j, "most_cache_tokens_used") > 0);
    json_decref(j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WITH_DIR(each_answer_is_that_of_its_prompt_alone),
        WITH_DIR(drafts_that_lead_the_path_lead_it_to_the_same_place),
        WITH_DIR(messages_go_through_the_chat_template),
        WITH_DIR(what_was_answered_when_a_run_was_killed_is_kept_and_the_rest_is_as_without),
        WITH_DIR(a_line_torn_anywhere_is_cut_off_and_computed_again),
        WITH_DIR(a_file_of_prompts_may_grow),
        WITH_DIR(a_disk_that_is_full_leaves_whole_lines),
        WITH_DIR(prompts_come_from_stdin_and_answers_go_to_stdout),
        WITH_DIR(the_statistics_are_an_object),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
