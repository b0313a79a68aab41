/* tests/cli/test_trace.c -- `verbatim trace` from outside: every trace is followed line by line with caches, tokens and
 * drafts kept here, and each number in it must be the one that follows. Runs the program itself (argv[1], or
 * ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

#define TINY "golden/tiny/"
#define MOST_ROWS 256
#define DEPTHS 16 /* of MTP; cache 0 is the target's, 1 + k that of depth k */

static json_t *lines_of(const struct said *s)
{
    json_t *lines = json_array();
    char *place = NULL, *copy = strdup(s->out);
    if (!s->out_size || s->out[s->out_size - 1] != '\n')
        fail_msg("%s: the last line does not end", s->command);
    for (char *line = strtok_r(copy, "\n", &place); line; line = strtok_r(NULL, "\n", &place))
        if (json_array_append_new(lines, json_loads(line, JSON_REJECT_DUPLICATES, NULL)))
            fail_msg("%s: a line is no JSON object: %.300s", s->command, line);
    free(copy);
    return lines;
}

/* ---- a trace, followed ------------------------------------------------------------------------------------------- */

struct follower {
    const char *command;
    const json_t *pass;
    size_t line;
    int phantom, token_positions, zeros, keep, vanilla, reroll; /* what was asked for */
    long long tokens[MOST_ROWS], count, prompt, padded_to; /* padded_to: rows of a padded pass, or 0 */
    long long length[1 + DEPTHS];
    long long made[1 + DEPTHS][MOST_ROWS]; /* the line that made this hidden row, or 0 */
    long long drafts[DEPTHS], proposed, round, accepted, forwards;
    long long handed;                      /* hidden rows of the target that the drafter has: 0.. */
    long long aside;                       /* 1 + the row of depth 0 whose place a row of zeros has, in a dummy slot;
                                              else 0 */
    int judged;                            /* the target's pass of this round was seen */
};

#define EXPECT(f, what, is, wanted) \
    do { \
        long long is_ = (is), wanted_ = (wanted); \
        if (is_ != wanted_) \
            wrong(f, what, is_, wanted_); \
    } while (0)

static void wrong(const struct follower *f, const char *what, long long is, long long wanted)
{
    char *text = json_dumps(f->pass, JSON_COMPACT);
    fail_msg("%s: line %zu: %s is %lld, wanted %lld: %s", f->command, f->line, what, is, wanted, text);
}

static const json_t *list(const struct follower *f, const char *key) { return json_object_get(f->pass, key); }
static long long at(const struct follower *f, const char *key, size_t i)
{
    return json_integer_value(json_array_get(list(f, key), i));
}

static void cut(struct follower *f, const char *key)
{
    for (size_t i = 0; i < json_array_size(list(f, key)); i++) {
        const json_t *c = json_array_get(list(f, key), i), *depth = json_object_get(c, "depth");
        long long cache = json_is_null(depth) ? 0 : 1 + json_integer_value(depth);
        EXPECT(f, "the cache that is cut", !strcmp(string(c, "cache"), "target"), cache == 0);
        EXPECT(f, "the end of the rows that were cut", integer(c, "first") + integer(c, "rows"), f->length[cache]);
        EXPECT(f, "rows cut, more than none", integer(c, "rows") > 0, 1);
        f->length[cache] = integer(c, "first");
        if (cache == 1 && f->aside && f->aside == integer(c, "first") + 1)
            f->length[1] = f->aside, f->aside = 0;
    }
}

/* The rows of a pass lie behind what its cache holds; padding comes last. */
static void follow_rows(struct follower *f, long long cache, size_t n)
{
    int padding = 0;
    if (cache == 1 && f->zeros && !f->aside && at(f, "index", 0) == f->length[1] - 1)
        f->aside = f->length[1]--;
    for (size_t j = 0; j < n; j++) {
        EXPECT(f, "index", at(f, "index", j), f->length[cache] + (long long)j - (cache ? f->phantom : 0));
        EXPECT(f, "slot", at(f, "slots", j), f->length[cache] + (long long)j + (cache == 1 && f->aside));
        EXPECT(f, "padding behind padding", padding && at(f, "draft", j) >= 0, 0);
        padding |= at(f, "draft", j) < 0;
        if (padding)
            EXPECT(f, "token of padding", at(f, "input_ids", j), 0);
        EXPECT(f, "the piece of padding is null", padding && !json_is_null(json_array_get(list(f, "pieces"), j)), 0);
    }
    f->length[cache] += (long long)n;
    EXPECT(f, "context length", integer(f->pass, "context_length"), f->length[cache]);
    static const char *const keys[] = {"pieces", "index", "slots", "positions", "draft", "hidden"};
    for (size_t k = 0; k < COUNT(keys); k++)
        EXPECT(f, keys[k], (long long)json_array_size(list(f, keys[k])), (long long)n);
}

static void follow_token(struct follower *f, size_t j, long long index)
{
    long long draft = at(f, "draft", j);
    if (draft < 0)
        return;
    EXPECT(f, "number of the draft", draft, index < f->count ? 0 : index - f->count + 1);
    if (draft > 0)
        EXPECT(f, "a draft that was proposed before", draft <= f->proposed, 1);
    EXPECT(f, "input id", at(f, "input_ids", j), draft ? f->drafts[draft - 1] : f->tokens[index]);
}

/* Where a row of a module took its hidden row from: from what came before it, and from the right row. */
static void follow_hidden(struct follower *f, size_t j, long long k, long long row)
{
    const json_t *o = json_array_get(list(f, "hidden"), j), *depth = json_object_get(o, "depth");
    if (json_is_null(o)) {
        EXPECT(f, "zeros in place of a hidden row", at(f, "draft", j) < 0 || row < 0 || f->zeros, 1);
        return;
    }
    EXPECT(f, "a hidden row for the row of zeros", row < 0, 0);
    if (!depth) {
        EXPECT(f, "depth of a module that takes the target's", k, 0);
        EXPECT(f, "hidden row", integer(o, "row"), row);
        EXPECT(f, "a hidden row that was handed over", integer(o, "row") < f->handed, 1);
        return;
    }
    int own = json_integer_value(depth) == k;
    EXPECT(f, "own hidden rows of mtp-vanilla", own && f->vanilla, 0);
    EXPECT(f, "depth of the hidden row", json_integer_value(depth), own ? k : k - 1);
    EXPECT(f, "hidden row", integer(o, "row"), own ? row - 1 : row);
    if (own) /* of the pass before; only eagle-reroll hands on what padding gave */
        EXPECT(f, "the line that made the hidden row", f->made[1 + k][integer(o, "row")], (long long)f->line - 1);
    EXPECT(f, "padding that takes a hidden row", at(f, "draft", j) < 0 && !f->reroll, 0);
    EXPECT(f, "a hidden row that was made before", f->made[1 + json_integer_value(depth)][integer(o, "row")] > 0, 1);
}

static void follow_module(struct follower *f)
{
    long long k = integer(f->pass, "depth"), last = -1;
    size_t n = json_array_size(list(f, "input_ids"));
    EXPECT(f, "depth", k >= 0 && k < DEPTHS && (f->vanilla || k == 0), 1);
    for (size_t j = 0; j < n; j++) {
        long long row = at(f, "index", j), draft = at(f, "draft", j);
        EXPECT(f, "position", at(f, "positions", j), f->token_positions ? row + k + 1 : row);
        follow_token(f, j, row + k + 1);
        follow_hidden(f, j, k, row);
        last = draft >= 0 ? (long long)j : last;
    }
    for (size_t j = 0; j < n; j++)
        if (at(f, "index", j) >= 0)
            f->made[1 + k][at(f, "index", j)] = (long long)f->line;
    size_t chosen = json_array_size(list(f, "chosen"));
    EXPECT(f, "rows that the head reads", (long long)json_array_size(list(f, "lm_head_indices")), (long long)chosen);
    EXPECT(f, "drafts of one pass", chosen <= 1, 1);
    if (chosen) {
        const json_t *c = json_array_get(list(f, "chosen"), 0);
        EXPECT(f, "the row that chooses", integer(c, "row"), last);
        EXPECT(f, "the row that the head reads", at(f, "lm_head_indices", 0), last);
        EXPECT(f, "the place of the draft", at(f, "index", (size_t)last) + k + 2, f->count + f->proposed);
        EXPECT(f, "number of the draft", integer(c, "draft"), f->proposed + 1);
        f->drafts[f->proposed++] = integer(c, "token");
    }
}

static void follow_target(struct follower *f)
{
    size_t n = json_array_size(list(f, "input_ids")), chosen = json_array_size(list(f, "chosen")), drafts = 0,
           committed = 0;
    long long first = at(f, "index", 0), accepted = 0;
    EXPECT(f, "a second judgement of the round", f->judged, 0);
    f->judged = 1;
    for (long long k = 0; k < DEPTHS && !f->keep; k++) { /* row i of depth k took token i+k+1: no draft is in its
                                                            cache */
        long long final = f->count - 1 - k > 0 ? f->count - 1 - k : 0;
        EXPECT(f, "a row that was made of a draft stays in a module's cache", f->length[1 + k] > final + f->phantom, 0);
    }
    for (size_t j = 0; j < n; j++) {
        EXPECT(f, "position", at(f, "positions", j), at(f, "index", j));
        EXPECT(f, "no hidden row is taken", json_is_null(json_array_get(list(f, "hidden"), j)), 1);
        follow_token(f, j, at(f, "index", j));
        drafts += at(f, "draft", j) > 0;
        committed += at(f, "draft", j) == 0;
    }
    EXPECT(f, "drafts", (long long)drafts, f->proposed);
    EXPECT(f, "rows of a padded pass", f->padded_to && first >= f->prompt && (long long)n != f->padded_to, 0);
    EXPECT(f, "the newest token is read when one is chosen", chosen && first + (long long)committed != f->count, 0);
    EXPECT(f, "rows that the head reads", (long long)json_array_size(list(f, "lm_head_indices")),
           chosen ? 1 + (long long)drafts : 0);
    for (size_t i = 0; chosen && i <= drafts; i++)
        EXPECT(f, "the row that the head reads", at(f, "lm_head_indices", i), (long long)(committed - 1 + i));
    for (size_t i = 0; i < chosen; i++) {
        const json_t *c = json_array_get(list(f, "chosen"), i);
        int hit = i < drafts && integer(c, "token") == f->drafts[i];
        EXPECT(f, "the row that chooses", integer(c, "row"), (long long)(committed - 1 + i));
        EXPECT(f, "the accepted draft", integer(c, "draft"), hit ? (long long)i + 1 : 0);
        EXPECT(f, "a choice behind a rejected draft", !hit && i + 1 < chosen, 0);
        accepted += hit;
        f->tokens[f->count + (long long)i] = integer(c, "token");
    }
    EXPECT(f, "accepted", integer(f->pass, "accepted"), accepted);
    f->accepted += accepted;
    f->forwards += first >= f->prompt;
    f->count += (long long)chosen;
    long long stands = chosen ? f->count - 1 : first + (long long)committed;
    cut(f, "cut");
    EXPECT(f, "rows of the target that stand", f->length[0], stands);
    for (size_t i = 0; i < json_array_size(list(f, "hidden_kept")); i++)
        EXPECT(f, "a hidden row that is kept", at(f, "hidden_kept", i), first + (long long)i);
    EXPECT(f, "hidden rows kept", (long long)json_array_size(list(f, "hidden_kept")),
           f->handed >= 0 ? stands - first : 0);
    f->handed = f->handed >= 0 ? stands : f->handed;
}

static void follow_pass(struct follower *f)
{
    int is_target = json_is_null(json_object_get(f->pass, "depth"));
    long long round = integer(f->pass, "round"), cache = is_target ? 0 : 1 + integer(f->pass, "depth");
    expect_keys(f->pass, is_target ? "round:i pass:s depth:n input_ids:a pieces:a index:a slots:a positions:a draft:a "
                                     "parents:a hidden:a "
                                     "context_length:i lm_head_indices:a chosen:a cut:a hidden_kept:a accepted:i "
                                     "cut_before:a"
                                   : "round:i pass:s depth:i input_ids:a pieces:a index:a slots:a positions:a draft:a "
                                     "parents:a hidden:a "
                                     "context_length:i lm_head_indices:a chosen:a cut:a module:i cut_before:a");
    EXPECT(f, "pass", !strcmp(string(f->pass, "pass"), "target"), is_target);
    if (round != f->round) {
        EXPECT(f, "round", round, f->round + 1);
        EXPECT(f, "the round before was judged", f->judged, 1);
        f->round = round;
        f->proposed = f->judged = 0;
    }
    cut(f, "cut_before");
    if (f->judged)
        f->proposed = 0; /* the module reads what was judged; what it proposes now is discarded */
    follow_rows(f, cache, json_array_size(list(f, "input_ids")));
    if (is_target) {
        follow_target(f);
    } else {
        follow_module(f);
        cut(f, "cut");
    }
}

/* Options end with NULL; returns the trace, for more to be asked. */
static json_t *follow(const char *const *arguments, const char *method, const char *convention)
{
    static struct follower f;
    const char *all[MOST_ARGUMENTS] = {verbatim, "trace"};
    for (size_t i = 0; (all[i + 2] = arguments[i]); i++)
        assert_true(i + 4 < MOST_ARGUMENTS);
    struct said s = run_to(PIPE, all);
    expect_code(&s, 0);
    json_t *lines = lines_of(&s), *begin = json_array_get(lines, 0),
           *end = json_array_get(lines, json_array_size(lines) - 1);
    f = (struct follower){.command = s.command, .pass = begin, .vanilla = !strcmp(method, "mtp-vanilla"),
                          .reroll = !strcmp(method, "eagle-reroll"), .keep = !strcmp(method, "eagle-keep"),
                          .phantom = !strcmp(convention, "as=llama.cpp"),
                          .token_positions = !strcmp(convention, "as=llama.cpp") || !strcmp(convention, "as=mindie"),
                          .zeros = !strcmp(convention, "missing-hidden=zeros"),
                          .handed = !strcmp(method, "none") ? -1 : 0};
    expect_keys(begin, "event:s draft:s draft_tokens:i conventions:s padded:b prompt:a prompt_pieces:a");
    expect_keys(end, "event:s tokens:a pieces:a finish_reason:s fingerprint:s stats:o");
    if (json_is_true(json_object_get(begin, "padded")))
        f.padded_to = integer(begin, "draft_tokens") + 1;
    f.prompt = f.count = (long long)json_array_size(json_object_get(begin, "prompt"));
    for (long long i = 0; i < f.count; i++)
        f.tokens[i] = json_integer_value(json_array_get(json_object_get(begin, "prompt"), (size_t)i));
    for (size_t i = 1; i + 1 < json_array_size(lines); i++) {
        f.line = i + 1;
        f.pass = json_array_get(lines, i);
        follow_pass(&f);
    }
    f.pass = end;
    EXPECT(&f, "tokens", (long long)json_array_size(json_object_get(end, "tokens")), f.count - f.prompt);
    for (long long i = f.prompt; i < f.count; i++)
        EXPECT(&f, "token", at(&f, "tokens", (size_t)(i - f.prompt)), f.tokens[i]);
    EXPECT(&f, "accepted", integer(json_object_get(end, "stats"), "accepted"), f.accepted);
    EXPECT(&f, "forwards", integer(json_object_get(end, "stats"), "forwards"), f.forwards);
    forget(&s);
    return lines;
}

static const char *const methods[] = {"mtp-vanilla", "mtp-eagle", "eagle-reroll", "eagle-keep"};

TEST(every_number_of_every_trace_follows_from_those_before_it)
{
    static const char *const conventions[] = {"gate=f32", "as=mindie", "as=llama.cpp", "as=vllm-2025",
                                              "missing-hidden=zeros"};
    static const char *const dirs[] = {TINY "v3-mtp3", TINY "v3"}, *const K[] = {"1", "2", "3", "5"};
    size_t accepted = 0, traces = 0;
    for (size_t i = 0; i < COUNT(methods) * COUNT(conventions) * COUNT(dirs) * COUNT(K); i++) {
        size_t m = i % COUNT(methods), k = i / COUNT(methods) % COUNT(K),
               c = i / COUNT(methods) / COUNT(K) % COUNT(conventions);
        const char *dir = dirs[i / COUNT(methods) / COUNT(K) / COUNT(conventions)];
        for (int padded = 0; padded < 2; padded++) {
            int preset = !strncmp(conventions[c], "as=", 3);
            const char *arguments[] = {dir, "--tokens", "5,6,7,70,9,33", "-n", "14", "--ignore-eos", "--json",
                                       "--draft", methods[m], "--draft-tokens", K[k], preset ? "--as" : "--convention",
                                       conventions[c] + 3 * preset, "--threads", "1", "--prefill-chunk",
                                       i % 3 ? "4" : "100", "--temperature", i % 2 ? "0" : "0.3",
                                       padded ? "--padded" : NULL, NULL};
            json_t *lines = follow(arguments, methods[m], conventions[c]);
            accepted += (size_t)integer(json_object_get(json_array_get(lines, json_array_size(lines) - 1), "stats"),
                                        "accepted");
            traces++;
            json_decref(lines);
        }
    }
    print_message("%zu traces, %zu drafts accepted\n", traces, accepted);
    assert_true(accepted > 50);
}

TEST(a_trace_of_text_is_followed_and_gives_what_generate_gives)
{
    static const char *const all[] = {"mtp-vanilla", "mtp-eagle", "eagle-reroll", "eagle-keep", "none"};
    for (size_t m = 0; m < COUNT(all); m++) {
        const char *arguments[] = {"golden/tale", "--prompt", "Once upon a time", "-n", "40", "--draft", all[m],
                                   "--json", "--threads", "1", NULL};
        json_t *lines = follow(arguments, all[m], ""), *end = json_array_get(lines, json_array_size(lines) - 1);
        json_t *j = JSON("generate", "golden/tale", "--prompt", "Once upon a time", "-n", "40", "--draft", all[m],
                         "--threads", "1");
        assert_true(json_equal(json_object_get(end, "tokens"), json_object_get(j, "tokens")));
        assert_string_equal(string(end, "fingerprint"), string(j, "fingerprint"));
        assert_string_equal(string(end, "finish_reason"), string(j, "finish_reason"));
        assert_int_equal(integer(json_object_get(end, "stats"), "drafted"),
                         integer(json_object_get(j, "stats"), "drafted"));
        json_decref(j);
        json_decref(lines);
    }
}

/* What computed the prompt elsewhere kept the last hidden row: the first draft takes zeros in a slot of its own, and
 * the row of the prompt stays. It is taken again in no later round. */
TEST(a_missing_hidden_row_gets_a_dummy_slot)
{
    const char *arguments[] = {TINY "v3-mtp3", "--tokens", "5,6,7,70,9,33", "-n", "8", "--ignore-eos", "--json",
                               "--draft", "mtp-eagle", "--draft-tokens", "2", "--convention", "missing-hidden=zeros",
                               "--threads", "1", NULL};
    json_t *lines = follow(arguments, "mtp-eagle", "missing-hidden=zeros"), *pass;
    size_t i, rows = 0;
    json_array_foreach(lines, i, pass) {
        if (!json_is_integer(json_object_get(pass, "depth")))
            continue;
        const json_t *index = json_object_get(pass, "index"), *slots = json_object_get(pass, "slots");
        for (size_t j = 0; j < json_array_size(index); j++)
            if (json_integer_value(json_array_get(index, j)) == 5) {
                int zeros = json_is_null(json_array_get(json_object_get(pass, "hidden"), j));
                assert_int_equal(integer(pass, "round"), zeros);
                assert_int_equal(json_integer_value(json_array_get(slots, j)), 5 + zeros);
                rows++;
            }
    }
    assert_int_equal(rows, 2);
    json_decref(lines);
}

static char *text_of(const char *path)
{
    char *text = calloc(1, 1);
    size_t size = 0;
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        fail_msg("%s: %s", path, strerror(errno));
    while (take(fd, &text, &size))
        ;
    close(fd);
    return text;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

TEST(the_table_has_a_line_for_each_pass_and_tells_of_cuts_and_acceptance)
{
    struct said s = RUN("trace", TINY "v3-mtp3", "--tokens", "5,6,7,8", "-n", "8", "--draft", "mtp-vanilla",
                        "--threads", "1");
    expect_code(&s, 0);
    size_t lines = 0, passes;
    for (const char *p = s.out; *p; p++)
        lines += *p == '\n';
    const char *arguments[] = {TINY "v3-mtp3", "--tokens", "5,6,7,8", "-n", "8", "--draft", "mtp-vanilla", "--threads",
                               "1", "--json", NULL};
    json_t *j = follow(arguments, "mtp-vanilla", "");
    passes = json_array_size(j) - 2;
    assert_int_equal(lines, passes + 1);
    assert_non_null(strstr(s.out, "round  pass      input ids "));
    assert_non_null(strstr(s.out, "104 39 66 56  4 5 6 7   4 5 6 7    8        0 1 2 3                       accepted "
                                  "0 of 3; then 58; h4 kept; target cut to 5\n"));
    assert_non_null(strstr(s.out, "m0:0 m0:1 m0:2 m0:3  draft 2: 66; module 1 cut to 3\n"));
    json_decref(j);
    forget(&s);
    s = RUN("trace", TINY "v3-mtp3", "--tokens", "14,6,7", "-n", "5", "--draft", "mtp-eagle", "--draft-tokens", "2",
            "--ignore-eos");
    char *page = text_of("docs/ORACLE.md"), *place = NULL, indented[256];
    for (char *line = strtok_r(s.out, "\n", &place); line; line = strtok_r(NULL, "\n", &place)) {
        snprintf(indented, sizeof indented, "\n    %s\n", line);
        if (!strstr(page, indented))
            fail_msg("docs/ORACLE.md does not show the line %s", line);
    }
    free(page);
    forget(&s);
    s = RUN("trace", TINY "v3-mtp3", "--tokens", "5,6,7,8", "-n", "8", "--draft", "eagle-reroll", "--as", "mindie",
            "--padded", "--draft-tokens", "2");
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, " (0) (0) ")); /* padding */
    assert_non_null(strstr(s.out, "first module 0 cut to 3; draft 1: ")); /* cut before the pass, whose row is made
                                                                             again */
    forget(&s);
}

/* ---- the files --------------------------------------------------------------------------------------------------- */

static size_t files_in(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

#define SHORT "--tokens", "5,6,7", "-n", "4", "--threads", "1"

TEST(a_page_that_cannot_be_written_is_one_sentence_and_leaves_nothing)
{
    char dir[64], path[128], taken[128];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/no/page.html", dir);
    expect_failure(RUN("trace", TINY "v3", SHORT, "--html", path), 1, "No such file or directory");
    snprintf(taken, sizeof taken, "%s/taken", dir);
    assert_int_equal(mkdir(taken, 0755), 0);
    expect_failure(RUN("trace", TINY "v3", SHORT, "--html", taken), 1, "taken: ");
    assert_int_equal(files_in(dir), 1);
    assert_int_equal(files_in(taken), 0);
    assert_int_equal(rmdir(taken), 0);
    snprintf(path, sizeof path, "%s/page.html", dir);
    expect_failure(RUN_TO(SMALL_FILES, "trace", TINY "v3", SHORT, "--html", path), 1, "page.html: ");
    assert_int_equal(files_in(dir), 0);
    expect_failure(RUN("trace", TINY "no-such-model", SHORT, "--html", path), 1, "no-such-model");
    expect_failure(RUN("trace", TINY "v2", SHORT, "--draft", "mtp-eagle", "--html", path), 2, "has no MTP modules");
    expect_failure(RUN("trace", TINY "v3", "--tokens", "5,6,70000", "--html", path), 2, "70000");
    assert_int_equal(files_in(dir), 0);
    remove_dir(dir);
}

TEST(page_and_json_lines_hold_the_same_objects)
{
    char dir[64], path[128];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/page.html", dir);
    struct said s = RUN("trace", "golden/tale", "--prompt", "Once", "-n", "9", "--threads", "1", "--html", path);
    expect_code(&s, 0);
    assert_int_equal(s.out_size + s.err_size, 0);
    forget(&s);
    s = RUN("trace", "golden/tale", "--prompt", "Once", "-n", "9", "--threads", "1", "--html", path, "--json",
            "--force");
    expect_code(&s, 0);
    json_t *lines = lines_of(&s);
    char *page = text_of(path), *from = strstr(page, "id=\"trace\">{"), *to;
    assert_non_null(from);
    from = strchr(from, '{');
    assert_non_null(to = strstr(from, "</script>"));
    assert_ptr_equal(strchr(from, '<'), to); /* <|begin_of_sentence|> among them */
    json_t *all = json_loadb(from, (size_t)(to - from), JSON_REJECT_DUPLICATES, NULL),
           *passes = json_object_get(all, "passes");
    assert_non_null(all);
    assert_non_null(strstr(s.out, "<|begin_of_sentence|>"));
    assert_true(json_equal(json_object_get(all, "begin"), json_array_get(lines, 0)));
    assert_true(json_equal(json_object_get(all, "end"), json_array_get(lines, json_array_size(lines) - 1)));
    assert_int_equal(json_array_size(passes) + 2, json_array_size(lines));
    for (size_t i = 0; i < json_array_size(passes); i++)
        assert_true(json_equal(json_array_get(passes, i), json_array_get(lines, i + 1)));
    assert_int_equal(files_in(dir), 1);
    json_decref(all);
    json_decref(lines);
    free(page);
    forget(&s);
    remove_dir(dir);
}

int main(int argc, char **argv)
{
    find_verbatim(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_every_trace_follows_from_those_before_it),
        cmocka_unit_test(a_missing_hidden_row_gets_a_dummy_slot),
        cmocka_unit_test(a_trace_of_text_is_followed_and_gives_what_generate_gives),
        cmocka_unit_test(the_table_has_a_line_for_each_pass_and_tells_of_cuts_and_acceptance),
        cmocka_unit_test(a_page_that_cannot_be_written_is_one_sentence_and_leaves_nothing),
        cmocka_unit_test(page_and_json_lines_hold_the_same_objects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
