/* tests/engine/test_precision.c -- precision bf16: the engine computes what the reference does, on every checkpoint and
 * with the MTP modules; every setting gives the same bits; what is rounded at open is what a checkpoint that was
 * rounded on disk holds. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include <math.h>

#include "reference/reference.h"
#include "tests/support/golden.h"
#include "tests/support/retype.h"
#include "tests/support/tiny.h"

static const char *const tiny[] = {TINY_CHECKPOINTS(TINY_NAME) TINY_WITH_INDEXER(TINY_NAME)};

static vb_model *open_in(const char *dir, const char *precision)
{
    vb_model *m = NULL;
    vb_model_options o = {.precision = precision};
    OK(vb_model_open(&m, dir, &o, &err));
    return m;
}

static const char *tiny_dir(const char *name)
{
    static char dir[256];
    snprintf(dir, sizeof dir, "golden/tiny/%s", name);
    return dir;
}

/* Moonlight with numbers that bf16 does not hold, everywhere: the embedding, which is the head as well, and the
 * gates. */
static void noisy_checkpoint(char dir[64])
{
    size_t was, is;
    retype(dir,
           &(struct retype){.from = "golden/tiny/moonlight", .linear = DTYPE_F32, .others = DTYPE_F32, .noise = 0x1p-8},
           &was, &is);
    assert_true(was == 0 && is > 0);
}

TEST(precisions_have_names)
{
    vb_model *m;
    vb_model_options o = {.precision = "f32"};
    OK(vb_model_open(&m, tiny_dir("v3"), &o, &err));
    assert_int_equal(m->rounded_bytes, 0);
    vb_model_close(m);
    o.precision = "BF16";
    REFUSED(vb_model_open(&m, tiny_dir("v3"), &o, &err), VB_BAD_ARGUMENT,
            "unknown precision BF16; known are f32, bf16, q8, q4 and tensor");
    o.precision = "";
    REFUSED(vb_model_open(&m, tiny_dir("v3"), &o, &err), VB_BAD_ARGUMENT, "unknown precision ");
    assert_null(m);
}

/* ---- against the reference --------------------------------------------------------------------------------------- */

#define LONG 40
#define SHORT 3
#define PROMPTS 48
#define RUNS 7

struct rows {
    double *at; /* [1 + depths, n, V]: the target's, then each module's */
    size_t n, V, all;
};

static int take_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct rows *r = context;
    (void)hidden;
    for (size_t v = 0; v < r->V; v++)
        r->at[(((size_t)depth + 1) * r->n + index) * r->V + v] = (double)logits[v];
    return 0;
}

static struct rows new_rows(const vb_model *m, size_t n, int depths)
{
    size_t V = (size_t)vb_vocab_size(m), all = (size_t)(1 + depths) * n * V;
    struct rows r = {calloc(all, sizeof(double)), n, V, all};
    assert_non_null(r.at);
    return r;
}

static int expanded; /* nonzero: all rows are computed with prefill expanded */

static void engine_rows(const vb_model *m, const int32_t *tokens, struct rows *r, int depths)
{
    vb_session_options o = {.context = (int32_t)r->n, .threads = 1, .prefill_chunk = 7,
                            .prefill = expanded ? "expanded" : NULL};
    vb_session *s = open_session(m, &o, tokens, r->n);
    OK(vb_evaluate(s, depths, take_row, r, &err));
    vb_session_close(s);
}

static void reference_rows(const struct reference *ref, enum precision precision, uint64_t perturb,
                           const int32_t *tokens, struct rows *r, int depths)
{
    struct reference_options o = {.precision = precision, .perturb = perturb, .expanded = expanded ? (int)r->n : 0};
    OK(reference_forward(ref, &o, tokens, (int)r->n, NULL, r->at, &err));
    if (depths)
        OK(reference_modules(ref, &o, tokens, (int)r->n, depths, r->at + r->n * r->V, &err));
}

struct subject {
    const char *dir;
    vb_model *m;
    struct reference *ref;
    int depths;
};

static int by_size(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

/* How far perturbed runs are: the median, for in some of them a token goes to another expert, and they tell nothing. */
static double spread_of(const struct subject *s, enum precision precision, const int32_t *tokens,
                        const struct rows *exact)
{
    struct rows r = new_rows(s->m, exact->n, s->depths);
    double far[RUNS];
    for (size_t run = 0; run < RUNS; run++) {
        reference_rows(s->ref, precision, run + 1, tokens, &r, s->depths);
        far[run] = distance(r.at, exact->at, r.all);
    }
    free(r.at);
    qsort(far, RUNS, sizeof *far, by_size);
    return far[RUNS / 2];
}

/* A whole text. Somewhere in it a number lies so near to a tie of bf16 that f32's error turns its rounding, which moves
 * what follows by 2^-9 of a number, and so turns others: both here and in the reference's perturbed runs, which move
 * what they round by more than f32 errs (reference.h). So the bound is 8 times their spread, as in test_truth.c; and it
 * is wide. */
static void compare_text(const struct subject *s)
{
    int32_t tokens[LONG];
    struct rows exact = new_rows(s->m, LONG, s->depths), r = new_rows(s->m, LONG, s->depths);
    random_tokens(s->m, 11, tokens, LONG);
    reference_rows(s->ref, PRECISION_BF16, 0, tokens, &exact, s->depths);
    double spread = spread_of(s, PRECISION_BF16, tokens, &exact);
    engine_rows(s->m, tokens, &r, s->depths);
    double within = distance(r.at, exact.at, r.all) / spread;
    if (getenv("VERBOSE"))
        print_message("%-28s %d tokens: engine %.2f times the spread %.3g\n", s->dir, LONG, within, spread);
    if (!(within <= 8.0))
        fail_msg("%s: the engine is %.3g times as far from the reference as perturbed references, allowed are 8",
                 s->dir, within);
    free(exact.at);
    free(r.at);
}

/* Many prompts of three tokens. In most of them, modules and all, no rounding is turned: some thousand numbers are
 * rounded, and one in some ten thousand lies within f32's error (2^-22 of it) of a tie, of which there is one in 2^-8.
 * There the engine is as near as f32 brings it, 8 spreads of the reference perturbed in f32, a thousand times nearer
 * than the precision moves the result. A rounding that is missing, or is one too many, moves every prompt: so a third
 * is enough. */
static void compare_prompts(const struct subject *s)
{
    int32_t tokens[SHORT];
    size_t near = 0;
    double nearest_change = INFINITY, bound = 0;
    struct rows exact = new_rows(s->m, SHORT, s->depths), plain = new_rows(s->m, SHORT, s->depths),
                r = new_rows(s->m, SHORT, s->depths);
    double far[PROMPTS];
    for (uint64_t p = 0; p < PROMPTS; p++) {
        random_tokens(s->m, 100 + p, tokens, SHORT);
        memset(r.at, 0, r.all * sizeof *r.at);
        reference_rows(s->ref, PRECISION_BF16, 0, tokens, &exact, s->depths);
        reference_rows(s->ref, PRECISION_F32, 0, tokens, &plain, s->depths);
        if (p < 8)
            bound = fmax(bound, 8.0 * spread_of(s, PRECISION_F32, tokens, &plain));
        engine_rows(s->m, tokens, &r, s->depths);
        far[p] = distance(r.at, exact.at, r.all);
        nearest_change = fmin(nearest_change, distance(plain.at, exact.at, r.all));
    }
    for (size_t p = 0; p < PROMPTS; p++)
        near += far[p] <= bound;
    if (getenv("VERBOSE"))
        print_message("%-28s %zu of %d prompts within %.3g; the precision changes each by %.3g or more\n", s->dir, near,
                      PROMPTS, bound, nearest_change);
    if (near < PROMPTS / 3)
        fail_msg("%s: only %zu of %d prompts are within %.3g of the reference, what f32 may cost", s->dir, near,
                 PROMPTS, bound);
    if (!(nearest_change > 100.0 * bound)) /* else it would not be seen whether the engine rounds at all */
        fail_msg("%s: a prompt is changed by %.3g only, rounding in f32 by up to %.3g", s->dir, nearest_change, bound);
    free(exact.at);
    free(plain.at);
    free(r.at);
}

static void compare_checkpoint(const char *dir)
{
    struct subject s = {.dir = dir, .m = open_in(dir, "bf16")};
    s.depths = vb_mtp_modules(s.m);
    OK(reference_open(&s.ref, dir, NULL, &err));
    compare_text(&s);
    compare_prompts(&s);
    reference_close(s.ref);
    vb_model_close(s.m);
}

TEST(the_engine_rounds_what_the_reference_rounds_and_nothing_else)
{
    char dir[64];
    for (size_t i = 0; i < COUNT(tiny); i++)
        compare_checkpoint(tiny_dir(tiny[i]));
    noisy_checkpoint(dir);
    compare_checkpoint(dir);
    remove_dir(dir);
}

/* Latents are rounded for values, and neither queries nor keys are. */
TEST(with_prefill_expanded_the_engine_rounds_what_the_reference_rounds)
{
    expanded = 1;
    compare_checkpoint(tiny_dir("v3-mtp3"));
    compare_checkpoint(tiny_dir("v2"));
    expanded = 0;
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static void run_with(const vb_model *m, const struct kernels *k, vb_session_options o, const int32_t *prompt, size_t n,
                     size_t count, struct record *r)
{
    o.context = (int32_t)(n + count);
    vb_session *s = open_session(m, &o, prompt, n);
    s->pass->cx.k = k; /* by itself a session takes the best table of a name */
    s->pass->cx.thread_cost = 1.0; /* threads for the few numbers of these models too */
    generate(s, count, r);
    vb_session_close(s);
}

/* Every table, avx512 without its instructions for bf16 as well, in turns on one model: what one has learnt of a matrix
 * another finds. */
static void expect_same_bits(const char *dir)
{
    static struct record plain[2], other, f32; /* plain: by temperature */
    static const struct { const char *draft; int K, threads, chunk, temperature; } settings[] = {
        {"none", 0, 2, 1, 0}, {"none", 0, 3, 7, 1}, {"mtp-vanilla", 3, 2, 0, 1}, {"mtp-eagle", 5, 1, 7, 0},
        {"eagle-reroll", 2, 3, 0, 1}, {"eagle-keep", 4, 2, 3, 0},
    };
    char what[256];
    int32_t prompt[23];
    for (int first = 0; first < 2; first++) {
        vb_model *m = open_in(dir, "bf16"), *m32 = open_in(dir, "f32");
        random_tokens(m, 5, prompt, COUNT(prompt));
        for (int t = 0; t < 2; t++) {
            vb_session_options o = {.threads = 1, .sampling = {.temperature = (float)t, .seed = 9}};
            run_with(m, kernels_select(first ? "scalar" : "best", NULL), o, prompt, COUNT(prompt), 30, &plain[t]);
            run_with(m32, kernels_select("best", NULL), o, prompt, COUNT(prompt), 30, &f32);
            assert_true(plain[t].result.fingerprint != f32.result.fingerprint);
        }
        for (size_t i = 0; i < COUNT(settings); i++) {
            vb_session_options o = {.sampling = {.temperature = (float)settings[i].temperature, .seed = 9}};
            if (settings[i].K && !vb_mtp_modules(m))
                continue;
            o.drafting.method = settings[i].draft;
            o.drafting.tokens = settings[i].K;
            o.threads = settings[i].threads;
            o.exact_threads = 1;
            o.prefill_chunk = settings[i].chunk;
            for (const struct kernels *const *k = kernel_tables; *k; k++) {
                if (!kernels_runs_here(*k) || !has_turn(i + (size_t)(k - kernel_tables) + (size_t)first, 3))
                    continue;
                snprintf(what, sizeof what, "%s, bf16, %s%s%s, %s, K %d, %d threads, chunk %d", dir, (*k)->name,
                         (*k)->variant ? " " : "", (*k)->variant ? (*k)->variant : "", o.drafting.method,
                         o.drafting.tokens, o.threads, o.prefill_chunk);
                run_with(m, *k, o, prompt, COUNT(prompt), 30, &other);
                check_same(what, &plain[settings[i].temperature], &other);
            }
        }
        vb_model_close(m);
        vb_model_close(m32);
    }
}

TEST(every_setting_gives_the_same_bits_in_bf16)
{
    char dir[64];
    for (size_t i = 0; i < COUNT(tiny); i++)
        expect_same_bits(tiny_dir(tiny[i]));
    noisy_checkpoint(dir);
    expect_same_bits(dir);
    remove_dir(dir);
}

/* Two checkpoints give the same bits in precision bf16; b holds `rounded` numbers that are not BF16. */
static void expect_equal_checkpoints(const char *a, size_t rounded_a, const char *b, size_t rounded_b)
{
    static struct record one, two;
    char what[600];
    int32_t prompt[20];
    vb_model *m = open_in(a, "bf16"), *n = open_in(b, "bf16");
    assert_int_equal(m->rounded_bytes, 2 * rounded_a);
    assert_int_equal(n->rounded_bytes, 2 * rounded_b);
    random_tokens(m, 3, prompt, COUNT(prompt));
    snprintf(what, sizeof what, "%s and %s in bf16", a, b);
    vb_session_options o = {.context = 60, .threads = 1, .drafting.method = vb_mtp_modules(m) ? "mtp-vanilla" : "none",
                            .drafting.tokens = 3};
    run(m, &o, prompt, COUNT(prompt), 40, &one);
    run(n, &o, prompt, COUNT(prompt), 40, &two);
    check_same(what, &one, &two);
    if (one.result.accepted != two.result.accepted || one.result.drafted != two.result.drafted)
        fail_msg("%s: other drafts", what);
    vb_model_close(m);
    vb_model_close(n);
}

TEST(a_checkpoint_widened_on_disk_has_the_same_bits_in_bf16)
{
    static const char *const names[] = {"v3-mtp3", "v2-lite", "moonlight", "glm"}; /* BF16 */
    char dir[64];
    size_t was, is;
    for (size_t i = 0; i < COUNT(names); i++) {
        retype(dir, &(struct retype){.from = tiny_dir(names[i]), .linear = DTYPE_F32, .others = DTYPE_F32}, &was, &is);
        assert_true(was == 0 && is > 0);
        vb_model *m = open_in(dir, "f32");
        size_t head = m->config.tie_word_embeddings ? (size_t)m->config.vocab_size * (size_t)m->config.hidden_size : 0;
        assert_int_equal(m->rounded_bytes, 0);
        vb_model_close(m);
        expect_equal_checkpoints(tiny_dir(names[i]), 0, dir, is + head);
        remove_dir(dir);
    }
}

TEST(a_checkpoint_rounded_on_disk_has_the_same_bits_in_bf16)
{
    static const char *const names[] = {"v3", "v2"}; /* FP8 with scales; F16 */
    char dir[64];
    size_t was, is;
    for (size_t i = 0; i < COUNT(names); i++) {
        retype(dir, &(struct retype){.from = tiny_dir(names[i]), .linear = DTYPE_BF16, .others = DTYPE_OTHER}, &was,
               &is);
        assert_true(was > 0 && is == 0);
        expect_equal_checkpoints(tiny_dir(names[i]), was, dir, 0);
        remove_dir(dir);
    }
}

/* Copies that MTP modules store count as weights where they differ, also by less than bf16 holds. */
TEST(weights_are_counted_as_they_are_stored)
{
    char dir[64];
    size_t was, is;
    retype(dir, &(struct retype){.from = "golden/tiny/v3", .linear = DTYPE_F32, .others = DTYPE_F32, .noise = 0x1p-20},
           &was, &is);
    vb_model *m = open_in(dir, "f32"), *n = open_in(dir, "bf16");
    assert_int_equal(model_mtp_copy(m, 0, 1), MTP_COPY_DIFFERENT);
    assert_int_equal(model_mtp_copy(n, 0, 1), MTP_COPY_DIFFERENT);
    assert_int_equal(model_parameters(m), model_parameters(n));
    vb_model_close(m);
    vb_model_close(n);
    remove_dir(dir);
}

/* ---- what is learnt of matrices ---------------------------------------------------------------------------------- */

TEST(one_expert_with_a_tiny_weight_is_known_for_it_and_no_other_matrix)
{
    static struct record plain, other;
    char dir[64];
    int32_t prompt[20];
    size_t was, is, learnt = 0;
    const struct kernels *learns = NULL;
    for (const struct kernels *const *k = kernel_tables; *k; k++)
        if (kernels_runs_here(*k) && (*k)->learns_magnitudes)
            learns = *k;
    retype(dir, &(struct retype){.from = "golden/tiny/v3-mtp3", .linear = DTYPE_BF16, .others = DTYPE_OTHER,
                                 .tiny = "model.layers.1.mlp.experts.3.up_proj.weight"}, &was, &is);
    vb_model *m = open_in(dir, "bf16");
    assert_true(m->layers[1].is_moe);
    random_tokens(m, 3, prompt, COUNT(prompt));
    run_with(m, kernels_select("scalar", NULL), (vb_session_options){.threads = 1}, prompt, COUNT(prompt), 40, &plain);
    for (size_t i = 0; i < m->magnitudes_used; i++)
        assert_int_equal(m->magnitudes[i], MAGNITUDES_UNKNOWN); /* scalar code does not look */
    for (int again = 0; learns && again < 2; again++) {
        run_with(m, learns, (vb_session_options){.exact_threads = 1, .threads = 2}, prompt, COUNT(prompt), 40, &other);
        check_same("the kernels that look", &plain, &other);
    }
    run_with(m, kernels_select("scalar", NULL), (vb_session_options){.threads = 1}, prompt, COUNT(prompt), 40, &other);
    check_same("scalar code after them", &plain, &other);
    const unsigned char *tiny_one = m->layers[1].moe.experts[3].up_proj.magnitudes;
    for (size_t i = 0; i < m->magnitudes_used; i++) {
        enum magnitudes wanted = m->magnitudes[i] == MAGNITUDES_UNKNOWN ? MAGNITUDES_UNKNOWN : MAGNITUDES_ORDINARY;
        assert_int_equal(m->magnitudes[i], learns && &m->magnitudes[i] == tiny_one ? MAGNITUDES_TINY : wanted);
        learnt += m->magnitudes[i] != MAGNITUDES_UNKNOWN;
    }
    assert_true(!learns || learnt > m->magnitudes_used / 4); /* of experts that were chosen, and not of the modules */
    assert_null(m->layers[1].moe.gate.magnitudes);
    assert_null(m->embed_tokens.magnitudes);
    vb_model_close(m);
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(precisions_have_names),
        cmocka_unit_test(the_engine_rounds_what_the_reference_rounds_and_nothing_else),
        cmocka_unit_test(with_prefill_expanded_the_engine_rounds_what_the_reference_rounds),
        cmocka_unit_test(every_setting_gives_the_same_bits_in_bf16),
        cmocka_unit_test(a_checkpoint_widened_on_disk_has_the_same_bits_in_bf16),
        cmocka_unit_test(a_checkpoint_rounded_on_disk_has_the_same_bits_in_bf16),
        cmocka_unit_test(weights_are_counted_as_they_are_stored),
        cmocka_unit_test(one_expert_with_a_tiny_weight_is_known_for_it_and_no_other_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
