/* tests/engine/test_stop.c -- stop strings: the automaton against a search by hand on texts cut anywhere, then runs
 * that end with one: on any draft, at any depth, they end where plain decoding ends. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include "engine/choose/stop.h"
#include "engine/text/tokenizer.h"
#include "engine/base/utf8.h"

/* ---- the automaton ----------------------------------------------------------------------------------------------- */

#define MOST_WORDS 4

struct found {
    size_t end, before; /* bytes up to the one that completes a string; those before the string */
    int word;           /* from 1; 0: none */
};

/* Which string is complete first, the longest of them; in text[0..size). */
static struct found search(const char *text, size_t size, char words[][12], size_t count)
{
    for (size_t end = 1; end <= size; end++) {
        struct found f = {.end = end};
        for (size_t k = 0; k < count; k++) {
            size_t n = strlen(words[k]);
            if (n <= end && !memcmp(text + end - n, words[k], n) && (!f.word || n > end - f.before)) {
                f.word = (int)k + 1;
                f.before = end - n;
            }
        }
        if (f.word)
            return f;
    }
    return (struct found){.end = size, .before = size};
}

/* The first place from which on the text may be the beginning of a string. */
static size_t may_begin(const char *text, size_t size, char words[][12], size_t count)
{
    for (size_t i = 0; i < size; i++)
        for (size_t k = 0; k < count; k++)
            if (size - i < strlen(words[k]) && !memcmp(text + i, words[k], size - i))
                return i;
    return size;
}

TEST(the_first_string_completed_is_found_wherever_the_text_is_cut)
{
    uint64_t random = 3;
    size_t found = 0;
    for (int i = 0; i < 20000; i++) {
        char words[MOST_WORDS][12], text[80];
        const char *strings[MOST_WORDS];
        size_t count = 1 + random_below(&random, MOST_WORDS), size = random_below(&random, sizeof text),
               letters = 1 + random_below(&random, 3);
        for (size_t k = 0; k < count; k++) {
            size_t n = 1 + random_below(&random, 9);
            for (size_t j = 0; j < n; j++)
                words[k][j] = (char)('a' + random_below(&random, letters));
            words[k][n] = '\0';
            strings[k] = words[k];
        }
        for (size_t j = 0; j < size; j++)
            text[j] = (char)('a' + random_below(&random, letters + 1));
        struct found want = search(text, size, words, count);
        struct stop *s;
        int number = 0;
        OK(stop_open(&s, strings, count, NULL, &err));
        for (size_t done = 0; done < size && !number;) {
            size_t n = random_below(&random, 6);
            n = n < size - done ? n : size - done;
            number = stop_push(s, text + done, n);
            done += n;
            size_t safe = number ? want.before : may_begin(text, done, words, count);
            if (stop_safe(s) != safe)
                fail_msg("text %d: %zu bytes are safe of %zu, by hand %zu", i, stop_safe(s), done, safe);
            assert_true(number ? want.end <= done : want.end > done || !want.word);
        }
        if (number && strcmp(words[number - 1], words[want.word - 1]))
            fail_msg("text %d: found %s, by hand %s", i, words[number - 1], words[want.word - 1]);
        assert_int_equal(!number, !want.word);
        found += number > 0;
        stop_close(s, NULL);
    }
    assert_true(found > 5000 && found < 19000);
}

TEST(strings_that_cannot_be_are_refused)
{
    struct stop *s;
    const char *empty[] = {"a", ""}, *bad[] = {"\xff"}, *null[] = {NULL};
    REFUSED(stop_open(&s, empty, 2, NULL, &err), VB_BAD_ARGUMENT, "stop string 2 is empty");
    REFUSED(stop_open(&s, bad, 1, NULL, &err), VB_BAD_ARGUMENT, "stop string 1 is not UTF-8");
    REFUSED(stop_open(&s, null, 1, NULL, &err), VB_BAD_ARGUMENT, "stop string 1 is empty");
    OK(stop_open(&s, NULL, 0, NULL, &err));
    assert_null(s);
    stop_close(s, NULL);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

#define PROMPT 12
#define TOKENS 48

/* A model, a tokenizer whose ids are the model's, and what plain decoding says. */
struct subject {
    vb_model *model;
    struct vb_tokenizer *tokenizer;
    int32_t timeline[PROMPT + TOKENS + VB_MAX_DRAFT];
    struct record plain;
    char text[TOKENS * 40];
    size_t ends[TOKENS]; /* of each token's text */
};

static void subject_open(struct subject *s, const vb_sampling *sampling)
{
    s->model = open_tiny("v3");
    OK(tokenizer_open(&s->tokenizer, "golden/tokenizer", NULL, &err));
    random_tokens(s->model, 11, s->timeline, PROMPT);
    run_plain(s->model, sampling, s->timeline, PROMPT, TOKENS, &s->plain);
    memcpy(s->timeline + PROMPT, s->plain.token, TOKENS * sizeof *s->timeline);
    size_t used = 0, size;
    for (size_t i = 0; i < TOKENS; i++) {
        const char *piece = tokenizer_piece(s->tokenizer, s->plain.token[i], &size);
        assert_true(used + size <= sizeof s->text);
        if (piece)
            memcpy(s->text + used, piece, size);
        used += piece ? size : 0;
        s->ends[i] = used;
    }
}

static void subject_close(struct subject *s)
{
    tokenizer_close(s->tokenizer);
    vb_model_close(s->model);
}

/* A run with a stop string, and what it told of its text as it went. */
struct stopped {
    struct record record;
    size_t safe[TOKENS];
    const char *strings[2];
};

static int record_text(void *context, const vb_event *e)
{
    struct stopped *r = context;
    r->safe[r->record.n] = e->text_bytes;
    return record_event(&r->record, e);
}

static vb_generate_options stopping(struct stopped *r, const struct subject *s, const vb_session *session,
                                    const char *string)
{
    r->record.stop_after = 0;
    vb_generate_options g = recording(&r->record, session, TOKENS);
    g.callback = record_text;
    g.context = r;
    g.tokenizer = s->tokenizer;
    r->strings[0] = "never said \xe2\x99\x9e";
    r->strings[1] = string;
    g.stop = r->strings;
    g.stop_count = 2;
    return g;
}

static void check_stopped(const char *what, const struct subject *s, const struct stopped *r, const char *string)
{
    char words[1][12];
    size_t last = 0;
    strcpy(words[0], string);
    struct found f = search(s->text, s->ends[TOKENS - 1], words, 1);
    assert_int_equal(f.word, 1);
    while (s->ends[last] < f.end)
        last++;
    check_same_prefix(what, &s->plain, &r->record, last + 1);
    if (r->record.n != last + 1 || r->record.result.stop_string != 2 || r->record.result.finish != VB_FINISH_STOP ||
        r->record.result.text_bytes != f.before)
        fail_msg("%s: %zu tokens, stop string %d, %zu bytes of text; by hand %zu, 2, %zu", what, r->record.n,
                 (int)r->record.result.stop_string, r->record.result.text_bytes, last + 1, f.before);
    for (size_t i = 0; i <= last; i++)
        if (r->safe[i] > f.before || r->safe[i] > s->ends[i] || (i && r->safe[i] < r->safe[i - 1]) ||
            (i < last && r->safe[i] != may_begin(s->text, s->ends[i], words, 1)))
            fail_msg("%s: after token %zu %zu bytes are told to be safe", what, i, r->safe[i]);
}

/* A few bytes of the text that are UTF-8 and occur first where token `at` ends, or in its middle. */
static int string_at(const struct subject *s, size_t at, size_t length, char string[12])
{
    size_t end = s->ends[at] - (length % 2 && s->ends[at] - (at ? s->ends[at - 1] : 0) > 1);
    char words[1][12];
    if (length > end || length > 11)
        return 0;
    memcpy(string, s->text + end - length, length);
    string[length] = '\0';
    strcpy(words[0], string);
    return strlen(string) == length && utf8_valid(string, length) == length &&
           search(s->text, end, words, 1).end == end;
}

/* Drafts that are right: the string is completed by a draft of any depth. */
struct right {
    const int32_t *timeline;
    const vb_session *session;
};

static void observe_nothing(struct drafter *d, struct pass *pass, size_t pos, const int32_t *tokens,
                            const float *hidden, size_t n)
{
    (void)d, (void)pass, (void)pos, (void)tokens, (void)hidden, (void)n;
}

static int propose_right(struct drafter *d, struct pass *pass, int32_t *draft, int max, size_t *failed)
{
    const struct right *r = (const struct right *)d;
    (void)pass, (void)failed;
    memcpy(draft, r->timeline + r->session->count, (size_t)max * sizeof *draft);
    return max;
}

static const struct drafter_type right_type = {.name = "right", .observe = observe_nothing, .propose = propose_right,
                                               .rewind = no_rewind, .close = close_nothing};

static size_t share = 1; /* test_stop N: one of N places of the string */

TEST(a_run_ends_with_the_token_that_completes_a_string_whatever_was_drafted)
{
    static const char *const methods[] = {"none", "mtp-vanilla", "mtp-eagle", "eagle-reroll", "eagle-keep", "right"};
    static struct subject s;
    static struct stopped r;
    size_t runs = 0, depths = 0;
    for (int temperature = 0; temperature < 2; temperature++) {
        vb_sampling sampling = {.temperature = (float)temperature, .seed = 4, .presence_penalty = 0.5f,
                                .repetition_penalty = 1.1f};
        subject_open(&s, &sampling);
        for (size_t at = 0; at < TOKENS; at += share)
            for (size_t length = 1; length < 12; length += 2 + at % 2) {
                char string[12], what[128];
                if (!string_at(&s, at, length, string))
                    continue;
                for (size_t m = (at + length) % 3; m < COUNT(methods); m += 3) { /* two methods for each string, in
                                                                                    turn */
                    int K = (int[]){1, 2, 3, 7, 15}[(at + m + length) % 5], right = !strcmp(methods[m], "right");
                    struct right drafter = {.timeline = s.timeline};
                    vb_session_options o = {.context = PROMPT + TOKENS, .threads = 1,
                                            .drafting.method = right ? "none" : methods[m], .drafting.tokens = K,
                                            .sampling = sampling, .poison_cut_rows = 1};
                    vb_session *session = open_session(s.model, &o, s.timeline, PROMPT);
                    drafter.session = session;
                    if (right)
                        give_drafter(session, &right_type, &drafter, K);
                    vb_generate_options g = stopping(&r, &s, session, string);
                    OK(vb_generate(session, &g, &r.record.result, &err));
                    snprintf(what, sizeof what, "\"%s\" with %s, K %d, temperature %d", string, methods[m], K,
                             temperature);
                    check_stopped(what, &s, &r, string);
                    assert_int_equal(session->count, PROMPT + r.record.n);
                    depths |= (size_t)1 << r.record.depth[r.record.n - 1];
                    runs++;
                    if (m == 3) { /* the timeline goes on as if nothing had been */
                        static struct record rest;
                        size_t n = r.record.n;
                        generate(session, TOKENS - n, &rest);
                        for (size_t i = 0; i < rest.n; i++)
                            assert_true(rest.row[i] == s.plain.row[n + i]);
                    }
                    vb_session_close(session);
                }
            }
        subject_close(&s);
    }
    print_message("%zu runs\n", runs);
    assert_true(runs > (share > 1 ? 40 : 150));
    for (int depth = 0; share == 1 && depth <= 7; depth++)
        if (!(depths >> depth & 1))
            fail_msg("no run ended with a draft of depth %d", depth);
}

TEST(sequences_of_a_batch_have_their_own_strings)
{
    enum { SEQUENCES = 3 };
    static struct subject s;
    static struct stopped r[SEQUENCES];
    vb_session *sessions[SEQUENCES];
    vb_generate_options g[SEQUENCES];
    vb_result results[SEQUENCES];
    char strings[SEQUENCES][12];
    subject_open(&s, NULL);
    for (size_t i = 0; i < SEQUENCES; i++) {
        vb_session_options o = {.context = PROMPT + TOKENS, .threads = 1, .drafting.method = mtp_method(i),
                                .drafting.tokens = 3};
        size_t at = 30 - 12 * i;
        sessions[i] = open_session(s.model, &o, s.timeline, PROMPT);
        while (!string_at(&s, at, 4, strings[i]))
            at++;
        g[i] = stopping(&r[i], &s, sessions[i], strings[i]);
    }
    OK(generate_together(sessions, SEQUENCES, g, results, &err));
    for (size_t i = 0; i < SEQUENCES; i++) {
        r[i].record.result = results[i];
        check_stopped(strings[i], &s, &r[i], strings[i]);
        vb_session_close(sessions[i]);
    }
    subject_close(&s);
}

TEST(what_is_held_back_is_told_when_a_run_ends_without_a_stop_string)
{
    static struct subject s;
    static struct stopped r;
    subject_open(&s, NULL);
    char string[12] = "";
    size_t n = 6;
    while (s.ends[n - 1] == s.ends[n] || s.text[s.ends[n] - 1] == 0 || s.text[s.ends[n] - 1] & 0x80)
        n++;
    string[0] = s.text[s.ends[n] - 1]; /* the last byte of token n begins a string that never comes */
    strcat(string, "\x7f");
    for (int how = 0; how < 3; how++) { /* the length, the callback, the context */
        vb_session_options o = {.context = (int32_t)(how == 2 ? PROMPT + n + 1 : PROMPT + TOKENS), .threads = 1};
        vb_session *session = open_session(s.model, &o, s.timeline, PROMPT);
        vb_generate_options g = stopping(&r, &s, session, string);
        g.max_tokens = how == 0 ? n + 1 : TOKENS;
        r.record.stop_after = how == 1 ? n + 1 : 0;
        OK(vb_generate(session, &g, &r.record.result, &err));
        assert_int_equal(r.record.n, n + 1);
        assert_int_equal(r.record.result.text_bytes, s.ends[n]);
        assert_int_equal(r.record.result.stop_string, 0);
        assert_int_equal(r.safe[n], how == 1 ? s.ends[n] - 1 : s.ends[n]);
        vb_session_close(session);
    }
    vb_session *session = open_session(s.model, &(vb_session_options){.context = 60, .threads = 1}, s.timeline, PROMPT);
    vb_generate_options g = stopping(&r, &s, session, string);
    g.tokenizer = NULL;
    REFUSED(vb_generate(session, &g, &r.record.result, &err), VB_BAD_ARGUMENT, "no tokenizer");
    vb_session_close(session);
    subject_close(&s);
}

int main(int argc, char **argv)
{
    share = argc > 1 ? (size_t)atoi(argv[1]) : 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_string_completed_is_found_wherever_the_text_is_cut),
        cmocka_unit_test(strings_that_cannot_be_are_refused),
        cmocka_unit_test(a_run_ends_with_the_token_that_completes_a_string_whatever_was_drafted),
        cmocka_unit_test(sequences_of_a_batch_have_their_own_strings),
        cmocka_unit_test(what_is_held_back_is_told_when_a_run_ends_without_a_stop_string),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
