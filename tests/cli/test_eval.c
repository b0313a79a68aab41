/* tests/cli/test_eval.c -- `verbatim eval`: the losses are those of the reference, whatever the settings. Runs the
 * program itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "reference/reference.h"
#include "tests/support/process.h"

#include <math.h>

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MODEL "golden/tiny/v3-mtp3"
#define TOKENS 40

static int32_t text[TOKENS];
static char spec[TOKENS * 8];

static double loss_of(const double *logits, int V, int32_t token)
{
    double max = -INFINITY, sum = 0;
    for (int v = 0; v < V; v++)
        max = fmax(max, logits[v]);
    for (int v = 0; v < V; v++)
        sum += exp(logits[v] - max);
    return max + log(sum) - logits[token];
}

static int best_of(const double *logits, int V)
{
    int best = 0;
    for (int v = 1; v < V; v++)
        if (logits[v] > logits[best])
            best = v;
    return best;
}

/* What the reference says of one window of S tokens: sums over its rows. */
struct wanted {
    double loss[4];  /* of the target; of depths 0, 1, 2 */
    int rows[4], agreed[4], in_a_row[4];
};

/* Relaxed acceptance as it is worded, on the reference's rows. */
static struct {
    int topk, begin, end; /* begin -1: all of the text is thinking */
    double delta;
    int starts, strict[3], stands[3], others, thinking;
    double nats;
} relaxed;

static void relaxed_by_hand(const double *logits, const double *depths, const int32_t *tokens, int S, int V)
{
    int open[TOKENS];
    for (int i = 0; i < S; i++) {
        open[i] = relaxed.begin < 0 || relaxed.thinking;
        relaxed.thinking = tokens[i] == relaxed.begin ? 1 : tokens[i] == relaxed.end ? 0 : relaxed.thinking;
    }
    for (int i = 0; i + 2 < S; i++) {
        int strict = 1, stands = 1;
        relaxed.starts++;
        for (int k = 0; k < 3 && i + k + 2 < S; k++) {
            const double *z = logits + (size_t)(i + k + 1) * (size_t)V;
            int d = best_of(depths + ((size_t)k * (size_t)S + (size_t)i) * (size_t)V, V), best = best_of(z, V),
                better = 0;
            double p = exp(-loss_of(z, V, d)), p_best = exp(-loss_of(z, V, best));
            for (int v = 0; v < V; v++)
                better += z[v] > z[d];
            int near = open[i + k + 2] && d != relaxed.begin && d != relaxed.end && better < relaxed.topk &&
                       p >= p_best - relaxed.delta;
            strict &= d == best;
            stands &= d == best || near;
            relaxed.strict[k] += strict;
            relaxed.stands[k] += stands;
            if (stands && d != best) {
                relaxed.others++;
                relaxed.nats += log(p_best / p);
            }
        }
    }
}

static void reference_window(const struct reference *r, const int32_t *tokens, int S, struct wanted *w)
{
    int V = reference_config(r)->vocab_size;
    double *logits = calloc((size_t)S * (size_t)V, sizeof *logits),
           *depths = calloc(3 * (size_t)S * (size_t)V, sizeof *depths);
    vb_error err;
    assert_non_null(logits);
    assert_non_null(depths);
    if (reference_forward(r, NULL, tokens, S, NULL, logits, &err) ||
        reference_modules(r, NULL, tokens, S, 3, depths, &err))
        fail_msg("%s", err.message);
    for (int i = 0; i < S; i++) {
        int all = 1;
        if (i + 1 < S) {
            w->loss[0] += loss_of(logits + (size_t)i * (size_t)V, V, tokens[i + 1]);
            w->rows[0]++;
        }
        for (int k = 0; k < 3 && i + k + 2 < S; k++) {
            const double *row = depths + ((size_t)k * (size_t)S + (size_t)i) * (size_t)V;
            w->loss[k + 1] += loss_of(row, V, tokens[i + k + 2]);
            w->rows[k + 1]++;
            int agrees = best_of(row, V) == best_of(logits + (size_t)(i + k + 1) * (size_t)V, V);
            all &= agrees;
            w->agreed[k + 1] += agrees;
            w->in_a_row[k + 1] += all;
        }
    }
    relaxed_by_hand(logits, depths, tokens, S, V);
    free(logits);
    free(depths);
}

static void expect_near(const char *what, const json_t *value, double wanted)
{
    if (fabs(json_number_value(value) - wanted) > 1e-5) /* nats; an f32 logit of these models is off by 1e-6 or so */
        fail_msg("%s is %.9f, wanted %.9f", what, json_number_value(value), wanted);
}

static void check_against_reference(const char *window, int size)
{
    struct reference *r;
    struct wanted w = {{0}, {0}, {0}, {0}};
    vb_error err;
    double mtp = 0;
    if (reference_open(&r, MODEL, NULL, &err))
        fail_msg("%s", err.message);
    for (int i = 0; i < TOKENS; i += size)
        reference_window(r, text + i, TOKENS - i < size ? TOKENS - i : size, &w);
    reference_close(r);
    json_t *j = JSON("eval", MODEL, "--tokens", spec, "--context", window, "--mtp-loss-scaling-factor", "0.3");
    assert_int_equal(integer(j, "tokens"), TOKENS);
    assert_int_equal(integer(j, "predicted"), w.rows[0]);
    expect_near("main_loss", json_object_get(j, "main_loss"), w.loss[0] / w.rows[0]);
    if (fabs(log(json_number_value(json_object_get(j, "perplexity"))) - w.loss[0] / w.rows[0]) > 1e-5)
        fail_msg("the perplexity is not that of the loss");
    for (size_t k = 0; k < 3; k++) {
        double rows = w.rows[k + 1];
        expect_near("mtp_loss_by_depth", json_array_get(json_object_get(j, "mtp_loss_by_depth"), k),
                    w.loss[k + 1] / rows);
        expect_near("agreement", json_array_get(json_object_get(j, "agreement_by_depth"), k), w.agreed[k + 1] / rows);
        expect_near("acceptance", json_array_get(json_object_get(j, "acceptance_by_depth"), k),
                    w.in_a_row[k + 1] / rows);
        mtp += w.loss[k + 1] / rows / 3;
    }
    expect_near("mtp_loss", json_object_get(j, "mtp_loss"), mtp);
    expect_near("loss", json_object_get(j, "loss"), w.loss[0] / w.rows[0] + 0.3 * mtp);
    json_decref(j);
}

TEST(losses_and_agreement_are_the_references)
{
    check_against_reference("40", 40);
    check_against_reference("16", 16); /* two windows and a half */
}

TEST(relaxed_acceptance_costs_what_the_references_rows_say)
{
    static const struct {
        const char *topk, *delta, *thinking, *window;
    } cases[] = {{"10", "0.6", NULL, "40"}, {"3", "0.02", NULL, "16"}, {"50", "0.03", NULL, "40"},
                 {"1", "0", NULL, "40"}, {"30", "0.6", "85,31", "16"}, {"30", "0.6", "85,7", "40"}};
    struct reference *r;
    vb_error err;
    if (reference_open(&r, MODEL, NULL, &err))
        fail_msg("%s", err.message);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct wanted w = {{0}, {0}, {0}, {0}};
        int size = atoi(cases[i].window), tokens = 0, strict = 0;
        memset(&relaxed, 0, sizeof relaxed);
        relaxed.topk = atoi(cases[i].topk);
        relaxed.delta = atof(cases[i].delta);
        relaxed.begin = cases[i].thinking ? atoi(cases[i].thinking) : -1;
        relaxed.end = cases[i].thinking ? atoi(strchr(cases[i].thinking, ',') + 1) : -1;
        for (int k = 0; k < TOKENS; k += size)
            reference_window(r, text + k, TOKENS - k < size ? TOKENS - k : size, &w);
        const char *thinking = cases[i].thinking ? cases[i].thinking : NULL;
        json_t *j = thinking ? JSON("eval", MODEL, "--tokens", spec, "--context", cases[i].window, "--acceptance",
                                    "relaxed", "--relaxed-topk", cases[i].topk, "--relaxed-delta", cases[i].delta,
                                    "--thinking-tokens", thinking)
                             : JSON("eval", MODEL, "--tokens", spec, "--context", cases[i].window, "--acceptance",
                                    "relaxed", "--relaxed-topk", cases[i].topk, "--relaxed-delta", cases[i].delta);
        const json_t *said = json_object_get(j, "relaxed");
        expect_keys(said, "topk:i delta:r acceptance_by_depth:a tokens_per_forward:r strict_tokens_per_forward:r "
                          "other_tokens:r "
                          "nats_per_token:r lossy:b");
        tokens = strict = relaxed.starts;
        for (int k = 0; k < 3; k++) {
            tokens += relaxed.stands[k];
            strict += relaxed.strict[k];
            expect_near("relaxed acceptance", json_array_get(json_object_get(said, "acceptance_by_depth"), (size_t)k),
                        (double)relaxed.stands[k] / relaxed.starts);
        }
        expect_near("tokens_per_forward", json_object_get(said, "tokens_per_forward"), (double)tokens / relaxed.starts);
        expect_near("strict_tokens_per_forward", json_object_get(said, "strict_tokens_per_forward"),
                    (double)strict / relaxed.starts);
        expect_near("other_tokens", json_object_get(said, "other_tokens"), (double)relaxed.others / tokens);
        expect_near("nats_per_token", json_object_get(said, "nats_per_token"), relaxed.nats / tokens);
        if (relaxed.topk > 1 && relaxed.others == 0)
            fail_msg("case %zu lets no draft stand that strict acceptance turns down", i);
        json_decref(j);
    }
    reference_close(r);
    json_t *j = JSON("eval", MODEL, "--tokens", spec);
    assert_true(json_is_null(json_object_get(j, "relaxed")));
    json_decref(j);
    expect_failure(RUN("eval", MODEL, "--tokens", spec, "--acceptance", "rejection"), 2, "costs nothing");
}

TEST(every_setting_gives_the_same_numbers)
{
    static const char *const settings[][2] = {{"--threads", "1"}, {"--threads", "3"}, {"--prefill-chunk", "1"},
                                              {"--prefill-chunk", "7"}, {"--isa", "scalar"}};
    json_t *first = JSON("eval", MODEL, "--tokens", spec);
    json_object_del(first, "tokens_per_second");
    for (size_t i = 0; i < COUNT(settings); i++) {
        json_t *j = JSON("eval", MODEL, "--tokens", spec, settings[i][0], settings[i][1]);
        json_object_del(j, "tokens_per_second");
        if (!json_equal(j, first))
            fail_msg("%s %s gives other numbers", settings[i][0], settings[i][1]);
        json_decref(j);
    }
    json_decref(first);
}

TEST(a_model_without_modules_has_a_perplexity_alone)
{
    json_t *j = JSON("eval", "golden/tiny/v2", "--tokens", spec);
    expect_keys(j, "tokens:i predicted:i context:i perplexity:r main_loss:r mtp_loss_by_depth:a agreement_by_depth:a "
                   "acceptance_by_depth:a mtp_loss_scaling_factor:r mtp_loss:n loss:r tokens_per_second:r relaxed:n");
    assert_int_equal(json_array_size(json_object_get(j, "mtp_loss_by_depth")), 0);
    assert_true(json_is_null(json_object_get(j, "mtp_loss")));
    assert_true(json_equal(json_object_get(j, "loss"), json_object_get(j, "main_loss")));
    json_decref(j);
}

/* The first numbers of a stored tensor become NaN. */
static void break_tensor(const char *dir, const char *name)
{
    char path[128], *header;
    unsigned char length[8];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fread(length, 1, 8, f), 8);
    size_t size = length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16;
    header = malloc(size);
    assert_true(header && fread(header, 1, size, f) == size);
    json_t *tensors = json_loadb(header, size, 0, NULL);
    json_t *offsets = json_object_get(json_object_get(tensors, name), "data_offsets");
    assert_non_null(offsets);
    fseek(f, (long)(8 + size) + (long)json_integer_value(json_array_get(offsets, 0)), SEEK_SET);
    assert_int_equal(fwrite("\xff\xff\xff\xff", 1, 4, f), 4);
    assert_int_equal(fclose(f), 0);
    json_decref(tensors);
    free(header);
}

TEST(logits_that_are_not_finite_end_it)
{
    char dir[64];
    make_dir(dir);
    copy_files("golden/tiny/v2", dir);
    break_tensor(dir, "model.norm.weight");
    expect_failure(RUN("eval", dir, "--tokens", "1,2,3"), 1, "token 1 are not finite");
    remove_dir(dir);
}

TEST(what_cannot_be_evaluated_is_refused_in_a_sentence)
{
    expect_failure(RUN("eval", MODEL), 2, "--file and --tokens");
    expect_failure(RUN("eval", MODEL, "--tokens", "1", "--file", "x"), 2, "both");
    expect_failure(RUN("eval", MODEL, "--tokens", "1"), 2, "2 or more");
    expect_failure(RUN("eval", MODEL, "--tokens", "1,2,99999"), 2, "outside the vocabulary");
    expect_failure(RUN("eval", MODEL, "--tokens", "1,2", "--context", "99999999"), 2, "max_position_embeddings");
    expect_failure(RUN("eval", MODEL, "--tokens", "1,2", "--mtp-loss-scaling-factor", "much"), 2, "a number");
    expect_failure(RUN("eval", "golden/tale", "--file", "/nowhere.txt"), 1, "/nowhere.txt");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_agreement_are_the_references),
        cmocka_unit_test(relaxed_acceptance_costs_what_the_references_rows_say),
        cmocka_unit_test(every_setting_gives_the_same_numbers),
        cmocka_unit_test(a_model_without_modules_has_a_perplexity_alone),
        cmocka_unit_test(logits_that_are_not_finite_end_it),
        cmocka_unit_test(what_cannot_be_evaluated_is_refused_in_a_sentence),
    };
    find_verbatim(argc, argv);
    for (int i = 0; i < TOKENS; i++) {
        text[i] = (i * 37 + 11) % 128;
        sprintf(spec + strlen(spec), i ? ",%d" : "%d", (int)text[i]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
