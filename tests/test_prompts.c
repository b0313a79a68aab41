/* tests/test_prompts.c -- `generate --prompts`: each answer is the one that its prompt has alone, whatever ran beside it; what was
 * answered when a run was ended, in whatever way, is kept and not computed again; a file that is anything else is left alone.
 * Runs the program itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/file.h>

#include "support/golden.h"
#include "support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define V3 "golden/tiny/v3"
#define TALE "golden/tale"
#define NEEDS_TALE if (access(TALE "/config.json", R_OK)) skip()
#define MOST 64

static char dir[64], in[80], out[80];

static int make(void **unused)
{
    (void)unused;
    make_dir(dir);
    snprintf(in, sizeof in, "%s/in.jsonl", dir);
    snprintf(out, sizeof out, "%s/out.jsonl", dir);
    return 0;
}

static int clear(void **unused)
{
    (void)unused;
    remove_dir(dir);
    return 0;
}

static char *bytes_of(const char *path, size_t *size)
{
    struct said file = {.out = calloc(1, 1)};
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    while (take(fd, &file.out, &file.out_size))
        ;
    close(fd);
    *size = file.out_size;
    return file.out;
}

/* The lines of a file, by their index; returns how many. */
static size_t answers_in(const char *text, json_t *answer[MOST])
{
    size_t count = 0;
    memset(answer, 0, MOST * sizeof *answer);
    for (const char *end; *text; text = end + 1, count++) {
        assert_non_null(end = strchr(text, '\n'));
        json_t *j = json_loadb(text, (size_t)(end - text), 0, NULL);
        if (!j)
            fail_msg("not JSON: %.200s", text);
        long long i = integer(j, "index");
        assert_true(i >= 0 && i < MOST && !answer[i]);
        answer[i] = j;
    }
    return count;
}

static size_t read_answers(json_t *answer[MOST])
{
    size_t size;
    char *text = bytes_of(out, &size);
    size_t count = answers_in(text, answer);
    free(text);
    return count;
}

static void drop(json_t *answer[MOST])
{
    for (size_t i = 0; i < MOST; i++)
        json_decref(answer[i]);
}

static void expect_same(const json_t *a, const json_t *b, const char *what)
{
    static const char *const keys[] = {"prompt_tokens", "tokens", "text", "finish_reason", "stop_string", "fingerprint"};
    if (!a || !b)
        fail_msg("%s: there is no answer", what);
    for (size_t i = 0; i < COUNT(keys); i++)
        if (!json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i])))
            fail_msg("%s: %s differs: %s and %s", what, keys[i], json_dumps(a, 0), json_dumps(b, 0));
}

/* ---- the promise --------------------------------------------------------------------------------------------------- */

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
    {"{\"prompt\": \"Once upon a time\", \"stop\": [\"gambl\", \"x y z\"]}", {"--prompt", "Once upon a time", "--stop", "gambl", "--stop", "x y z"}},
    {"{\"prompt\": \"And then\", \"repetition_penalty\": 1.3, \"presence_penalty\": 0.5, \"frequency_penalty\": 0.25}",
     {"--prompt", "And then", "--repetition-penalty", "1.3", "--presence-penalty", "0.5", "--frequency-penalty", "0.25"}},
    {"{\"prompt\": \"Once upon a time there was a poor\", \"draft\": \"ngram\", \"draft_tokens\": 5}", {"--prompt", "Once upon a time there was a poor"}},
    {"{\"prompt\": \"Now\", \"max_tokens\": 0}", {"--prompt", "Now", "-n", "0"}},
    {"{\"prompt\": \"Once upon a time\", \"draft\": \"none\", \"max_tokens\": null}", {"--prompt", "Once upon a time"}},
    {"{\"prompt\": \"The wolf\", \"draft_tokens\": 0, \"temperature\": 0.5}", {"--prompt", "The wolf", "--temperature", "0.5"}},
    {"{\"prompt\": \"The fox\", \"draft\": \"mtp-vanilla\", \"temperature\": 1, \"seed\": 3}", {"--prompt", "The fox", "--temperature", "1", "--seed", "3"}},
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
        const char *arguments[MOST_ARGUMENTS] = {verbatim, "generate", TALE, "--json", "-n", "40", "--prompts", in, "-o", out};
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
        drop(answer);
        unlink(out);
    }
    if (!preemptions || !shared)
        fail_msg("%lld preemptions and %lld tokens shared: the cases are too easy", preemptions, shared);
    for (size_t i = 0; i < COUNT(pairs); i++)
        json_decref(wanted[i]);
}

TEST(drafts_that_lead_the_path_lead_it_to_the_same_place)
{
    static const char *const options[] = {"-n", "40", "--ignore-eos", "--temperature", "0.8", "--acceptance", "rejection", "--draft", "mtp-vanilla"};
    static const char *const prompts[] = {"Once upon a time", "The King", "The wolf and the"};
    json_t *answer[MOST];
    NEEDS_TALE;
    write_text(dir, "in.jsonl", "{\"prompt\": \"Once upon a time\"}\n{\"prompt\": \"The King\"}\n{\"prompt\": \"The wolf and the\"}");
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
    drop(answer);
    arguments[8 + COUNT(options) - 1] = "mtp-eagle"; /* another path: those answers are not this run's */
    struct said s = run_to(PIPE, arguments);
    expect_code(&s, 1);
    forget(&s);
}

TEST(messages_go_through_the_chat_template)
{
    static const char template[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>{{ mood }}";
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"Hello\"}]";
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"};
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
        json_t *j = chat ? JSON("generate", dir, "-n", "9", "--prompts", in, "-o", out, "--chat", "--system", "Be good", "--chat-template-kwargs",
                                "{\"mood\": \"!\"}")
                         : JSON("generate", dir, "-n", "9", "--prompts", in, "-o", out);
        json_decref(j);
        assert_int_equal(read_answers(answer), 2);
        json_t *m = chat ? JSON("generate", dir, "-n", "9", "--chat", "--messages", file, "--system", "Be good", "--chat-template-kwargs", "{\"mood\": \"!\"}")
                         : JSON("generate", dir, "-n", "9", "--chat", "--messages", file);
        json_t *p = chat ? json_incref(m) : JSON("generate", dir, "-n", "9", "--prompt", "Hello");
        expect_same(answer[0], m, "messages");
        expect_same(answer[1], p, "prompt");
        json_decref(m);
        json_decref(p);
        drop(answer);
        unlink(out);
    }
}

/* ---- runs that end too early ----------------------------------------------------------------------------------------- */

#define MANY 40

static void write_many(void)
{
    char text[MANY * 64] = "";
    for (int i = 0; i < MANY; i++)
        sprintf(text + strlen(text), "{\"tokens\": [%d, 6, 7], \"seed\": %d}\n", 5 + i, i);
    write_text(dir, "in.jsonl", text);
}

#define MANY_RUN "generate", V3, "-n", "120", "--ignore-eos", "--temperature", "1", "--max-sequences", "3", "--threads", "1", "--prompts", in

/* Begins a run and waits until it has written something; its stderr goes to *err. */
static pid_t begin_many(int *err)
{
    int fds[2];
    struct stat st;
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        become((const char *const[]){verbatim, MANY_RUN, "-o", out, NULL}, PIPE, open("/dev/null", O_WRONLY), fds[1]);
    close(fds[1]);
    *err = fds[0];
    for (int i = 0; i < 60000 && (stat(out, &st) || !st.st_size); i++)
        usleep(1000);
    return child;
}

TEST(what_was_answered_when_a_run_was_killed_is_kept_and_the_rest_is_as_without)
{
    json_t *wanted[MOST], *answer[MOST];
    size_t interrupted = 0;
    write_many();
    struct said s = RUN(MANY_RUN);
    expect_code(&s, 0);
    assert_int_equal(answers_in(s.out, wanted), MANY);
    forget(&s);
    static const int signals[] = {SIGKILL, SIGINT, SIGKILL, SIGTERM, SIGINT};
    for (size_t k = 0; k < COUNT(signals); k++) {
        struct said said = {.err = calloc(1, 1)};
        int status, err;
        size_t size;
        pid_t child = begin_many(&err);
        usleep(3000 * (useconds_t)k);
        kill(child, signals[k]);
        while (take(err, &said.err, &said.err_size))
            ;
        close(err);
        assert_int_equal(waitpid(child, &status, 0), child);
        char *before = bytes_of(out, &size);
        if (signals[k] == SIGINT && WIFEXITED(status) && WEXITSTATUS(status) == 130) {
            size_t there = answers_in(before, answer); /* whole lines */
            drop(answer);
            char sentence[64];
            snprintf(sentence, sizeof sentence, "interrupted: %zu of %d answers are in ", there, MANY);
            if (!strstr(said.err, sentence) || !strstr(said.err, "the same command goes on"))
                fail_msg("wanted \"%s\": %s", sentence, said.err);
            interrupted++;
        } else if (!WIFSIGNALED(status) && signals[k] == SIGINT) {
            fail_msg("SIGINT: status %x, %s", (unsigned)status, said.err);
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
                fail_msg("signal %d, line %zu: %s, wanted %s", signals[k], i, json_dumps(answer[i], 0), json_dumps(wanted[i], 0));
        drop(answer);
        free(before);
        free(after);
        free(said.err);
        unlink(out);
    }
    assert_true(interrupted == 2);
    drop(wanted);
}

#define FEW_RUN "generate", V3, "-n", "5", "--prompts", in, "-o", out

static void write_few(void)
{
    write_text(dir, "in.jsonl", "{\"tokens\": [5, 6, 7]}\n{\"tokens\": [8]}\n{\"tokens\": [9, 10], \"id\": \"x\"}\n");
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
        drop(answer);
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
    write_text(dir, "in.jsonl", "{\"tokens\": [5, 6, 7]}\n{\"tokens\": [8]}\n{\"tokens\": [9, 10], \"id\": \"x\"}\n\n{\"tokens\": [11]}");
    json_t *j = JSON(FEW_RUN, "--draft", "mtp-eagle", "--threads", "1", "--max-sequences", "2"); /* reach no answer */
    assert_int_equal(integer(j, "kept"), 3);
    assert_int_equal(integer(j, "answered"), 1);
    json_decref(j);
    assert_int_equal(read_answers(answer), 4);
    assert_non_null(answer[4]);
    drop(answer);
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
    drop(answer);
    s = RUN(MANY_RUN, "-o", out);
    expect_code(&s, 0);
    forget(&s);
    assert_int_equal(read_answers(answer), MANY);
    drop(answer);
}

/* ---- files that are something else ------------------------------------------------------------------------------------ */

/* Refuses by name, and the file is what it was. */
static void leaves_alone(const char *part, const char *const *arguments)
{
    size_t before, after;
    char *was = bytes_of(out, &before);
    struct said s = run_to(PIPE, arguments);
    expect_code(&s, 1);
    const char *last = s.err_size > 1 ? memrchr(s.err, '\n', s.err_size - 1) : NULL;
    if (s.out_size || !strstr(last ? last : s.err, out) || !strstr(s.err, part))
        fail_msg("wanted %s and %s: %s%s", out, part, s.out, s.err);
    forget(&s);
    char *is = bytes_of(out, &after);
    assert_int_equal(before, after);
    assert_memory_equal(was, is, before);
    free(was);
    free(is);
}
#define LEAVES_ALONE(part, ...) leaves_alone(part, (const char *const[]){verbatim, __VA_ARGS__, NULL})

TEST(a_file_that_is_something_else_is_left_alone)
{
    static const char *const others[] = {"hello\n", "hello", "{}\n", "\n", "{\"index\": 0}\n", "[]\n", "{\"index\": 0, \"request\": \"0123456789abcdef\"}\n",
                                         "{\"index\": 0, \"request\": \"0123456789abcdef\", \"tokens\": []}\n", "{\"index\": 0, \"request\": \"0123",
                                         "{\"index\": 77", "{\"indices\"", "{\"index\": -1, \"request\": \"0123456789abcdef\", \"tokens\": []}\n",
                                         "{\"index\": 99999999999, \"request\": \"0123456789abcdef\", \"tokens\": []}\n", "{\"index\": x"};
    write_few();
    for (size_t i = 0; i < COUNT(others); i++) {
        if (!strcmp(others[i], "{\"index\": 77")) /* may be the beginning of anything: nothing is lost */
            continue;
        write_text(dir, "out.jsonl", others[i]);
        LEAVES_ALONE("line 1", FEW_RUN);
    }
    write_file(dir, "out.jsonl", "\0\0\0\0", 4);
    LEAVES_ALONE("line 1", FEW_RUN);
    unlink(out);
    json_decref(JSON(FEW_RUN));
    LEAVES_ALONE("with other options", FEW_RUN, "--temperature", "0.5");
    LEAVES_ALONE("with other options", FEW_RUN, "-n", "6");
    LEAVES_ALONE("with other options", FEW_RUN, "--seed", "1");
    LEAVES_ALONE("with other options", FEW_RUN, "--precision", "bf16");
    LEAVES_ALONE("with other options", FEW_RUN, "--ignore-eos");
    LEAVES_ALONE("with other options", FEW_RUN, "--convention", "latent-eps=config");
    LEAVES_ALONE("with other options", FEW_RUN, "--logit-bias", "5:1");
    LEAVES_ALONE("another model", "generate", "golden/tiny/v3-mtp3", "-n", "5", "--prompts", in, "-o", out);
    write_text(dir, "in.jsonl", "{\"tokens\": [5, 6, 8]}\n{\"tokens\": [8]}\n{\"tokens\": [9, 10], \"id\": \"x\"}\n");
    LEAVES_ALONE("answers another prompt, or was computed", FEW_RUN);
    write_text(dir, "in.jsonl", "{\"tokens\": [5, 6, 7]}\n{\"tokens\": [8]}\n");
    LEAVES_ALONE("answers a prompt that is not there", FEW_RUN);
    write_few();
    size_t size;
    char *text = bytes_of(out, &size), *twice = malloc(2 * size);
    memcpy(twice, text, size);
    memcpy(twice + size, text, size);
    write_file(dir, "out.jsonl", twice, 2 * size);
    LEAVES_ALONE("line 4 answers a prompt for the second time", FEW_RUN);
    free(text);
    free(twice);
}

/* The same, when it is locked; and the prompts themselves. */
TEST(a_file_that_is_in_use_is_left_alone)
{
    write_few();
    write_text(dir, "out.jsonl", "");
    int fd = open(out, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    LEAVES_ALONE("another run is writing it", FEW_RUN);
    close(fd);
    struct said s = RUN("generate", V3, "--prompts", in, "-o", in);
    expect_failure(s, 1, "is no answer of generate --prompts");
    s = RUN("generate", V3, "--prompts", in, "-o", dir);
    expect_failure(s, 1, dir);
    s = RUN("generate", V3, "--prompts", in, "-o", "/nowhere/out.jsonl");
    expect_failure(s, 1, "/nowhere/out.jsonl: No such file");
}

/* ---- files of prompts that are wrong ----------------------------------------------------------------------------------- */

/* Nothing starts, and there is no file. */
static void refuse(const char *line, const char *part)
{
    char text[1024];
    struct stat st;
    snprintf(text, sizeof text, "{\"tokens\": [5]}\n%s\n{\"tokens\": [6]}\n", line);
    write_text(dir, "in.jsonl", text);
    struct said s = RUN(FEW_RUN);
    expect_code(&s, 1);
    if (s.out_size || strchr(s.err, '\n') != s.err + s.err_size - 1 || !strstr(s.err, "in.jsonl: line 2: ") || !strstr(s.err, part))
        fail_msg("%s: wanted one sentence with line 2 and %s: %s%s", line, part, s.out, s.err);
    struct said with_json = RUN(FEW_RUN, "--json");
    expect_code(&with_json, 1);
    json_t *j = parsed(&with_json);
    if (strncmp(string(j, "error"), s.err + 10, s.err_size - 11))
        fail_msg("%s: %s and %s", line, with_json.out, s.err);
    json_decref(j);
    assert_true(stat(out, &st) < 0);
    forget(&s);
    forget(&with_json);
}

TEST(a_line_that_is_wrong_is_named_before_anything_starts)
{
    static const struct {
        const char *line, *part;
    } cases[] = {
        {"{\"tokens\": [5], \"max_token\": 5}", "unknown key \"max_token\"; known are prompt, tokens, messages, id, max_tokens"},
        {"{\"tokens\": [5], \"a\\nb\": 5}", "unknown key \"a\\nb\""},
        {"{\"tokens\": [5]", "column 14: it ends too early"},
        {"{\"tokens\": [5]} {\"tokens\": [6]}", "it is not JSON"},
        {"{\"tokens\": [5], \"tokens\": [6]}", "a key is there twice"},
        {"[5, 6]", "it is [5,6], wanted an object"},
        {"\"Once upon a time\"", "wanted an object"},
        {"Once upon a time", "it is not JSON"},
        {"{}", "wanted one of prompt, tokens and messages, found 0"},
        {"{\"tokens\": null}", "found 0"},
        {"{\"tokens\": [5], \"prompt\": \"x\"}", "found 2"},
        {"{\"tokens\": []}", "tokens is [], wanted"},
        {"{\"tokens\": 5}", "tokens is 5, wanted"},
        {"{\"tokens\": [5, 160]}", "token 1 is 160, outside the vocabulary of 160"},
        {"{\"tokens\": [5, -1]}", "token 1 is -1"},
        {"{\"tokens\": [5, 1.5]}", "token 1 is 1.5"},
        {"{\"tokens\": [\"5\"]}", "token 0 is \"5\""},
        {"{\"tokens\": [4294967301]}", "token 0 is 4294967301"},
        {"{\"tokens\": [99999999999999999999]}", "a number is out of range"},
        {"{\"prompt\": \"x\"}", "tokenizer.json"},
        {"{\"messages\": []}", "tokenizer.json"},
        {"{\"tokens\": [5], \"stop\": \"x\"}", "tokenizer.json"},
        {"{\"tokens\": [5], \"stop\": \"\"}", "stop is \"\", wanted a string that is not empty"},
        {"{\"tokens\": [5], \"stop\": [5]}", "stop is 5"},
        {"{\"tokens\": [5], \"id\": [5]}", "id is [5], wanted a string or a number"},
        {"{\"tokens\": [5], \"max_tokens\": -1}", "max_tokens is -1, wanted an integer from 0 to 1073741824"},
        {"{\"tokens\": [5], \"max_tokens\": 1.5}", "max_tokens is 1.5"},
        {"{\"tokens\": [5], \"max_tokens\": \"9\"}", "max_tokens is \"9\""},
        {"{\"tokens\": [5], \"seed\": -1}", "seed is -1"},
        {"{\"tokens\": [5], \"temperature\": 1e-7}", "wanted 0 or at least 1e-5"},
        {"{\"tokens\": [5], \"temperature\": -1}", "temperature is -1"},
        {"{\"tokens\": [5], \"temperature\": true}", "temperature is true"},
        {"{\"tokens\": [5], \"top_p\": 1.5}", "top_p is 1.5, wanted a number from 0 to 1"},
        {"{\"tokens\": [5], \"top_k\": 1.5}", "top_k is 1.5"},
        {"{\"tokens\": [5], \"draft\": \"guess\"}", "unknown draft method guess"},
        {"{\"tokens\": [5], \"draft\": 5}", "draft is 5"},
        {"{\"tokens\": [5], \"draft\": \"draft-model\"}", "draft-model"},
        {"{\"tokens\": [5], \"draft_tokens\": 16}", "draft_tokens is 16"},
        {"{\"tokens\": [5], \"id\": \"a\\u0000b\"}", "a string holds a zero character"},
        {"{\"tokens\": [5], \"id\": \"\xff\"}", "it is not UTF-8"},
    };
    char line[2048] = "{\"tokens\": [5";
    for (size_t i = 0; i < COUNT(cases); i++)
        refuse(cases[i].line, cases[i].part);
    for (int i = 0; i < 300; i++)
        strcat(line, ",5");
    strcat(line, "]}");
    write_text(dir, "in.jsonl", line);
    expect_failure(RUN("generate", V3, "--prompts", in, "--context", "300"), 1, "line 1: the prompt has 301 tokens, the context 300");
    expect_failure(RUN("generate", V3, "--prompts", in, "--cache-tokens", "200"), 1, "line 1: a prompt of 301 tokens");
}

TEST(files_without_a_prompt_are_refused)
{
    static const char *const empty[] = {"", "\n", "  \r\n\t\n"};
    for (size_t i = 0; i < COUNT(empty); i++) {
        write_text(dir, "in.jsonl", empty[i]);
        expect_failure(RUN(FEW_RUN), 1, "there is no prompt in it");
    }
    expect_failure(RUN("generate", V3, "--prompts", "/nowhere/in.jsonl"), 1, "/nowhere/in.jsonl");
    expect_failure(RUN("generate", V3, "--prompts", dir), 1, dir);
}

TEST(options_that_make_no_sense_with_it_are_refused)
{
    static const struct {
        const char *part, *arguments[6];
    } cases[] = {
        {"--prompts and --tokens do not go together", {"--tokens", "5"}},
        {"--prompts and --prompt do not go together", {"--prompt", "x"}},
        {"--prompts and --prompt-file do not go together", {"--prompt-file", "x"}},
        {"--prompts and --messages do not go together", {"--chat", "--messages", "x"}},
        {"--prompts and --logprobs do not go together", {"--logprobs", "3"}},
        {"--prompts and --prefill onednn do not go together", {"--prefill", "onednn"}},
        {"--json wants -o", {"--json"}},
        {"-o is empty", {"-o", ""}},
        {"--system wants --chat", {"--system", "x"}},
        {"--max-sequences is 65", {"--max-sequences", "65"}},
        {"--max-sequences is 0", {"--max-sequences", "0"}},
        {"--cache-tokens is 0", {"--cache-tokens", "0"}},
        {"--context is 99999", {"--context", "99999"}},
        {"unknown instruction set sse9", {"--isa", "sse9"}},
        {"many prompts at once", {"--acceptance", "rejection", "--temperature", "1", "--draft", "eagle-reroll"}},
    };
    write_few();
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *arguments[MOST_ARGUMENTS] = {verbatim, "generate", V3, "--prompts", in};
        memcpy(arguments + 5, cases[i].arguments, sizeof cases[i].arguments);
        struct said s = run_to(PIPE, arguments);
        expect_code(&s, 2);
        if (!strstr(s.err, cases[i].part) && !strstr(s.out, cases[i].part))
            fail_msg("wanted %s: %s%s", cases[i].part, s.out, s.err);
        forget(&s);
    }
    expect_failure(RUN("generate", V3, "--tokens", "5", "-o", out), 2, "-o wants --prompts");
    expect_failure(RUN("generate", V3, "--tokens", "5", "--max-sequences", "5"), 2, "--max-sequences wants --prompts");
    expect_failure(RUN("generate", V3, "--tokens", "5", "--cache-tokens", "5"), 2, "--cache-tokens wants --prompts");
}

/* ---- the rest ---------------------------------------------------------------------------------------------------------- */

TEST(prompts_come_from_stdin_and_answers_go_to_stdout)
{
    json_t *answer[MOST], *from_file[MOST];
    write_few();
    struct said s = RUN("generate", V3, "-n", "5", "--prompts", in);
    expect_code(&s, 0);
    if (!strstr(s.err, "3 prompts, 3 at once; cache of ") || !strstr(s.err, "3 of 3 prompts: 6 prompt tokens, 15 new in "))
        fail_msg("bounds and statistics: %s", s.err);
    assert_int_equal(answers_in(s.out, from_file), 3);
    expect_keys(from_file[0], "index:i request:s id:n prompt_tokens:i tokens:a text:n finish_reason:s stop_string:n fingerprint:s");
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
    drop(answer);
    drop(from_file);
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
    expect_keys(j, "prompts:i kept:i answered:i errors:i interrupted:b prompt_tokens:i tokens:i seconds:r tokens_per_second:r passes:i forwards:i "
                   "drafted:i accepted:i draft:s draft_tokens:i max_sequences:i preemptions:i shared_tokens:i cache_tokens:i "
                   "most_cache_tokens_used:i cache_bytes:i pass_bytes:i draft_bytes:i");
    assert_int_equal(integer(j, "prompts"), 3);
    assert_int_equal(integer(j, "tokens"), 15);
    assert_int_equal(integer(j, "prompt_tokens"), 6);
    assert_true(integer(j, "draft_bytes") > 0 && integer(j, "cache_bytes") > 0 && integer(j, "most_cache_tokens_used") > 0);
    json_decref(j);
}

/* A logit that is not a number ends its prompt; that is its answer, also for the next run. */
TEST(an_error_stands_in_place_of_an_answer)
{
    char path[128];
    size_t count;
    json_t *answer[MOST];
    copy_files("golden/tiny/v2-lite", dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    struct golden g = golden_read(path);
    size_t offset = (size_t)((char *)golden_data(&g, "lm_head.weight", &count) - g.bytes);
    golden_close(&g);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, (long)offset + 2 * 77, SEEK_SET);
    fwrite("\xc0\x7f", 1, 2, f);
    fclose(f);
    write_text(dir, "in.jsonl", "{\"tokens\": [5, 6, 7], \"id\": \"a\"}\n{\"tokens\": [5], \"max_tokens\": 0}\n");
    for (int again = 0; again < 2; again++) {
        struct said s = RUN("generate", dir, "-n", "5", "--prompts", in, "-o", out);
        expect_code(&s, 1);
        assert_non_null(strstr(s.err, "1 prompts ended with an error"));
        forget(&s);
        assert_int_equal(read_answers(answer), 2);
        expect_keys(answer[0], "index:i request:s id:s error:s");
        assert_non_null(strstr(string(answer[0], "error"), "token 3"));
        assert_string_equal(string(answer[1], "finish_reason"), "length");
        drop(answer);
    }
}

int main(int argc, char **argv)
{
#define WITH_DIR(test) cmocka_unit_test_setup_teardown(test, make, clear)
    const struct CMUnitTest tests[] = {
        WITH_DIR(each_answer_is_that_of_its_prompt_alone),
        WITH_DIR(drafts_that_lead_the_path_lead_it_to_the_same_place),
        WITH_DIR(messages_go_through_the_chat_template),
        WITH_DIR(what_was_answered_when_a_run_was_killed_is_kept_and_the_rest_is_as_without),
        WITH_DIR(a_line_torn_anywhere_is_cut_off_and_computed_again),
        WITH_DIR(a_file_of_prompts_may_grow),
        WITH_DIR(a_disk_that_is_full_leaves_whole_lines),
        WITH_DIR(a_file_that_is_something_else_is_left_alone),
        WITH_DIR(a_file_that_is_in_use_is_left_alone),
        WITH_DIR(a_line_that_is_wrong_is_named_before_anything_starts),
        WITH_DIR(files_without_a_prompt_are_refused),
        WITH_DIR(options_that_make_no_sense_with_it_are_refused),
        WITH_DIR(prompts_come_from_stdin_and_answers_go_to_stdout),
        WITH_DIR(the_statistics_are_an_object),
        WITH_DIR(an_error_stands_in_place_of_an_answer),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
