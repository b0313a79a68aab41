/* tests/engine/test_prefill.c -- `prefill` onednn: which rows are oneDNN's, and that nothing else reaches a bit: no
 * draft, thread, instruction set, neighbour in a pass, or way by which a timeline came about. Skipped where oneDNN is
 * not. Runs in the repository's root.
 *
 *     test_prefill [--quick]    --quick: without what takes minutes under an emulator */
#include "tests/support/engine_support.h"

#include <math.h>

#include "engine/session/prefill.h"
#include "ops/onednn.h"
#include "ops/round.h"
#include "reference/reference.h"
#include "tests/support/golden.h"

static const char *const checkpoints[] = {"golden/tiny/glm", "golden/tiny/v3-mtp3", "golden/tiny/moonlight",
                                          "golden/tale"};
static const char *const methods[] = {"mtp-vanilla", "mtp-eagle", "eagle-reroll", "eagle-keep"};
#define TALE checkpoints[3]

/* NULL, or why oneDNN cannot multiply matrices of this type here. */
static const char *onednn_lacks_here(enum onednn_type type)
{
    struct onednn *o;
    const char *why = onednn_open(&o, 1);
    if (!why)
        why = onednn_lacks(o, type);
    onednn_close(o);
    return why;
}

static int quick;

static void leave_out_if_quick(void)
{
    if (quick) {
        printf("skipped: all of this test: it takes minutes under an emulator\n");
        skip();
    }
}

static void need_onednn(enum onednn_type type, const char *what)
{
    const char *why = onednn_lacks_here(type);
    if (why) {
        printf("skipped: %s: %s\n", what, why);
        skip();
    }
}

static vb_session_options onednn_options(size_t context)
{
    return (vb_session_options){.context = (int32_t)context, .threads = 1, .prefill = "onednn"};
}

/* A copy of a checkpoint whose BF16 tensors are F32, of the same values. */
static void widened_copy(char dir[64], const char *from)
{
    char path[256];
    size_t used = 0, total, count;
    copy_checkpoint(dir, from);
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    struct golden g = golden_read(path);
    json_t *header = json_object(), *old;
    const char *name;
    float *data = calloc(2, g.size);
    assert_non_null(data);
    json_object_foreach(g.header, name, old) {
        const uint16_t *codes = strcmp(name, "__metadata__") ? golden_data(&g, name, &count) : NULL;
        if (!codes)
            continue;
        int wide = !strcmp(json_string_value(json_object_get(old, "dtype")), "F32");
        for (size_t i = 0; i < count && !wide; i++) {
            uint32_t bits = (uint32_t)codes[i] << 16;
            memcpy(&data[used + i], &bits, sizeof bits);
        }
        if (wide)
            memcpy(data + used, codes, count * sizeof *data);
        json_object_set_new(header, name,
                            json_pack("{s:s,s:O,s:[I,I]}", "dtype", "F32", "shape", json_object_get(old, "shape"),
                                      "data_offsets", (json_int_t)(4 * used), (json_int_t)(4 * (used + count))));
        used += count;
    }
    char *text = json_dumps(header, JSON_COMPACT), *bytes = safetensors_bytes(text, data, 4 * used, &total);
    write_file(dir, "model.safetensors", bytes, total);
    golden_close(&g);
    json_decref(header);
    free(text);
    free(bytes);
    free(data);
}

/* The checkpoint; or a copy of it in F32, where that is all that oneDNN can multiply. NULL: it is in more files than
 * one, which we cannot copy. */
static vb_model *open_for_onednn(const char *from)
{
    char dir[64], path[256];
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    if (!onednn_lacks_here(ONEDNN_BF16))
        return open_model(from);
    if (access(path, R_OK))
        return NULL;
    widened_copy(dir, from);
    vb_model *m = open_model(dir);
    remove_dir(dir); /* the file stays mapped */
    return m;
}

/* ---- whose a row is: with BF16 weights oneDNN's rows are rounded on their way into a linear layer, the others are not
 * ---- */

/* One linear layer, by its taps: for each row of the timeline, whether what it gave is nearer to the sum over rounded
 * x. */
struct whose {
    const char *input, *output;
    const struct weight_view *w;
    float x[512 * 512];  /* of the pass */
    char rounded[2048];  /* by index; 0: not seen */
    uint64_t pass;
};
enum { EXACT = 1, ROUNDED = 2 };

static double value_of(const struct weight_view *w, size_t n, size_t k)
{
    uint32_t bits = (uint32_t)((const uint16_t *)w->data)[n * w->stride + k] << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static int nearer_to_rounded(const struct weight_view *w, const float *x, const float *y)
{
    float half[512];
    double exact = 0, rounded = 0;
    op_round_bf16(half, x, w->cols);
    for (size_t n = 0; n < w->rows; n++) {
        double sum = 0, sum_of_rounded = 0;
        for (size_t k = 0; k < w->cols; k++) {
            sum += value_of(w, n, k) * (double)x[k];
            sum_of_rounded += value_of(w, n, k) * (double)half[k];
        }
        exact += fabs((double)y[n] - sum);
        rounded += fabs((double)y[n] - sum_of_rounded);
    }
    if (!(fmin(exact, rounded) < 0.01 * fmax(exact, rounded))) /* 2^-9 in each number away from the one, 2^-24 from the
                                                                  other */
        fail_msg("neither: %g and %g away", exact, rounded);
    return rounded < exact;
}

static void look(void *context, const vb_tap *tap)
{
    struct whose *k = context;
    const float *data = tap->data;
    if (!strcmp(tap->name, k->input)) {
        assert_true(tap->rows * k->w->cols <= COUNT(k->x));
        for (size_t r = 0; r < tap->rows; r++)
            memcpy(k->x + r * k->w->cols, data + r * tap->stride, k->w->cols * sizeof *k->x);
        k->pass = tap->pass;
    }
    if (strcmp(tap->name, k->output))
        return;
    assert_int_equal(k->pass, tap->pass);
    for (size_t r = 0; r < tap->rows; r++)
        if (tap->row[r].draft >= 0) /* no padding */
            k->rounded[tap->row[r].index] = nearer_to_rounded(k->w, k->x + r * k->w->cols, data + r * tap->stride)
                                                ? ROUNDED
                                                : EXACT;
}

static void check_whose(const struct whose *k, const char *what, size_t first, size_t end, char wanted)
{
    for (size_t i = first; i < end; i++)
        if (k->rounded[i] != wanted)
            fail_msg("%s: row %zu of %s is %s, wanted %s", what, i, k->output,
                     k->rounded[i] == ROUNDED ? "oneDNN's" : k->rounded[i] == EXACT ? "the contract's" : "not there",
                     wanted == ROUNDED ? "oneDNN's" : "the contract's");
}

static struct whose *watch(const vb_model *m, vb_session_options *o)
{
    struct whose *k = calloc(1, sizeof *k);
    assert_non_null(k);
    k->input = "model.layers.0.input_layernorm.output";
    k->output = "model.layers.0.self_attn.kv_a_proj_with_mqa.output";
    k->w = &m->layers[0].self_attn.kv_a_proj_with_mqa;
    o->tap = look;
    o->tap_context = k;
    return k;
}

#define PROMPT 530
#define MORE 600

TEST(rows_of_the_original_prompt_are_onednns_and_no_others)
{
    static int32_t text[PROMPT + MORE];
    static struct record r;
    need_onednn(ONEDNN_BF16, "which rows are oneDNN's, which is seen by their rounding to BF16");
    vb_model *m = open_model(TALE);
    vb_session_options o = onednn_options(PROMPT + MORE + 40);
    struct whose *k = watch(m, &o);
    random_tokens(m, 1, text, COUNT(text));
    o.drafting.method = "mtp-eagle";
    vb_session *s = open_session(m, &o, text, 20);
    OK(vb_append(s, text + 20, PROMPT - 20, &err)); /* in two pieces */
    generate(s, 10, &r);
    check_whose(k, "prompt", 0, PROMPT, ROUNDED);
    check_whose(k, "decoding", PROMPT, PROMPT + 9, EXACT);
    OK(vb_append(s, text, MORE, &err));
    generate(s, 5, &r);
    check_whose(k, "text appended later", PROMPT + 9, PROMPT + MORE + 14, EXACT);

    memset(k->rounded, 0, sizeof k->rounded);
    OK(vb_truncate(s, PROMPT + 5, &err)); /* behind the prompt: none of its rows again */
    generate(s, 3, &r);
    for (size_t i = 0; i < PROMPT + 4; i++)
        assert_int_equal(k->rounded[i], 0);
    check_whose(k, "after a cut behind the prompt", PROMPT + 4, PROMPT + 7, EXACT);

    OK(vb_truncate(s, PROMPT - 10, &err)); /* inside: its chunk again, and what is appended now is of the prompt too */
    OK(vb_append(s, text, 100, &err));
    generate(s, 3, &r);
    assert_int_equal(k->rounded[PREFILL_CHUNK - 1], 0);
    check_whose(k, "after a cut inside the prompt", PREFILL_CHUNK, PROMPT + 90, ROUNDED);
    check_whose(k, "after a cut inside the prompt", PROMPT + 90, PROMPT + 92, EXACT);
    vb_session_close(s);
    vb_model_close(m);
    free(k);
}

TEST(a_modules_rows_of_a_prompt_are_onednns)
{
    static int32_t text[PROMPT];
    static struct record r;
    need_onednn(ONEDNN_BF16, "which rows are oneDNN's, which is seen by their rounding to BF16");
    vb_model *m = open_model(TALE);
    char input[64], output[64];
    snprintf(input, sizeof input, "model.layers.%d.eh_proj.input", m->config.num_hidden_layers);
    snprintf(output, sizeof output, "model.layers.%d.eh_proj.output", m->config.num_hidden_layers);
    random_tokens(m, 2, text, PROMPT);
    for (size_t method = 0; method < COUNT(methods); method++) {
        vb_session_options o = onednn_options(PROMPT + 20);
        struct whose *k = watch(m, &o);
        k->input = input;
        k->output = output;
        k->w = &m->mtp[0].eh_proj;
        o.drafting.method = methods[method];
        o.drafting.tokens = 1;
        vb_session *s = open_session(m, &o, text, PROMPT);
        generate(s, 12, &r); /* the last round computes no rows for drafts that are not wanted */
        check_whose(k, methods[method], 0, PROMPT - 1, ROUNDED);
        check_whose(k, methods[method], PROMPT, PROMPT + 5, EXACT);
        vb_session_close(s);
        free(k);
    }
    vb_model_close(m);
}

static int no_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)context, (void)depth, (void)index, (void)logits, (void)hidden;
    return 0;
}

/* What vb_evaluate computed, and text after it, is the contract's to the last bit. */
TEST(evaluated_rows_stay_on_the_contract)
{
    static int32_t text[PROMPT];
    static struct record contract, r;
    leave_out_if_quick();
    need_onednn(ONEDNN_F32, "all of this test");
    vb_model *m = open_for_onednn(TALE);
    vb_session_options o = onednn_options(PROMPT + 40);
    random_tokens(m, 3, text, PROMPT);
    run_plain(m, NULL, text, PROMPT, 8, &contract);
    vb_session *s = open_session(m, &o, text, 100);
    OK(vb_evaluate(s, 0, no_row, NULL, &err));
    OK(vb_append(s, text + 100, PROMPT - 100, &err));
    generate(s, 8, &r);
    check_same("evaluated, then appended to", &contract, &r);
    vb_session_close(s);
    run(m, &o, text, PROMPT, 8, &r);
    assert_true(r.result.fingerprint != contract.result.fingerprint); /* else this shows nothing */
    vb_model_close(m);
}

/* ---- what reaches no bit ----------------------------------------------------------------------------------------- */

/* Every method, K, number of threads and instruction set against plain decoding on one thread. */
static void check_settings(const vb_model *m, const char *name, const int32_t *prompt, size_t count, size_t n)
{
    static const int lengths[] = {1, 3, 7};
    static struct record plain, r;
    const char *const *isas = isas_here();
    size_t num_isas = 0, turn = 0;
    char what[128];
    vb_session_options o = onednn_options(count + n);
    run(m, &o, prompt, count, n, &plain);
    while (isas[num_isas])
        num_isas++;
    for (size_t method = 0; method <= COUNT(methods); method++)
        for (size_t k = 0; k < COUNT(lengths); k++, turn++) {
            if (!has_turn(method + k, 3))
                continue;
            o = onednn_options(count + n);
            o.threads = 1 + (int32_t)(turn % 3);
            o.exact_threads = 1;
            o.isa = isas[turn % num_isas];
            o.drafting.method = method && vb_mtp_modules(m) ? methods[method - 1] : "none";
            o.drafting.tokens = lengths[k];
            o.poison_cut_rows = 1;
            o.padded = (int)(turn & 1);
            snprintf(what, sizeof what, "%s, %zu tokens, %s, K %d, %d threads, %s", name, count, o.drafting.method,
                     lengths[k], o.threads, o.isa);
            run(m, &o, prompt, count, n, &r);
            check_same(what, &plain, &r);
        }
}

TEST(no_draft_thread_or_instruction_set_reaches_a_bit)
{
    static int32_t text[PREFILL_CHUNK + 60];
    char wide[64];
    need_onednn(ONEDNN_F32, "all of this test");
    widened_copy(wide, TALE); /* in f32 oneDNN's bits depend on the cut of W */
    for (size_t i = 0; i <= (quick ? 0 : COUNT(checkpoints)); i++) {
        const char *dir = i < COUNT(checkpoints) ? checkpoints[i] : wide;
        if (dir == TALE && onednn_lacks_here(ONEDNN_BF16))
            continue; /* it would be computed in f32, as `wide` is */
        vb_model *m = open_for_onednn(dir);
        if (!m) {
            printf("skipped: %s: %s\n", dir, onednn_lacks_here(ONEDNN_BF16));
            continue;
        }
        random_tokens(m, i, text, COUNT(text));
        if (quick) {
            check_settings(m, dir, text, 37, 6);
            vb_model_close(m);
            continue;
        }
        check_settings(m, dir, text, 1, 20);
        check_settings(m, dir, text, 4, 20);
        check_settings(m, dir, text, 37, 20);
        check_settings(m, dir, text, i < 3 ? 210 : PREFILL_CHUNK + 60, 20);
        vb_model_close(m);
    }
    remove_dir(wide);
}

/* Appended to, cut and continued, with every draft method: the rows of each step are those without drafts. */
TEST(a_timeline_that_grows_and_is_cut_has_the_same_bits_with_any_draft)
{
    static struct record plain[12], r;
    static int32_t text[700];
    leave_out_if_quick();
    need_onednn(ONEDNN_F32, "all of this test");
    vb_model *m = open_for_onednn(TALE);
    random_tokens(m, 4, text, COUNT(text));
    for (uint64_t seed = 1; seed <= 4; seed++)
        for (size_t method = 0; method <= COUNT(methods); method++) {
            uint64_t random = seed;
            vb_session_options o = onednn_options(2000);
            o.drafting.method = method ? methods[method - 1] : "none";
            o.drafting.tokens = 5;
            vb_session *s = open_session(m, &o, text, 1 + random_below(&random, COUNT(text)));
            for (size_t step = 0; step < COUNT(plain); step++) {
                size_t count, kind = random_below(&random, 3), cut = random_below(&random, 40),
                              more = random_below(&random, 90);
                vb_tokens(s, &count);
                if (kind == 0) /* a little, to where a chunk begins, or anywhere */
                    OK(vb_truncate(s,
                                   cut == 0 && count > 512 ? 512
                                   : cut < 30 && count > 30 ? count - cut
                                   : 1 + random_below(&random, count),
                                   &err));
                else if (kind == 1)
                    OK(vb_append(s, text, more, &err));
                generate(s, 1 + random_below(&random, 12), method ? &r : &plain[step]);
                if (method) {
                    char what[96];
                    snprintf(what, sizeof what, "%s, timeline %d, step %zu", methods[method - 1], (int)seed, step);
                    check_same(what, &plain[step], &r);
                }
            }
            vb_session_close(s);
        }
    vb_model_close(m);
}

TEST(a_prompt_that_was_cut_is_as_if_it_had_never_been_longer)
{
    static const size_t cuts[] = {3, 511, 512, 513, 520, 1024, 1030};
    static struct record fresh, r;
    static int32_t text[1100];
    leave_out_if_quick();
    need_onednn(ONEDNN_F32, "all of this test");
    vb_model *m = open_for_onednn(TALE);
    random_tokens(m, 5, text, COUNT(text));
    for (size_t i = 0; i < COUNT(cuts); i++) {
        char what[64];
        vb_session_options o = onednn_options(1200);
        run(m, &o, text, cuts[i], 6, &fresh);
        o.drafting.method = methods[i % 2];
        o.drafting.tokens = 3;
        vb_session *s = open_session(m, &o, text, COUNT(text));
        generate(s, 6, &r);
        OK(vb_truncate(s, cuts[i], &err));
        generate(s, 6, &r);
        snprintf(what, sizeof what, "%s, cut to %zu", methods[i % 2], cuts[i]);
        check_same(what, &fresh, &r);
        vb_session_close(s);
    }
    vb_model_close(m);
}

TEST(sequences_that_share_passes_are_as_alone)
{
    enum { SEQUENCES = 4 };
    static const size_t lengths[SEQUENCES] = {600, 3, 40, 513};
    static struct record alone[SEQUENCES], r[SEQUENCES];
    static int32_t text[SEQUENCES][600];
    vb_session *s[SEQUENCES];
    vb_generate_options g[SEQUENCES];
    vb_result result[SEQUENCES];
    leave_out_if_quick();
    need_onednn(ONEDNN_F32, "all of this test");
    vb_model *m = open_for_onednn(TALE);
    for (size_t i = 0; i < SEQUENCES; i++) {
        vb_session_options o = onednn_options(640);
        random_tokens(m, 10 + i, text[i], lengths[i]);
        run(m, &o, text[i], lengths[i], 12, &alone[i]);
        o.drafting.method = i ? methods[i] : "none";
        o.drafting.tokens = 2;
        o.threads = 1 + (int32_t)(i % 3);
        o.exact_threads = 1;
        s[i] = open_session(m, &o, text[i], lengths[i]);
        g[i] = recording(&r[i], s[i], 12);
    }
    REFUSED(generate_together(s, SEQUENCES, g, result, &err), VB_BAD_ARGUMENT, "due by prefill onednn");
    for (size_t i = 0; i < SEQUENCES; i++) { /* the prompt alone, what follows in a batch */
        generate(s[i], 1, &r[i]);
        drop(&alone[i], 1);
        g[i] = recording(&r[i], s[i], 11);
    }
    OK(generate_together(s, SEQUENCES, g, result, &err));
    for (size_t i = 0; i < SEQUENCES; i++) {
        r[i].result = result[i];
        check_same_prefix("in a batch", &alone[i], &r[i], 11);
        vb_session_close(s[i]);
    }
    vb_model_close(m);
}

/* ---- what it computes -------------------------------------------------------------------------------------------- */

static int take_logits(void *context, const vb_event *e)
{
    struct record *r = context;
    double *logits = (double *)(void *)r->row;
    for (size_t v = 0; v < r->V; v++)
        logits[v] = (double)e->logits[v];
    return 0;
}

/* With F32 weights nothing is rounded: oneDNN adds in another order, and the row that chooses is as near to the truth
 * as any f32 program's may be, 8 times what 20 runs of the reference differ whose values are perturbed by half an ulp
 * (test_truth). With BF16 weights `verbatim diff` says the same of every tensor: test_prefill_cli. */
TEST(with_f32_weights_it_is_as_near_to_the_reference_as_f32_allows)
{
    enum { N = 40 };
    static struct record r;
    char wide[64];
    int32_t tokens[N];
    double spread = 0;
    struct reference *ref;
    need_onednn(ONEDNN_F32, "all of this test");
    widened_copy(wide, checkpoints[0]);
    vb_model *m = open_model(wide);
    size_t V = (size_t)vb_vocab_size(m), d = (size_t)vb_hidden_size(m);
    double *exact = calloc(2 * N * V, sizeof *exact), *other = exact + N * V, *hidden = calloc(N * d, sizeof *hidden);
    assert_true(exact && hidden && V <= MOST_TOLD);
    random_tokens(m, 6, tokens, N);
    OK(reference_open(&ref, wide, NULL, &err));
    OK(reference_forward(ref, NULL, tokens, N, hidden, exact, &err));
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct reference_options o = {.perturb = seed};
        OK(reference_forward(ref, &o, tokens, N, hidden, other, &err));
        spread = fmax(spread, distance(other, exact, N * V));
    }
    vb_session_options o = onednn_options(N + 1);
    vb_session *s = open_session(m, &o, tokens, N);
    vb_generate_options g = recording(&r, s, 1);
    g.callback = take_logits;
    OK(vb_generate(s, &g, &r.result, &err));
    double is = distance((double *)(void *)r.row, exact + (N - 1) * V, V);
    if (!(is > 0 && is <= 8 * spread))
        fail_msg("%.3g away from the truth, perturbed references are %.3g away", is, spread);
    vb_session_close(s);
    reference_close(ref);
    vb_model_close(m);
    remove_dir(wide);
    free(exact);
    free(hidden);
}

/* ---- what it cannot do ------------------------------------------------------------------------------------------- */

TEST(what_it_cannot_do_is_refused_before_work_starts)
{
    vb_model *m = open_model(TALE), *fp8 = open_tiny("v3"), *f16 = open_tiny("v2");
    vb_session *s = NULL;
    vb_session_options o = {.prefill = "mkl"};
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT,
            "unknown prefill mkl; known are contract, expanded, onednn and cublas");
    o = onednn_options(100);
    o.prefill_chunk = 7;
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT, "prefill chunk is 7; with prefill onednn it is 512");
    o.prefill_chunk = 0;
    REFUSED(vb_session_open(&s, fp8, &o, &err), VB_UNSUPPORTED,
            "golden/tiny/v3: q_a_proj of layer 0 is F8_E4M3; prefill onednn wants");
    REFUSED(vb_session_open(&s, f16, &o, &err), VB_UNSUPPORTED,
            "golden/tiny/v2: q_a_proj of layer 0 is F16; prefill onednn wants");
    vb_model_close(fp8);
    vb_model_close(f16);
    vb_error why = {0};
    if (vb_session_open(&s, m, &o, &why)) {
        assert_int_equal(why.code, VB_UNSUPPORTED);
        assert_non_null(strstr(why.message, "prefill onednn"));
    }
    vb_session_close(s);
    vb_model_close(m);
}

int main(int argc, char **argv)
{
    quick = argc > 1 && !strcmp(argv[1], "--quick");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_the_original_prompt_are_onednns_and_no_others),
        cmocka_unit_test(a_modules_rows_of_a_prompt_are_onednns),
        cmocka_unit_test(evaluated_rows_stay_on_the_contract),
        cmocka_unit_test(no_draft_thread_or_instruction_set_reaches_a_bit),
        cmocka_unit_test(a_timeline_that_grows_and_is_cut_has_the_same_bits_with_any_draft),
        cmocka_unit_test(a_prompt_that_was_cut_is_as_if_it_had_never_been_longer),
        cmocka_unit_test(sequences_that_share_passes_are_as_alone),
        cmocka_unit_test(with_f32_weights_it_is_as_near_to_the_reference_as_f32_allows),
        cmocka_unit_test(what_it_cannot_do_is_refused_before_work_starts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
