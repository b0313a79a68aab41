/* tests/cli/test_score.c -- `verbatim score`: the numbers are those of the logits, in any batch, and `diff` of such
 * files. Runs the program itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "engine/verbatim.h"
#include "tests/support/cli_files.h"
#include "tests/support/golden.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define TEXTS 5
#define ROUTE "[[0,0,0],[1,2,3],[4,5,6]]"

static const char *const lines[TEXTS] = {
    "{\"id\": \"a\", \"prompt\": [5,6,7], \"response\": [8,9,10,11,12,13]}",
    "{\"id\": \"b\", \"prompt\": [70,9,33,17,2,88,41,5,6,7], \"temperature\": 0.7}",
    "{\"prompt\": [5,6,7], \"response\": [8,9,10,3]}", "{\"prompt\": [4], \"response\": [8]}",
    "{\"id\": 7, \"prompt\": [5,6,7], \"response\": [8,9], \"routed_experts\": [" ROUTE "," ROUTE "," ROUTE "," ROUTE
    "]}"};
static const int firsts[TEXTS] = {3, 1, 3, 1, 3};

static const char *write_lines(int i, const char *name, const char *const *texts, int count)
{
    char all[8192] = "";
    for (int n = 0; n < count; n++)
        strcat(strcat(all, texts[n]), "\n");
    write_text(dir, name, all);
    return in_dir(i, name);
}

/* Returns the lines of a file of scores, by index. */
static void read_scores(const char *path, json_t *scores[TEXTS])
{
    size_t size;
    char *text = bytes_of(path, &size);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *j = json_loads(line, 0, NULL);
        assert_non_null(j);
        assert_true(integer(j, "index") < TEXTS);
        scores[integer(j, "index")] = j;
    }
    free(text);
    for (int i = 0; i < TEXTS; i++)
        assert_non_null(scores[i]);
}

static void forget_scores(json_t *scores[TEXTS])
{
    for (int i = 0; i < TEXTS; i++)
        json_decref(scores[i]);
}

/* ---- the numbers ------------------------------------------------------------------------------------------------- */

static double at(const json_t *j, const char *name, size_t i)
{
    return json_number_value(json_array_get(json_object_get(j, name), i));
}

static void expect_near(const char *what, double got, double wanted)
{
    if (!(fabs(got - wanted) <= 1e-12 * (1 + fabs(wanted))))
        fail_msg("%s is %.17g, wanted %.17g", what, got, wanted);
}

/* Compares the score of a token with the formulas, in another order of operations than the command's. */
static void check_token(const json_t *score, size_t i, const float *z, int V, int token, double T)
{
    double sum = 0, at_T = 0, entropy = 0;
    int rank = 1, best = 0;
    for (int v = V; v-- > 0;) {
        sum += exp((double)z[v]);
        at_T += T > 0 ? exp((double)z[v] / T) : 0;
        rank += z[v] > z[token] || (!(z[v] < z[token]) && v < token);
        best = z[v] >= z[best] ? v : best;
    }
    for (int v = 0; v < V; v++)
        entropy -= exp((double)z[v]) / sum * ((double)z[v] - log(sum));
    expect_near("a log-probability", at(score, "logprobs", i), (double)z[token] - log(sum));
    expect_near("an entropy", at(score, "entropies", i), entropy);
    assert_int_equal(at(score, "ranks", i), rank);
    if (T > 0)
        expect_near("a log-probability at a temperature", at(score, "logprobs_at_temperature", i),
                    (double)z[token] / T - log(at_T));
    const json_t *top = json_array_get(json_array_get(json_object_get(score, "top"), i), 0);
    assert_int_equal(json_integer_value(json_array_get(top, 0)), best);
    expect_near("the best log-probability", json_real_value(json_array_get(top, 1)), (double)z[best] - log(sum));
}

static void check_text(const json_t *score, int line)
{
    char ids[512] = "";
    const json_t *tokens = json_object_get(score, "tokens");
    size_t count = json_array_size(tokens), size;
    for (size_t i = 0; i < count; i++)
        sprintf(ids + strlen(ids), "%s%d", i ? "," : "", token_at(tokens, i));
    write_text(dir, "routes.json", lines[line]);
    if (strstr(lines[line], "routed_experts"))
        done(RUN("logits", V3, "--tokens", ids, "-o", in_dir(6, "logits"), "--force", "--routes-in",
                 in_dir(7, "routes.json")));
    else
        done(RUN("logits", V3, "--tokens", ids, "-o", in_dir(6, "logits"), "--force"));
    char *bytes = bytes_of(in_dir(6, "logits"), &size);
    uint64_t header;
    memcpy(&header, bytes, sizeof header);
    int V = 0;
    sscanf(strstr(bytes + 8, "\"shape\":"), "\"shape\":[%*d,%d]", &V);
    float *z = malloc((size_t)V * sizeof *z);
    double T = line == 1 ? 0.7f : 0;
    assert_int_equal(json_array_size(json_object_get(score, "logprobs")), count - (size_t)firsts[line]);
    for (size_t i = (size_t)firsts[line]; i < count; i++) {
        memcpy(z, bytes + 8 + header + (i - 1) * (size_t)V * sizeof *z, (size_t)V * sizeof *z);
        check_token(score, i - (size_t)firsts[line], z, V, token_at(tokens, i), T);
    }
    free(z);
    free(bytes);
}

TEST(scores_are_those_of_the_logits)
{
    json_t *scores[TEXTS] = {NULL};
    const char *in = write_lines(0, "in.jsonl", lines, TEXTS), *out = in_dir(1, "out.jsonl");
    done(RUN("score", V3, "--file", in, "-o", out, "--logprobs", "2"));
    read_scores(out, scores);
    for (int i = 0; i < TEXTS; i++)
        check_text(scores[i], i);
    assert_string_equal(string(scores[0], "id"), "a");
    assert_int_equal(integer(scores[4], "id"), 7);
    forget_scores(scores);
}

static void expect_same_scores(const char *a, const char *b)
{
    json_t *x[TEXTS] = {NULL}, *y[TEXTS] = {NULL};
    read_scores(a, x);
    read_scores(b, y);
    for (int i = 0; i < TEXTS; i++)
        if (!json_equal(x[i], y[i]))
            fail_msg("%s and %s differ in text %d", a, b, i);
    forget_scores(x);
    forget_scores(y);
}

TEST(no_number_depends_on_the_batch_and_a_run_can_be_resumed)
{
    const char *in = write_lines(0, "in.jsonl", lines, TEXTS), *out = in_dir(1, "out.jsonl"),
               *other = in_dir(2, "other.jsonl");
    done(RUN("score", V3, "--file", in, "-o", out, "--routes", "--threads", "1", "--max-sequences", "1"));
    done(RUN("score", V3, "--file", in, "-o", other, "--routes", "--threads", "3", "--prefill-chunk", "2",
             "--cache-tokens", "45"));
    expect_same_scores(out, other);
    size_t size;
    char *bytes = bytes_of(other, &size);
    char *second = strchr(bytes, '\n') + 1;
    second[strcspn(second, "\n") / 2] = '\0'; /* as after a crash */
    write_text(dir, "other.jsonl", bytes);
    free(bytes);
    json_t *j = JSON("score", V3, "--file", in, "-o", other, "--routes");
    assert_int_equal(integer(j, "kept"), 1);
    assert_int_equal(integer(j, "scored"), TEXTS - 1);
    json_decref(j);
    expect_same_scores(out, other);
    expect_failure(RUN("score", V3, "--file", in, "-o", other), 1,
                   "was computed by another model or with other options");
    struct said s = RUN("score", V3, "--file", in, "--json");
    expect_code(&s, 2);
    assert_non_null(strstr(s.out, "--json wants -o"));
    forget(&s);
    const char *const forced[] = {lines[4]};
    j = JSON("score", V3, "--file", write_lines(3, "one.jsonl", forced, 1), "-o", in_dir(4, "one.out"), "--routes");
    json_decref(j);
    bytes = bytes_of(in_dir(4, "one.out"), &size);
    j = json_loads(bytes, 0, NULL);
    assert_int_equal(strlen(string(j, "routed_experts")), 4 * 3 * 3 * 4 * 4 / 3); /* 4 tokens, 3 layers, 3 experts,
                                                                                     int32 in base64 */
    assert_int_equal(strncmp(string(j, "routed_experts"), "AAAAAAAAAAAAAAAAAQAAAAIAAAADAAAABAAAAAUAAAAGAAAA", 48), 0);
    json_decref(j);
    free(bytes);
}

static double first_logprob(const char *in, const char *context)
{
    size_t size;
    const char *out = in_dir(5, "yarn.out");
    json_t *j = JSON("score", V3, "--file", in, "-o", out, "--convention", "yarn=max-len", "--context", context,
                     "--max-sequences", "1");
    json_decref(j);
    char *bytes = bytes_of(out, &size);
    json_t *score = json_loads(bytes, JSON_DISABLE_EOF_CHECK, NULL);
    double logprob = at(score, "logprobs", 8);
    assert_int_equal(integer(score, "index"), 0);
    json_decref(score);
    free(bytes);
    unlink(out);
    return logprob;
}

/* With convention yarn=max-len, the context decides whether YaRN applies, and not the longest line of the file. */
TEST(no_number_depends_on_the_other_lines)
{
    char longer[512] = "{\"prompt\": [5";
    for (int i = 0; i < 80; i++)
        strcat(longer, ",6");
    const char *const both[] = {lines[1], strcat(longer, "]}")};
    const char *one = write_lines(0, "one.jsonl", both, 1), *two = write_lines(1, "two.jsonl", both, 2);
    expect_failure(RUN("score", V3, "--file", two, "--convention", "yarn=max-len"), 2, "--context is missing");
    expect_failure(RUN("generate", V3, "--prompts", two, "--convention", "yarn=max-len"), 2, "--context is missing");
    double with_yarn = first_logprob(one, "200"), without = first_logprob(one, "20");
    assert_true(with_yarn == first_logprob(two, "200"));
    assert_true(with_yarn != without);
}

TEST(invalid_lines_are_one_sentence)
{
    static const char *const bad[][2] = {
        {"{\"prompt\": [5]}", "in.jsonl: line 1: it has 1 tokens; a score wants 2 or more"},
        {"{\"prompt\": [5], \"response\": []}", "line 1: it has 1 tokens"},
        {"{\"prompt\": [5, 6], \"response\": []}", "line 1: the response is empty"},
        {"{\"prompt\": [5, 100000]}", "line 1: token 1 of prompt is 100000, outside the vocabulary of "},
        {"{\"prompt\": [5, 6], \"respons\": [7]}",
         "unknown key \"respons\"; known are id, prompt, response, temperature, routed_experts and indexer_topk"},
        {"{\"prompt\": [5, 6], \"temperature\": -1}", "temperature is -1, wanted 0 or a number"},
        {"{\"prompt\": \"text\", \"response\": [6]}", "tokenizer"},
        {"{\"prompt\": [5, 6, 7, 8], \"routed_experts\": [[[0,0,0],[1,2,3],[4,5,6]]]}",
         "routed_experts has rows for 1 tokens, the text has 4"},
        {"{\"prompt\": [5, 6], \"routed_experts\": [[[0,0,0],[1,2,3],[4,5,5]]]}",
         "the routes send token 0 in layer 2 to the same expert twice"},
        {"[5, 6]", "line 1: it is [5,6], wanted an object"},
        {"{", "line 1: column "}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct said s = RUN("score", V3, "--file", write_lines(0, "in.jsonl", bad[i], 1), "-o", in_dir(1, "out.jsonl"));
        if (!strstr(s.err, bad[i][1]) || s.exit_code == 0 || s.out_size)
            fail_msg("%s: %s", bad[i][0], s.err);
        forget(&s);
    }
}

/* ---- diff -------------------------------------------------------------------------------------------------------- */

/* Three texts as another engine would write them; each log-probability is moved by `noise` with changing signs. `form`:
 * 0 SGLang, 1 vLLM, 2 plain lines, 3 plain lines at the temperature. */
static const char *foreign(int i, const char *name, const char *scores_file, int form, double noise, int wrong_token)
{
    static char all[32768];
    json_t *scores[TEXTS] = {NULL};
    char *to = all;
    read_scores(scores_file, scores);
    for (int t = 0; t < TEXTS; t++) {
        const json_t *tokens = json_object_get(scores[t], "tokens");
        size_t count = json_array_size(tokens), first = (size_t)firsts[t];
        const char *key = form == 3 && json_object_get(scores[t], "logprobs_at_temperature") ? "logprobs_at_temperature"
                                                                                             : "logprobs";
        char *ids = json_dumps(tokens, 0);
        to += form == 0   ? sprintf(to, "{\"meta_info\": {\"id\": \"x%d\", \"input_token_logprobs\": [", t)
              : form == 1 ? sprintf(to, "{\"prompt_token_ids\": %s, \"prompt_logprobs\": [", ids)
                          : sprintf(to, "{\"tokens\": %s, \"logprobs\": [", ids);
        free(ids);
        for (size_t k = 0; k < count; k++) {
            double x = k < first ? -1 : at(scores[t], key, k - first) + (k % 2 ? noise : -noise) * (1 + (double)k / 20);
            x += t == 0 && (int)k == wrong_token ? 0.5 : 0;
            int id = token_at(tokens, k);
            const char *comma = k ? ", " : "";
            if (form == 0 && k == first)
                to += sprintf(to, "], \"output_token_logprobs\": ["), comma = "";
            if (form == 0 && k < first)
                to += sprintf(to, "%s[null, %d, null]", comma, id);
            else if (form == 0)
                to += sprintf(to, "%s[%.17g, %d, null]", comma, x, id);
            else if (form == 1 && k == 0)
                to += sprintf(to, "null");
            else if (form == 1 && k < first)
                to += sprintf(to, "%s{\"%d\": {\"logprob\": null, \"rank\": 3}}", comma, id);
            else if (form == 1)
                to += sprintf(to, "%s{\"%d\": {\"logprob\": %.17g, \"rank\": %d}}", comma, id, x,
                              (int)at(scores[t], "ranks", k - first));
            else if (k >= first)
                to += sprintf(to, "%s%.17g", k > first ? ", " : "", x);
        }
        to += sprintf(to, form == 0 ? "]}}\n" : "]}\n");
    }
    forget_scores(scores);
    write_text(dir, name, all);
    return in_dir(i, name);
}

static json_t *compared(int code, const char *a, const char *b)
{
    return json_of_code(code, (const char *const[]){verbatim, "diff", a, b, "--json", NULL});
}

TEST(scores_of_other_engines_are_compared)
{
    const char *in = write_lines(0, "in.jsonl", lines, TEXTS), *ours = in_dir(1, "ours.jsonl");
    done(RUN("score", V3, "--file", in, "-o", ours, "--logprobs", "1"));
    json_t *j = compared(0, ours, ours);
    assert_string_equal(string(j, "verdict"), "identical");
    assert_int_equal(integer(j, "tokens"), 22);
    json_decref(j);
    for (int form = 0; form < 4; form++) {
        j = compared(0, ours, foreign(2, "theirs.jsonl", ours, form, 1e-3, -1));
        if (strcmp(string(j, "verdict"), "rounding") || integer(j, "tokens") != 22 || real(j, "rms") < 1e-3 ||
            real(j, "rms") > 1.5e-3)
            fail_msg("form %d: %s", form, json_dumps(j, 0));
        assert_string_equal(string(j, "convention_a"), form == 3 ? "at the temperature" : "raw");
        json_decref(j);
        j = compared(3, ours, foreign(2, "theirs.jsonl", ours, form, 1e-3, 5));
        const json_t *differences = json_object_get(j, "differences"), *one = json_array_get(differences, 0);
        assert_string_equal(string(j, "verdict"), "structural");
        assert_int_equal(json_array_size(differences), 1);
        assert_string_equal(string(one, "id"), "\"a\"");
        assert_int_equal(integer(one, "index"), 5);
        json_decref(j);
    }
}

/* An error in all tokens moves the estimated bound, and not the measured one. */
TEST(the_bound_of_a_model_finds_an_error_in_all_tokens)
{
    const char *in = write_lines(0, "in.jsonl", lines, TEXTS), *ours = in_dir(1, "ours.jsonl"),
               *theirs = in_dir(3, "bf16.jsonl");
    done(RUN("score", V3, "--file", in, "-o", ours));
    done(RUN("score", V3, "--file", in, "-o", theirs, "--precision", "bf16"));
    json_t *j = json_of_code(0, (const char *const[]){verbatim, "diff", ours, theirs, "--model", V3, "--json", NULL});
    assert_string_equal(string(j, "bound_kind"), "measured");
    assert_true(real(j, "bound") > real(j, "rms") && real(j, "bound") < 20 * real(j, "rms"));
    double bound = real(j, "bound");
    json_decref(j);
    foreign(2, "theirs.jsonl", ours, 0, 2 * bound, -1);
    j = compared(0, ours, in_dir(2, "theirs.jsonl"));
    assert_string_equal(string(j, "bound_kind"), "estimated");
    json_decref(j);
    j = json_of_code(3, (const char *const[]){verbatim, "diff", ours, in_dir(2, "theirs.jsonl"), "--model", V3,
                                              "--json", NULL});
    assert_string_equal(string(j, "verdict"), "structural");
    assert_int_equal(json_array_size(json_object_get(j, "differences")), integer(j, "tokens"));
    json_decref(j);
    j = json_of_code(3, (const char *const[]){verbatim, "diff", ours, theirs, "--model", V3, "--arithmetic", "f32",
                                              "--json", NULL});
    json_decref(j);
}

TEST(ties_and_other_routes_are_told_apart)
{
    static const char
        *const a[] = {"{\"tokens\": [1,2,3,4,5], \"logprobs\": [-1.001,-2.002,-3.001,-4.002], \"ranks\": [1,2,1,4], "
                      "\"routed_experts\": [[[1,2]],[[3,4]],[[5,6]],[[7,8]]]}"};
    static const char
        *const tie[] = {"{\"tokens\": [1,2,3,4,5], \"logprobs\": [-1.0,-2.0,-3.0,-4.0], \"ranks\": [1,1,1,4]}"};
    static const char *const far[] = {"{\"tokens\": [1,2,3,4,5], \"logprobs\": [-1.0,-2.0,-3.0,-4.0], \"top\": "
                                      "[[[2,-1.0]],[[3,-2.0]],[[9,-1.0]],[[9,-1]]]}"};
    static const char *const route[] = {"{\"tokens\": [1,2,3,4,5], \"logprobs\": [-1.0,-2.0,-3.0,-4.5], "
                                        "\"routed_experts\": [[[2,1]],[[3,4]],[[5,7]],[[7,8]]]}"};
    static const char *const early[] = {"{\"tokens\": [1,2,3,4,5], \"logprobs\": [-1.0,-2.5,-3.0,-4.0], "
                                        "\"routed_experts\": [[[2,1]],[[3,4]],[[5,7]],[[7,8]]]}"};
    static const char *const other[] = {"{\"tokens\": [1,2,3,4,6], \"logprobs\": [-1.0,-2.5,-3.0,-4.0]}"};
    const char *ours = write_lines(0, "a.jsonl", a, 1);
    json_t *j = compared(0, ours, write_lines(1, "b.jsonl", tie, 1));
    assert_string_equal(string(j, "verdict"), "tie");
    json_decref(j);
    j = compared(3, ours, write_lines(1, "b.jsonl", far, 1)); /* token 4 is the best of A, and far from the best of B */
    assert_string_equal(string(j, "verdict"), "structural");
    json_decref(j);
    j = compared(3, ours, write_lines(1, "b.jsonl", route, 1));
    assert_string_equal(string(j, "verdict"), "other route");
    json_decref(j);
    j = compared(3, ours, write_lines(1, "b.jsonl", early, 1)); /* the other route comes later */
    assert_string_equal(string(j, "verdict"), "structural");
    json_decref(j);
    expect_failure(RUN("diff", ours, write_lines(1, "b.jsonl", other, 1)), 1, "no text with the same tokens");
    expect_failure(RUN("diff", ours, write_lines(1, "b.jsonl", lines, 1)), 1,
                   "b.jsonl: text 1: wanted arrays tokens and logprobs");
    write_text(dir, "b.jsonl", "{\"tokens\"");
    expect_failure(RUN("diff", ours, in_dir(1, "b.jsonl")), 1, "b.jsonl: line 1: column ");
    write_text(dir, "b.jsonl", "");
    expect_failure(RUN("diff", ours, in_dir(1, "b.jsonl")), 1, "there is no text in it");
    struct said s = RUN("diff", ours, write_lines(1, "b.jsonl", route, 1));
    expect_code(&s, 3);
    assert_non_null(strstr(s.out,
                           "other route  text 1, token 4 (id 5): A = -4.002, B = -4.5; row 2 took other experts\n"));
    assert_non_null(strstr(s.out, "3 rounding, 1 other route\nother route\n"));
    forget(&s);
}

/* Copies row 4 of lm_head to row 9 in a copy of a checkpoint: then both tokens have the same logit everywhere. */
static void make_tokens_alike(void)
{
    size_t n;
    char path[128];
    copy_files("golden/tiny/glm", dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    struct golden g = golden_read(path);
    char *w = golden_data(&g, "lm_head.weight", &n);
    size_t row = 2 * 64; /* BF16 */
    assert_int_equal(n, 136 * 64);
    memcpy(w + 9 * row, w + 4 * row, row);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(g.bytes, 1, g.size, f), g.size);
    fclose(f);
    golden_close(&g);
}

TEST(the_second_of_two_equal_logits_has_the_next_rank)
{
    static const char *const texts[TEXTS] = {
        "{\"prompt\": [5,6,7], \"response\": [4]}", "{\"prompt\": [5,6,7], \"response\": [9]}",
        "{\"prompt\": [70,33], \"response\": [4]}", "{\"prompt\": [70,33], \"response\": [9]}", "{\"prompt\": [5,6]}"};
    json_t *scores[TEXTS];
    make_tokens_alike();
    const char *in = write_lines(0, "texts.jsonl", texts, TEXTS), *out = in_dir(1, "scores.jsonl");
    done(RUN("score", dir, "--file", in, "-o", out, "--logprobs", "136"));
    read_scores(out, scores);
    for (int i = 0; i < 4; i += 2) {
        int rank = (int)at(scores[i], "ranks", 0);
        assert_int_equal((int)at(scores[i + 1], "ranks", 0), rank + 1);
        assert_true(at(scores[i], "logprobs", 0) == at(scores[i + 1], "logprobs", 0));
        json_t *top = json_array_get(json_object_get(scores[i], "top"), 0); /* in the order of the ranks */
        assert_int_equal(json_integer_value(json_array_get(json_array_get(top, (size_t)rank - 1), 0)), 4);
        assert_int_equal(json_integer_value(json_array_get(json_array_get(top, (size_t)rank), 0)), 9);
    }
    forget_scores(scores);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(scores_are_those_of_the_logits),
        IN_DIR(no_number_depends_on_the_batch_and_a_run_can_be_resumed),
        IN_DIR(no_number_depends_on_the_other_lines),
        IN_DIR(invalid_lines_are_one_sentence),
        IN_DIR(scores_of_other_engines_are_compared),
        IN_DIR(the_bound_of_a_model_finds_an_error_in_all_tokens),
        IN_DIR(ties_and_other_routes_are_told_apart),
        IN_DIR(the_second_of_two_equal_logits_has_the_next_rank),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
