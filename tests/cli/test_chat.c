/* tests/cli/test_chat.c -- talking to the model: `generate --chat`, `chat`, Ctrl-C, --logprobs. The bundled model with
 * a chat template beside it (skipped without it; what it answers means nothing), a terminal where one is needed. Runs
 * the program itself in the repository's root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pty.h>
#include <sys/ioctl.h>

#include "tests/support/golden.h"
#include "tests/support/process.h"
#include "tests/support/tiny.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define V3 "golden/tiny/v3"
#define TEMPLATE \
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>{{ mood }}"

static char dir[64]; /* golden/tale with a chat template */

static int make_chat_model(void **unused)
{
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    char from[4096], to[128], here[2048];
    (void)unused;
    make_dir(dir);
    if (access("golden/tale/config.json", R_OK) || !getcwd(here, sizeof here))
        return 0;
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(from, sizeof from, "%s/golden/tale/%s", here, files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    write_file(dir, "chat_template.jinja", TEMPLATE, strlen(TEMPLATE));
    return 0;
}

static int remove_chat_model(void **unused)
{
    (void)unused;
    remove_dir(dir);
    return 0;
}

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static const char *text_file(const char *name, const char *text)
{
    write_file(dir, name, text, strlen(text));
    return path_of(name);
}

#define NEEDS_TALE if (access(path_of("config.json"), R_OK)) skip()

/* ---- generate --chat --------------------------------------------------------------------------------------------- */

static void expect_same_run(json_t *a, json_t *b)
{
    static const char *const keys[] = {"prompt_tokens", "tokens", "text", "fingerprint"};
    for (size_t i = 0; i < COUNT(keys); i++)
        if (!json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i])))
            fail_msg("%s: %s and %s", keys[i], json_dumps(a, 0), json_dumps(b, 0));
    json_decref(a);
    json_decref(b);
}

#define CHAT(...) JSON("generate", dir, "--chat", "-n", "6", __VA_ARGS__)
#define PLAIN(text) JSON("generate", dir, "--no-bos", "-n", "6", "--prompt", text)

TEST(chat_is_the_prompt_that_the_template_writes)
{
    NEEDS_TALE;
    static const char bos[] = "<|begin_of_sentence|>";
    char text[256];
    snprintf(text, sizeof text, "%s<user>Hello\n<assistant>", bos);
    expect_same_run(CHAT("--prompt", "Hello"), PLAIN(text));
    expect_same_run(CHAT("--prompt-file", text_file("p", "Hello")), PLAIN(text));
    snprintf(text, sizeof text, "%s<system>Be brief.\n<user>Hello\n<assistant>", bos);
    expect_same_run(CHAT("--prompt", "Hello", "--system", "Be brief."), PLAIN(text));
    snprintf(text, sizeof text, "%s<system>Be brief.\n<user>H\xc3\xa9\n<assistant>so\n<user>Hello\n<assistant>glad",
             bos);
    expect_same_run(CHAT("--prompt", "Hello", "--system", "Be brief.", "--chat-template-kwargs", "{\"mood\":\"glad\"}",
                         "--messages",
                         text_file("m", "[{\"role\":\"user\",\"content\":\"H\\u00e9\"},{\"role\":\"assistant\","
                                        "\"content\":\"so\"}]")),
                    PLAIN(text));
    snprintf(text, sizeof text, "%s<system>s\n<assistant>", bos);
    expect_same_run(CHAT("--messages", text_file("m", "[{\"role\":\"system\",\"content\":\"s\"}]")), PLAIN(text));
    snprintf(text, sizeof text, "%s%s<user>Hello\n<assistant>", bos, bos); /* asked for by name */
    expect_same_run(CHAT("--prompt", "Hello", "--bos"), PLAIN(text));
}

/* Its template makes one tale of the conversation: what the user writes and what the model answers, in turn. */
TEST(the_bundled_model_can_be_talked_to_as_it_is)
{
    NEEDS_TALE;
    const char *messages = text_file("m", "[{\"role\":\"user\",\"content\":\"There was a\"},"
                                          "{\"role\":\"assistant\",\"content\":\" king.\"}]");
    expect_same_run(JSON("generate", "golden/tale", "--chat", "-n", "6", "--messages", messages, "--prompt", "One day"),
                    JSON("generate", "golden/tale", "-n", "6", "--prompt", "There was a king.\n\nOne day"));
}

#define REFUSED(code, part, ...) expect_failure(RUN("generate", __VA_ARGS__), code, part)

TEST(conversations_that_are_wrong_are_refused)
{
    REFUSED(2, "--system wants --chat", V3, "--prompt", "x", "--system", "y");
    REFUSED(2, "--messages wants --chat", V3, "--prompt", "x", "--messages", "y");
    REFUSED(2, "--chat wants --messages, or", V3, "--chat");
    REFUSED(2, "wanted one of them", V3, "--chat", "--tokens", "5");
    REFUSED(2, "--prompt-file and --tokens, found 2", V3, "--chat", "--prompt", "x", "--prompt-file", "y");
    NEEDS_TALE;
    assert_int_equal(unlink(path_of("chat_template.jinja")), 0);
    REFUSED(1, "there is no chat template", dir, "--chat", "--prompt", "x");
    expect_failure(RUN("chat", dir), 1, "there is no chat template"); /* before a line is read */
    text_file("chat_template.jinja", TEMPLATE);
    REFUSED(1, "No such file", dir, "--chat", "--messages", "/nowhere");
    REFUSED(1, "not an array of messages", dir, "--chat", "--messages", text_file("m", "{}"));
    REFUSED(1, "message 1 is not an object with a role", dir, "--chat", "--messages",
            text_file("m", "[{\"role\":\"user\"},{}]"));
    REFUSED(1, "a key is there twice", dir, "--chat", "--messages",
            text_file("m", "[{\"role\":\"user\",\"role\":\"user\"}]"));
    REFUSED(2, "would be a second one", dir, "--chat", "--system", "s", "--messages",
            text_file("m", "[{\"role\":\"system\",\"content\":\"\"}]"));
    REFUSED(2, "--chat-template-kwargs: not a JSON object", dir, "--chat", "--prompt", "x", "--chat-template-kwargs",
            "[]");
    REFUSED(2, "--chat-template-kwargs: line 1", dir, "--chat", "--prompt", "x", "--chat-template-kwargs", "{");
    REFUSED(1, "--prompt is not valid UTF-8 at byte 1", dir, "--chat", "--prompt", "x\xff");
    text_file("chat_template.jinja", "{{ raise_exception('roles must alternate') }}");
    REFUSED(1, "chat_template.jinja: line 1: the template says: roles must alternate", dir, "--chat", "--prompt", "x");
    text_file("chat_template.jinja", "{% include 'x' %}");
    REFUSED(1, "the tag include is not implemented", dir, "--chat", "--prompt", "x");
    text_file("chat_template.jinja", "");
    REFUSED(2, "the prompt is empty", dir, "--chat", "--prompt", "x");
    text_file("chat_template.jinja", TEMPLATE);
}

/* ---- chat -------------------------------------------------------------------------------------------------------- */

static json_t *line_of(const char **at)
{
    json_error_t why;
    json_t *j = json_loads(*at, JSON_DISABLE_EOF_CHECK, &why);
    if (!j)
        fail_msg("%s: %s", why.text, *at);
    *at = strchr(*at, '\n') + 1;
    return j;
}

static void add(json_t *messages, const char *role, const char *content)
{
    json_array_append_new(messages, json_pack("{s:s,s:s}", "role", role, "content", content));
}

/* Each answer of a conversation has the bits of a run of its own over the whole conversation, and computes less for its
 * prompt. */
static void check_turns(const char *draft, int most_is_kept)
{
    static const char *const said[] = {"Once upon a time", "And then?", "Who was he?"};
    json_t *messages = json_array();
    stdin_of_runs = text_file("lines", "Once upon a time\nAnd then?\n\nWho was he?");
    struct said s = RUN("chat", dir, "-n", "9", "--json", "--system", "Tell.", "--draft", draft);
    stdin_of_runs = "/dev/null";
    const char *at = s.out;
    expect_code(&s, 0);
    add(messages, "system", "Tell.");
    for (size_t i = 0; i < COUNT(said); i++) {
        json_t *turn = line_of(&at);
        add(messages, "user", said[i]);
        char *text = json_dumps(messages, 0);
        json_t *alone = JSON("generate", dir, "--chat", "-n", "9", "--messages", text_file("m", text));
        long long prompt = integer(turn, "prompt_tokens"), computed = integer(turn, "prefill_tokens");
        if (computed < 1 || computed > prompt || (i && most_is_kept && computed > prompt / 2))
            fail_msg("turn %zu: %lld of %lld tokens were computed", i, computed, prompt);
        add(messages, "assistant", string(turn, "text"));
        expect_same_run(turn, alone);
        free(text);
    }
    assert_int_equal(*at, 0);
    json_decref(messages);
    forget(&s);
}

TEST(each_turn_computes_what_is_new_and_gives_the_bits_of_a_fresh_run)
{
    NEEDS_TALE;
    check_turns("none", 1);
    check_turns("mtp-eagle", 1);
    check_turns("mtp-vanilla", 1);
}

/* What the template leaves out of earlier turns is cut out of the caches. */
TEST(a_template_that_rewrites_earlier_turns_is_followed)
{
    NEEDS_TALE;
    static const char forgetful[] = "{% for m in messages %}{% if m.role == 'user' %}<{{ loop.revindex }}>{{ m.content "
                                    "}}\n{% endif %}{% endfor %}<a>";
    text_file("chat_template.jinja", forgetful);
    check_turns("mtp-eagle", 0);
    text_file("chat_template.jinja", TEMPLATE);
}

TEST(chat_begins_with_the_messages_of_a_file)
{
    NEEDS_TALE;
    json_t *alone = CHAT("--messages", text_file("m", "[{\"role\":\"user\",\"content\":\"Hello\"}]"));
    struct said s = RUN("chat", dir, "-n", "6", "--json", "--messages", path_of("m"));
    const char *at = s.out;
    expect_code(&s, 0);
    expect_same_run(line_of(&at), alone);
    assert_int_equal(*at, 0);
    forget(&s);
    expect_failure(RUN("chat", dir, "--context", "4", "--messages", path_of("m")), 2, "the context 4");
    s = RUN("chat", dir, "-n", "6"); /* nobody says anything */
    expect_code(&s, 0);
    assert_true(!s.out_size && !s.err_size);
    forget(&s);
}

/* ---- Ctrl-C ------------------------------------------------------------------------------------------------------ */

/* Interrupted when its pipe is full: it waits for its reader then, and goes on waiting when the signal has come. */
TEST(ctrl_c_ends_generate_after_the_current_token_with_130)
{
    NEEDS_TALE;
    struct said s = {.command = "generate", .out = calloc(1, 1), .err = calloc(1, 1)};
    const char *const arguments[] = {verbatim, "generate", dir, "--prompt", "Once", "-n", "2000", "--ignore-eos",
                                     "--threads", "1", NULL};
    char filler[4088];
    int out[2], err[2], status, held = 0;
    memset(filler, '.', sizeof filler);
    assert_true(!pipe(out) && !pipe(err) && fcntl(out[1], F_SETPIPE_SZ, 4096) == 4096);
    assert_int_equal(write(out[1], filler, sizeof filler), sizeof filler);
    pid_t child = fork();
    if (child == 0)
        become(arguments, PIPE, out[1], err[1]);
    close(out[1]);
    close(err[1]);
    WAIT_UNTIL(child, !ioctl(out[0], FIONREAD, &held) && held > (int)sizeof filler);
    WAIT_UNTIL(child, state_of(child) == 'S'); /* a single thread waits for nothing but room in the pipe */
    assert_int_equal(kill(child, SIGINT), 0);
    WAIT_UNTIL(child, !handles(child, SIGINT)); /* it got the signal: the handler is for one */
    listen_to(child, (int[]){out[0], err[0]}, PIPE, &s);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 130 || !strstr(s.err, "; interrupted\n") ||
        s.out[s.out_size - 1] != '\n')
        fail_msg("status %x, stderr: %s", status, s.err);
    forget(&s);
}

TEST(with_json_an_interrupted_run_is_whole)
{
    NEEDS_TALE;
    struct said s = {.command = "generate --json", .out = calloc(1, 1), .err = calloc(1, 1)};
    const char *const arguments[] = {verbatim, "generate", dir, "--prompt", "Once upon a time", "-n", "500",
                                     "--ignore-eos", "--json", "--logprobs", "1000", NULL};
    int out[2], terminal, status, err = holding_terminal(&terminal);
    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    if (child == 0)
        become(arguments, PIPE, out[1], terminal);
    close(out[1]);
    WAIT_UNTIL(child, handles(child, SIGINT)); /* it computes, as far as the line that says how much of the prompt is
                                                  read */
    assert_int_equal(kill(child, SIGINT), 0);
    let_on(terminal);
    listen_to(child, (int[]){out[0], err}, PIPE, &s);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 130)
        fail_msg("status %x, stderr: %s", status, s.err);
    json_t *j = parsed(&s);
    assert_string_equal(string(j, "finish_reason"), "interrupted");
    assert_int_equal(json_array_size(json_object_get(j, "logprobs")), json_array_size(json_object_get(j, "tokens")));
    json_decref(j);
    forget(&s);
}

/* ---- a terminal -------------------------------------------------------------------------------------------------- */

struct terminal {
    pid_t child;
    int fd;
    char text[1 << 16];
    size_t n, seen;
};

/* Reads until `what` came, and `more` bytes, after what was waited for before. */
static void await(struct terminal *t, const char *what, size_t more)
{
    time_t end = time(NULL) + PATIENCE;
    for (const char *at; !(at = memmem(t->text + t->seen, t->n - t->seen, what, strlen(what))) ||
                         (size_t)(t->text + t->n - at) < strlen(what) + more;) {
        struct pollfd p = {t->fd, POLLIN, 0};
        ssize_t n = poll(&p, 1, 1000) > 0 ? read(t->fd, t->text + t->n, sizeof t->text - 1 - t->n) : 0;
        t->n += n > 0 ? (size_t)n : 0;
        t->text[t->n] = '\0';
        if (n < 0 || time(NULL) > end || t->n + 1 == sizeof t->text) {
            kill(t->child, SIGKILL);
            fail_msg("wanted \"%s\", the terminal shows: %s", what, t->text + t->seen);
        }
    }
    t->seen = (size_t)((char *)memmem(t->text + t->seen, t->n - t->seen, what, strlen(what)) - t->text) + strlen(what);
}

/* libedit shows its prompt a moment before it reads keys one by one, and what comes between the two may be lost. */
static void await_prompt(struct terminal *t)
{
    struct termios now;
    await(t, "> ", 0);
    WAIT_UNTIL(t->child, !tcgetattr(t->fd, &now) && !(now.c_lflag & ICANON));
}

static void type(struct terminal *t, const char *keys)
{
    assert_int_equal(write(t->fd, keys, strlen(keys)), strlen(keys));
}

static void open_terminal(struct terminal *t, const char *const *arguments)
{
    *t = (struct terminal){0};
    t->child = forkpty(&t->fd, NULL, NULL, &(struct winsize){.ws_row = 24, .ws_col = 200});
    assert_true(t->child >= 0);
    if (t->child == 0) {
        setenv("TERM", "xterm", 1);
        execv(verbatim, (char *const *)(uintptr_t)arguments);
        _exit(127);
    }
}

static int exit_code_after(struct terminal *t, const char *keys)
{
    time_t end = time(NULL) + PATIENCE;
    int status;
    char rest[256];
    type(t, keys);
    for (ssize_t n = 1; n > 0 && time(NULL) < end;) {
        struct pollfd p = {t->fd, POLLIN, 0};
        if (poll(&p, 1, 1000) > 0)
            n = read(t->fd, rest, sizeof rest);
    }
    if (time(NULL) >= end)
        kill(t->child, SIGKILL);
    assert_int_equal(waitpid(t->child, &status, 0), t->child);
    close(t->fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(on_a_terminal_lines_are_edited_and_come_back_and_ctrl_c_ends_an_answer)
{
    NEEDS_TALE;
    struct terminal t;
    open_terminal(&t, (const char *const[]){verbatim, "chat", dir, "-n", "5", NULL});
    await_prompt(&t);
    type(&t, "Helo\002l\n"); /* Ctrl-B: one back */
    await(&t, "length", 0);
    await_prompt(&t);
    type(&t, "\033[A"); /* up: the line before, as it was edited */
    char *shown = t.text + t.seen;
    await(&t, "Hello", 0);
    if (!strstr(shown, "Hello")) {
        kill(t.child, SIGKILL);
        fail_msg("the terminal shows %s", shown);
    }
    type(&t, "\n");
    await(&t, "length", 0);
    await_prompt(&t);
    assert_int_equal(exit_code_after(&t, "\004"), 0); /* Ctrl-D */

    /* the answer is <|begin_of_sentence|> some 2000 times, more than a terminal holds for who does not read on: it
     * cannot end */
    open_terminal(&t, (const char *const[]){verbatim, "chat", dir, "--ignore-eos", "--logit-bias", "0:1000", NULL});
    await_prompt(&t);
    type(&t, "Hello\n");
    await(&t, "Hello\r\n", 40); /* and a part of the answer */
    type(&t, "\003");
    await(&t, "; interrupted", 0);
    await_prompt(&t);
    assert_int_equal(exit_code_after(&t, "\003"), 130);
}

/* ---- --logprobs -------------------------------------------------------------------------------------------------- */

static double logprob(const json_t *j)
{
    const json_t *v = json_object_get(j, "logprob");
    assert_true(json_is_real(v));
    return json_real_value(v);
}

/* Truth: the logits of the standalone NumPy forward. */
TEST(logprobs_are_those_of_the_truth)
{
    static const char *const names[] = {TINY_CHECKPOINTS(TINY_NAME)};
    for (size_t m = 0; m < COUNT(names); m++) {
        struct golden g = golden_open(names[m]);
        size_t n, all;
        /* anywhere in memory */
        const char *tokens = golden_data(&g, "tokens", &n), *logits = golden_data(&g, "logits", &all);
        char ids[2048], model[64], *to = ids;
        size_t V = all / n;
        double row[512], most, sum = 0.0;
        assert_true(V <= COUNT(row));
        memcpy(row, logits + (all - V) * sizeof *row, V * sizeof *row);
        most = row[0];
        for (size_t i = 0; i < n; i++) {
            int64_t id;
            memcpy(&id, tokens + i * sizeof id, sizeof id);
            to += sprintf(to, i ? ",%d" : "%d", (int)id);
        }
        snprintf(model, sizeof model, "golden/tiny/%s", names[m]);
        json_t *j = JSON("generate", model, "--tokens", ids, "-n", "1", "--logprobs", "5", "--temperature", "2.5",
                         "--ignore-eos");
        const json_t *one = json_array_get(json_object_get(j, "logprobs"), 0), *top = json_object_get(one, "top");
        for (size_t i = 0; i < V; i++)
            most = row[i] > most ? row[i] : most;
        for (size_t i = 0; i < V; i++)
            sum += exp(row[i] - most);
        assert_int_equal(integer(one, "token"), json_integer_value(json_array_get(json_object_get(j, "tokens"), 0)));
        assert_int_equal(json_array_size(top), 5);
        for (size_t k = 0; k < 6; k++) {
            const json_t *entry = k < 5 ? json_array_get(top, k) : one;
            double wanted = row[integer(entry, "token")] - most - log(sum);
            size_t larger = 0;
            for (size_t i = 0; i < V; i++)
                larger += row[i] > row[integer(entry, "token")];
            if (fabs(logprob(entry) - wanted) > 1e-4 || (k < 5 && larger != k))
                fail_msg("%s, entry %zu: token %lld has %.9g, wanted %.9g; %zu are larger", names[m], k,
                         integer(entry, "token"), logprob(entry), wanted, larger);
        }
        json_decref(j);
        golden_close(&g);
    }
}

TEST(logprobs_do_not_depend_on_drafts_or_sampling)
{
    json_t *plain = JSON("generate", V3, "--tokens", "5,6,7", "-n", "9", "--logprobs", "3");
    json_t *drafted = JSON("generate", V3, "--tokens", "5,6,7", "-n", "9", "--logprobs", "3", "--draft", "mtp-eagle",
                           "--draft-tokens", "4");
    json_t *hot = JSON("generate", V3, "--tokens", "5,6,7", "-n", "1", "--logprobs", "3", "--temperature", "2",
                       "--top-k", "2");
    json_t *none = JSON("generate", V3, "--tokens", "5,6,7", "-n", "9", "--logprobs", "0");
    const json_t *list = json_object_get(plain, "logprobs");
    assert_int_equal(json_array_size(list), 9);
    assert_true(json_equal(list, json_object_get(drafted, "logprobs")));
    assert_true(json_equal(json_object_get(json_array_get(list, 0), "top"),
                           json_object_get(json_array_get(json_object_get(hot, "logprobs"), 0), "top")));
    assert_int_equal(json_array_size(json_object_get(json_array_get(json_object_get(none, "logprobs"), 0), "top")), 0);
    json_decref(plain);
    json_decref(drafted);
    json_decref(hot);
    json_decref(none);
    REFUSED(2, "--logprobs wants --json", V3, "--tokens", "5", "--logprobs", "3");
}

int main(int argc, char **argv)
{
    find_verbatim(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_is_the_prompt_that_the_template_writes),
        cmocka_unit_test(the_bundled_model_can_be_talked_to_as_it_is),
        cmocka_unit_test(conversations_that_are_wrong_are_refused),
        cmocka_unit_test(each_turn_computes_what_is_new_and_gives_the_bits_of_a_fresh_run),
        cmocka_unit_test(a_template_that_rewrites_earlier_turns_is_followed),
        cmocka_unit_test(chat_begins_with_the_messages_of_a_file),
        cmocka_unit_test(ctrl_c_ends_generate_after_the_current_token_with_130),
        cmocka_unit_test(with_json_an_interrupted_run_is_whole),
        cmocka_unit_test(on_a_terminal_lines_are_edited_and_come_back_and_ctrl_c_ends_an_answer),
        cmocka_unit_test(logprobs_are_those_of_the_truth),
        cmocka_unit_test(logprobs_do_not_depend_on_drafts_or_sampling),
    };
    return cmocka_run_group_tests(tests, make_chat_model, remove_chat_model);
}
