/* tests/engine/test_conventions.c -- where implementations disagree: conventions of drafting change drafts and no
 * output; under every convention the engine is as near to the reference as f32 allows, and the convention does change
 * what it says it changes. Runs in the repository's root. */
#include "tests/support/engine_support.h"
#include "tests/support/methods.h"

#include <math.h>

#include "engine/model/conventions.h"
#include "ops/rope.h"
#include "ops/router.h"
#include "reference/reference.h"
#include "tests/support/golden.h"

static struct methods methods;

static vb_model *open_under(const char *dir, const char *list)
{
    vb_model *m = NULL;
    vb_model_options o = {.conventions = list};
    OK(vb_model_open(&m, dir, &o, &err));
    return m;
}

/* "main-hidden=pre-norm": setting number i of all that are not a default, draft conventions first; 0 past the last.
 * Conventions of an indexer are left out: they change nothing in these models. */
static int setting(size_t i, char list[64], enum convention *which)
{
    for (size_t c = 0; c < CONVENTIONS; c++)
        for (int v = 1; !convention_row(c)->of_indexer && convention_row(c)->values[v]; v++)
            if (i-- == 0) {
                snprintf(list, 64, "%s=%s", convention_row(c)->name, convention_row(c)->values[v]);
                *which = (enum convention)c;
                return 1;
            }
    return 0;
}

TEST(lists_are_read_from_left_to_right_and_what_is_unknown_is_named)
{
    struct conventions c = {{0}};
    OK(conventions_parse(&c, "as=mindie,draft-position=hidden,latent-eps=config", &err));
    assert_int_equal(c.value[MAIN_HIDDEN], 1);
    assert_int_equal(c.value[DRAFT_POSITION], 0);
    assert_int_equal(c.value[LATENT_EPS], 1);
    assert_int_equal(c.value[CONCAT], 0);
    OK(conventions_parse(&c, NULL, &err));
    OK(conventions_parse(&c, "", &err));
    REFUSED(conventions_parse(&c, "concate=x", &err), VB_BAD_ARGUMENT,
            "unknown convention concate; known are as, main-hidden");
    REFUSED(conventions_parse(&c, "concat=x", &err), VB_BAD_ARGUMENT,
            "convention concat is x; known are embedding-hidden");
    REFUSED(conventions_parse(&c, "concat", &err), VB_BAD_ARGUMENT, "convention concat has no value");
    REFUSED(conventions_parse(&c, "as=vllm", &err), VB_BAD_ARGUMENT, "unknown system vllm; known are vllm-2025");
    vb_model *m;
    vb_model_options o = {.conventions = "gate=f16"};
    REFUSED(vb_model_open(&m, "golden/tiny/v3", &o, &err), VB_BAD_ARGUMENT,
            "convention gate is f16; known are f32, bf16");
    for (size_t i = 0; convention_preset(i); i++)
        OK(conventions_parse(&c, convention_preset(i)->list, &err));
}

TEST(conventions_of_drafting_change_no_bit_of_the_output)
{
    static struct record plain, drafted;
    int32_t prompt[20];
    char list[64], what[160];
    enum convention which;
    vb_model *m = open_tiny("v3-mtp3");
    random_tokens(m, 3, prompt, COUNT(prompt));
    size_t changed = 0, settings = 0;
    for (size_t t = 0; t < 2; t++) {
        vb_sampling sampling = {.temperature = t ? 1.0f : 0.0f, .seed = 5};
        run_plain(m, &sampling, prompt, COUNT(prompt), 60, &plain);
        for (size_t i = 0; setting(i, list, &which) && which < FIRST_TARGET_CONVENTION; i++) {
            vb_model *other = open_under("golden/tiny/v3-mtp3", list);
            for (size_t k = 0; k < methods.count; k++) {
                vb_session_options o = {.context = 90, .threads = 1, .drafting.method = methods.name[k],
                                        .drafting.tokens = (int32_t)(1 + (i + k) % 5), .padded = (i + k + t) % 2,
                                        .prefill_chunk = (i + k) % 3 ? 0 : 7, .sampling = sampling,
                                        .poison_cut_rows = 1};
                snprintf(what, sizeof what, "%s, %s, K %d%s", list, methods.name[k], (int)o.drafting.tokens,
                         o.padded ? ", padded" : "");
                run(other, &o, prompt, COUNT(prompt), 60, &drafted);
                check_same(what, &plain, &drafted);
                changed += drafted.result.accepted > 0;
                settings++;
            }
            vb_model_close(other);
        }
    }
    assert_true(settings == 2 * 10 * methods.count);
    assert_true(changed > 0); /* now and then a draft stands, even of random weights */
    vb_model_close(m);
}

/* ---- against the reference --------------------------------------------------------------------------------------- */

#define MOST 40

struct rows {
    double *at; /* [1 + depths, n, V]: the target's, then each module's */
    size_t n, V;
};

static int take_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct rows *r = context;
    (void)hidden;
    for (size_t v = 0; v < r->V; v++)
        r->at[(((size_t)depth + 1) * r->n + index) * r->V + v] = (double)logits[v];
    return 0;
}

static void engine_rows(const char *dir, const char *list, const int32_t *tokens, struct rows *r, int depths)
{
    vb_model *m = open_under(dir, list);
    vb_session_options o = {.context = (int32_t)r->n, .threads = 1, .prefill_chunk = 7};
    vb_session *s = open_session(m, &o, tokens, r->n);
    OK(vb_evaluate(s, depths, take_row, r, &err));
    vb_session_close(s);
    vb_model_close(m);
}

static void reference_rows(const struct reference *ref, struct conventions c, uint64_t perturb, const int32_t *tokens,
                           struct rows *r, int depths)
{
    struct reference_options o = {.conventions = c, .perturb = perturb};
    OK(reference_forward(ref, &o, tokens, (int)r->n, NULL, r->at, &err));
    if (depths)
        OK(reference_modules(ref, &o, tokens, (int)r->n, depths, r->at + r->n * r->V, &err));
}

static struct rows new_rows(size_t n, size_t V, int depths)
{
    struct rows r = {calloc((size_t)(1 + depths) * n * V, sizeof(double)), n, V};
    assert_non_null(r.at);
    return r;
}

struct subject {
    const char *name; /* of a tiny checkpoint */
    double changes[CONVENTIONS], within[CONVENTIONS]; /* the largest seen, in units of the perturbed runs' distance */
};

/* f32 rounds each value once; 8 times what half an ulp everywhere does to the reference is test_truth's bound. With
 * gate=bf16 half an ulp of f32 moves values over a tie of bf16, which is 2^-9 of a weight: such runs are far off, so
 * the spread is then that of the defaults, and the engine meets it as long as none of its own values lies that near to
 * a tie. */
static void compare_settings(struct subject *s, int depths)
{
    char dir[64], list[64];
    enum convention which;
    struct reference *ref;
    int32_t tokens[MOST];
    snprintf(dir, sizeof dir, "golden/tiny/%s", s->name);
    OK(reference_open(&ref, dir, NULL, &err));
    size_t V = (size_t)reference_config(ref)->vocab_size, all = (size_t)(1 + depths) * MOST * V;
    struct rows exact = new_rows(MOST, V, depths), plain = new_rows(MOST, V, depths), r = new_rows(MOST, V, depths);
    uint64_t seed = 11;
    for (size_t i = 0; i < MOST; i++)
        tokens[i] = (int32_t)random_below(&seed, V);
    reference_rows(ref, (struct conventions){{0}}, 0, tokens, &plain, depths);
    for (size_t i = 0; setting(i, list, &which); i++) {
        struct conventions c = {{0}};
        double spread = 0;
        OK(conventions_parse(&c, list, &err));
        reference_rows(ref, c, 0, tokens, &exact, depths);
        for (uint64_t run = 1; run <= 6; run++) {
            reference_rows(ref, which == GATE ? (struct conventions){{0}} : c, run, tokens, &r, depths);
            spread = fmax(spread, distance(r.at, which == GATE ? plain.at : exact.at, all));
        }
        memset(r.at, 0, all * sizeof *r.at);
        engine_rows(dir, list, tokens, &r, depths);
        double within = distance(r.at, exact.at, all) / spread, changes = distance(plain.at, exact.at, all) / spread;
        if (getenv("VERBOSE"))
            print_message("%-8s %-28s engine %.2f, defaults %.3g times the spread %.3g\n", s->name, list, within,
                          changes, spread);
        if (!(within <= 8.0))
            fail_msg("%s, %s: the engine is %.3g times as far from the reference as perturbed references, allowed are "
                     "8",
                     s->name, list, within);
        s->changes[which] = fmax(s->changes[which], changes);
    }
    free(exact.at);
    free(plain.at);
    free(r.at);
    reference_close(ref);
}

TEST(under_every_convention_the_engine_is_as_near_to_the_reference_as_f32_allows)
{
    struct subject subjects[] = {{.name = "v3-mtp3"}, {.name = "v3"}, {.name = "v2"}, {.name = "v2-lite"},
                                 {.name = "glm"}};
    double changes[CONVENTIONS] = {0};
    for (size_t i = 0; i < COUNT(subjects); i++) {
        vb_model *m = open_tiny(subjects[i].name);
        int depths = vb_mtp_modules(m);
        vb_model_close(m);
        compare_settings(&subjects[i], depths);
        for (size_t c = 0; c < CONVENTIONS; c++)
            changes[c] = fmax(changes[c], subjects[i].changes[c]);
    }
    /* A switch that does nothing would pass the above. Positions of all rows moved by one are the same rotations
     * against each other; what becomes of drafts after a prompt, and which module makes them, is no matter of teacher
     * forcing; the two that show at far positions and at very small scores have tests of their own. */
    for (size_t c = 0; c < CONVENTIONS; c++)
        if (!convention_row(c)->of_indexer && c != DRAFT_POSITION && c != PREFILL_DRAFT && c != MISSING_HIDDEN &&
            c != CHAIN_MODULE && c != NORMALISER_EPS && c != ROPE_ANGLE && !(changes[c] > 100.0))
            fail_msg("%s changes no checkpoint by more than %.3g times the rounding", convention_row(c)->name,
                     changes[c]);
}

/* Drafts after a prompt, where what the drafter has seen matters: the reference computes everything anew. */
TEST(drafts_under_every_convention_are_those_of_the_reference)
{
    char list[64];
    enum convention which;
    struct reference *ref;
    size_t differ[CONVENTIONS] = {0}, rounds = 0;
    OK(reference_open(&ref, "golden/tiny/v3-mtp3", NULL, &err));
    for (size_t i = 0; setting(i, list, &which); i++) {
        vb_model *m = open_under("golden/tiny/v3-mtp3", list);
        struct conventions c = {{0}};
        OK(conventions_parse(&c, list, &err));
        for (uint64_t seed = 1; seed <= 24; seed++) {
            enum { K = 4 };
            int32_t prompt[40], next, drafts[VB_MAX_DRAFT], wanted[VB_MAX_DRAFT], usual[VB_MAX_DRAFT], count;
            size_t n = 1 + random_below(&(uint64_t){seed}, seed % 3 ? 6 : 38);
            int eagle = seed % 2;
            struct reference_options o = {.conventions = c};
            random_tokens(m, seed, prompt, n);
            vb_session_options so = {.context = 60, .threads = 1,
                                     .drafting.method = eagle ? "mtp-eagle" : "mtp-vanilla", .drafting.tokens = K};
            vb_session *s = open_session(m, &so, prompt, n);
            OK(vb_draft(s, &next, drafts, &count, &err));
            assert_int_equal(count, K);
            enum reference_draft_method method = eagle ? REFERENCE_MTP_EAGLE : REFERENCE_MTP_VANILLA;
            OK(reference_draft(ref, &o, prompt, (int)n, next, method, K, wanted, NULL, &err));
            OK(reference_draft(ref, NULL, prompt, (int)n, next, method, K, usual, NULL, &err));
            for (int k = 0; k < K; k++)
                if (drafts[k] != wanted[k])
                    fail_msg("%s, seed %d, %s: draft %d is %d, the reference's is %d", list, (int)seed,
                             so.drafting.method, k + 1, (int)drafts[k], (int)wanted[k]);
            differ[which] += memcmp(wanted, usual, K * sizeof *wanted) != 0;
            rounds++;
            vb_session_close(s);
        }
        vb_model_close(m);
    }
    assert_true(rounds > 150);
    for (size_t c = 0; c < FIRST_TARGET_CONVENTION; c++) {
        int should = !convention_row(c)->of_indexer && c != PREFILL_DRAFT && c != DRAFT_POSITION;
        if (should != (differ[c] > 0))
            fail_msg("%s: %zu of 24 drafts differ from those of the defaults", convention_row(c)->name, differ[c]);
    }
    reference_close(ref);
}

/* ---- the bundled model ------------------------------------------------------------------------------------------- */

struct losses {
    const int32_t *tokens;
    size_t count, V, rows;
    double sum; /* nats, of the modules */
};

static int add_loss(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct losses *l = context;
    size_t predicted = index + (size_t)depth + 2;
    double max = -INFINITY, sum = 0;
    (void)hidden;
    if (depth < 0 || predicted >= l->count)
        return 0;
    for (size_t v = 0; v < l->V; v++)
        max = fmax(max, (double)logits[v]);
    for (size_t v = 0; v < l->V; v++)
        sum += exp((double)logits[v] - max);
    l->sum += max + log(sum) - (double)logits[l->tokens[predicted]];
    l->rows++;
    return 0;
}

/* Mean loss of the MTP modules, teacher forced, over golden/tale/prompts.jsonl. */
static double loss_under(const char *list)
{
    vb_model *m = open_under("golden/tale", list);
    vb_tokenizer *t;
    struct losses l = {.V = (size_t)vb_vocab_size(m)};
    char line[4096];
    FILE *f = fopen("golden/tale/prompts.jsonl", "r");
    assert_non_null(f);
    OK(vb_tokenizer_open(&t, "golden/tale", NULL, &err));
    while (fgets(line, sizeof line, f)) {
        int32_t ids[1024];
        json_t *prompt = json_loads(line, 0, NULL);
        const char *text = json_string_value(json_object_get(prompt, "prompt"));
        assert_non_null(text);
        OK(vb_encode(t, text, strlen(text), ids + 1, COUNT(ids) - 1, &l.count, &err));
        ids[0] = vb_bos_token(t); /* the model's texts begin with it */
        l.count++;
        l.tokens = ids;
        vb_session_options o = {.context = (int32_t)l.count, .threads = 1};
        vb_session *s = open_session(m, &o, ids, l.count);
        OK(vb_evaluate(s, vb_mtp_modules(m), add_loss, &l, &err));
        vb_session_close(s);
        json_decref(prompt);
    }
    fclose(f);
    assert_true(l.rows > 1000);
    vb_tokenizer_close(t);
    vb_model_close(m);
    return l.sum / (double)l.rows;
}

TEST(the_bundled_model_is_best_under_the_conventions_it_was_trained_with)
{
    char list[64];
    enum convention which;
    if (!have_tale())
        return;
    double trained = loss_under("");
    for (size_t i = 0; setting(i, list, &which) && which < FIRST_TARGET_CONVENTION; i++) {
        double other = loss_under(list);
        if (getenv("VERBOSE"))
            print_message("%-28s %.5f nats, trained %.5f\n", list, other, trained);
        /* teacher forcing does not show them */
        if (which == DRAFT_POSITION || which == PREFILL_DRAFT || which == MISSING_HIDDEN || which == CHAIN_MODULE)
            assert_true(fabs(other - trained) < 1e-4);
        else if (which == FIRST_ROW) /* one row more to attend to, in hundreds: a sink, good or bad by next to
                                        nothing */
            assert_true(fabs(other - trained) < 0.02);
        else if (!(trained < other))
            fail_msg("%s: %.5f nats, less than the %.5f of the conventions that golden/tale was trained with", list,
                     other, trained);
    }
}

/* yarn=max-len: a context of at most original_max_position_embeddings has no YaRN, a longer one has. */
TEST(yarn_by_length_looks_at_the_context)
{
    static struct record by_config, by_length;
    int32_t prompt[12];
    vb_model *m = open_tiny("v2"), *other = open_under("golden/tiny/v2", "yarn=max-len");
    int32_t original = m->config.rope_original_max_position_embeddings;
    assert_true(m->config.rope_yarn && original >= 20 && vb_max_positions(m) > original);
    random_tokens(m, 9, prompt, COUNT(prompt));
    for (int longer = 0; longer < 2; longer++) {
        vb_session_options o = {.context = original + longer, .threads = 1};
        run(m, &o, prompt, COUNT(prompt), 5, &by_config);
        run(other, &o, prompt, COUNT(prompt), 5, &by_length);
        assert_int_equal(by_config.row[0] == by_length.row[0], longer);
    }
    vb_session *s[2] = {open_session(other, &(vb_session_options){.context = original + 1}, prompt, COUNT(prompt)),
                        open_session(other, &(vb_session_options){.context = original}, prompt, COUNT(prompt))};
    vb_generate_options g[2] = {{.max_tokens = 1}, {.max_tokens = 1}};
    vb_result r[2];
    REFUSED(generate_together(s, 2, g, r, &err), VB_BAD_ARGUMENT, "yarn=max-len");
    vb_session_close(s[0]);
    vb_session_close(s[1]);
    vb_model_close(m);
    vb_model_close(other);
}

/* How far f32 angles are off at most: frequency and angle are each rounded by half an ulp. 64 rotated numbers, theta
 * 10000. */
TEST(angles_in_f32_are_off_by_what_is_known)
{
    static const struct { int64_t position; double error; } known[] = {{4095, 1.4e-4}, {163839, 7.6e-3}};
    struct rope exact, rounded;
    float a[64], b[64];
    rope_init(&exact, 64, 1, 10000, NULL);
    rope_init_f32(&rounded, 64, 1, 10000, NULL);
    for (size_t n = 0; n < COUNT(known); n++) {
        double worst = 0;
        for (int64_t p = known[n].position - 200; p <= known[n].position; p++) {
            op_rope_angles(a, &exact, p);
            op_rope_angles(b, &rounded, p);
            for (size_t i = 0; i < 32; i++) {
                double angle = atan2((double)b[32 + i], (double)b[i]) - atan2((double)a[32 + i], (double)a[i]);
                worst = fmax(worst, fabs(remainder(angle, 2 * M_PI)));
            }
        }
        if (getenv("VERBOSE"))
            print_message("position %d: %.3g rad\n", (int)known[n].position, worst);
        assert_true(worst > known[n].error / 2 && worst < known[n].error * 1.05);
    }
}

/* Scores so small that what is added to their sum counts. */
TEST(the_normaliser_adds_what_it_says)
{
    float logits[4] = {-60, -61, -70, -80}, weight[2];
    int32_t expert[2];
    char scratch[4096] __attribute__((aligned(64)));
    double s[2] = {exp(-60), exp(-61)}, sum = s[0] + s[1];
    double divisor[] = {sum, sum + 1e-20, 0x1p-14};
    for (int n = 0; n < 3; n++) {
        struct op_ctx cx = {.k = kernels_select("scalar", &(int){0}), .threads = 1, .scratch = scratch,
                            .scratch_size = sizeof scratch};
        struct router r = {.experts = 4, .chosen = 2, .groups = 1, .chosen_groups = 1, .sigmoid = 1,
                           .norm_topk_prob = 1, .routed_scaling_factor = 2.5f, .normaliser = n};
        op_router(&cx, expert, weight, logits, &r, 1);
        for (int i = 0; i < 2; i++)
            assert_true(fabs((double)weight[i] / (2.5 * s[i] / divisor[n]) - 1) < 1e-6); /* four roundings, and exp's 1
                                                                                            ulp */
    }
}

/* gate=bf16: whatever the scores come from, an expert's weight is a number of bf16. */
TEST(weights_of_a_gate_in_bf16_are_bf16)
{
    float logits[4] = {0.3f, 0.1f, -0.7f, 0.9f}, weight[2];
    int32_t expert[2];
    char scratch[4096] __attribute__((aligned(64)));
    for (int kind = 0; kind < 4; kind++) {
        struct op_ctx cx = {.k = kernels_select("scalar", &(int){0}), .threads = 1, .scratch = scratch,
                            .scratch_size = sizeof scratch};
        struct router r = {.experts = 4, .chosen = 2, .groups = 1, .chosen_groups = 1, .sigmoid = kind % 2,
                           .norm_topk_prob = kind / 2, .routed_scaling_factor = 2.5f, .bf16 = 1};
        op_router(&cx, expert, weight, logits, &r, 1);
        for (int i = 0; i < 2; i++) {
            uint32_t bits;
            memcpy(&bits, &weight[i], sizeof bits);
            assert_int_equal(bits & 0xffff, 0);
        }
    }
}

int main(void)
{
    methods = methods_for(NULL, OF_MODULES);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read_from_left_to_right_and_what_is_unknown_is_named),
        cmocka_unit_test(conventions_of_drafting_change_no_bit_of_the_output),
        cmocka_unit_test(under_every_convention_the_engine_is_as_near_to_the_reference_as_f32_allows),
        cmocka_unit_test(drafts_under_every_convention_are_those_of_the_reference),
        cmocka_unit_test(the_bundled_model_is_best_under_the_conventions_it_was_trained_with),
        cmocka_unit_test(angles_in_f32_are_off_by_what_is_known),
        cmocka_unit_test(the_normaliser_adds_what_it_says),
        cmocka_unit_test(weights_of_a_gate_in_bf16_are_bf16),
        cmocka_unit_test(yarn_by_length_looks_at_the_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
