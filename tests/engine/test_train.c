/* tests/engine/test_train.c -- the trainer's gradients: against the reference within a bound from its perturbed runs,
 * and with the same bits however they are computed. Runs in the repository's root. */
#include "ops/backward/cross_entropy.h"
#include "engine/pass/forward.h"
#include "reference/backward.h"
#include "tests/support/engine_support.h"
#include "tests/support/references.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/tiny.h"
#include "tests/support/training.h"

#include <math.h>

enum { RUNS = 8 };

/* -- against the reference ----------------------------------------------------------------------------------------- */

struct truth {
    struct reference *r, *heads; /* heads: parallel heads; NULL: none are trained */
    struct reference_gradients exact, moved;
    struct reference_losses losses;
    struct reference_sequence list[TRAINING_SEQUENCES];
    struct reference_loss_options options;
    double *spread; /* for each gradient: the largest distance of a perturbed run */
    double longest; /* the terms of the longest sum */
};

static void truth_open(struct truth *x, const char *dir, const struct training_step *s)
{
    struct reference_losses losses;
    *x = (struct truth){.r = open_reference(dir),
                        .options = {.depths = s->options.depths,
                                    .mtp_loss_scaling_factor = s->options.mtp_loss_scaling_factor,
                                    .loss = s->options.loss}};
    OK(conventions_parse(&x->options.conventions, s->conventions, &err));
    for (size_t q = 0; q < TRAINING_SEQUENCES; q++)
        x->list[q] = (struct reference_sequence){s->list[q].tokens, (int)s->list[q].count, s->list[q].loss_mask};
    if (s->options.heads)
        OK(reference_heads_open(&x->heads, dir, x->r, &err));
    x->options.heads = x->heads;
    OK(reference_gradients_open_with_heads(&x->exact, x->r, x->heads, &err));
    OK(reference_backward(x->r, &x->options, x->list, TRAINING_SEQUENCES, &x->losses, &x->exact, &err));
    x->spread = doubles(x->exact.count);
    for (x->options.perturb = 1; x->options.perturb <= RUNS; x->options.perturb++) {
        OK(reference_gradients_open_with_heads(&x->moved, x->r, x->heads, &err));
        OK(reference_backward(x->r, &x->options, x->list, TRAINING_SEQUENCES, &losses, &x->moved, &err));
        for (size_t i = 0; i < x->exact.count; i++) {
            const struct reference_gradient *g = &x->exact.of[i];
            size_t n = (size_t)g->rows * (size_t)g->cols;
            x->spread[i] = fmax(x->spread[i], distance(x->moved.of[i].data, g->data, n));
            x->longest = fmax(x->longest, fmax(g->rows, g->cols));
        }
        reference_gradients_close(&x->moved);
    }
}

static void truth_close(struct truth *x)
{
    free(x->spread);
    reference_gradients_close(&x->exact);
    reference_close(x->heads);
    reference_close(x->r);
}

/* As bound.c of `diff` does: 8 times what the perturbed runs move, which perturb the results of sums, and the rounding
 * errors of the longest sum, whose terms are the rows of a matrix or the tokens. Returns how much of the bound is
 * needed. */
static double check_tensor(const char *name, const struct truth *x, size_t i, const float *g)
{
    const struct reference_gradient *want = &x->exact.of[i];
    size_t n = (size_t)want->rows * (size_t)want->cols;
    double *have = doubles(n), norm = 0, bound = 8 * x->spread[i] + sqrt(fmax(x->longest, TRAINING_TOKENS)) * 0x1p-24;
    for (size_t j = 0; j < n; j++) {
        have[j] = g[j];
        norm += want->data[j] * want->data[j];
    }
    double far = norm > 0 ? distance(have, want->data, n) : 0;
    for (size_t j = 0; j < n && norm == 0; j++)
        far = fmax(far, fabs(have[j]));
    if (!(far <= bound) || !(bound < 1e-3))
        fail_msg("%s: the gradient of %s is %.3g away from the reference, bound %.3g", name, want->name, far, bound);
    free(have);
    return far / bound;
}

static void check_losses(const char *name, const struct training_losses *have, const struct truth *x, int whole)
{
    const struct reference_losses *want = &x->losses;
    double bound = 1e-5; /* a loss is about log V; perturbed runs move it by less than 10^-6 */
    if ((whole && fabs(have->main - want->main) > bound) || have->rows != (whole ? want->rows : 0))
        fail_msg("%s: the main loss is %.9g of %ld rows, wanted %.9g of %ld", name, have->main, (long)have->rows,
                 want->main, want->rows);
    for (int k = 0; k < x->options.depths; k++) {
        const struct training_terms *a = &have->terms[k];
        const struct reference_terms *b = &want->terms[k];
        if (fabs(a->data - b->data) > bound || fabs(a->top - b->top) > bound || fabs(a->features - b->features) > bound)
            fail_msg("%s, depth %d: data %.9g, top %.9g, features %.9g, wanted %.9g, %.9g, %.9g", name, k, a->data,
                     a->top, a->features, b->data, b->top, b->features);
        if (x->options.loss && x->options.loss->terms.soft != 0 &&
            (fabs(a->soft - b->soft) > bound || fabs(a->entropy - b->entropy) > bound))
            fail_msg("%s, depth %d: soft %.9g, entropy %.9g, wanted %.9g, %.9g", name, k, a->soft, a->entropy, b->soft,
                     b->entropy);
        if (fabs(have->by_depth[k] - want->by_depth[k]) > bound || have->depth_rows[k] != want->depth_rows[k])
            fail_msg("%s: the loss of depth %d is %.9g of %ld rows, wanted %.9g of %ld", name, k, have->by_depth[k],
                     (long)have->depth_rows[k], want->by_depth[k], want->depth_rows[k]);
    }
}

enum { MASKED = 1,
       HEADS = 2 };

/* with: MASKED and HEADS, or'ed */
static void check_step(const char *dir, const char *name, const char *conventions, enum trained_part part, int depths,
                       const struct loss *loss, int with)
{
    struct training_step s;
    struct truth x;
    double most = 0;
    size_t compared = 0;
    vb_model *m = training_model(dir, conventions);
    training_step(&s, m, part, depths);
    s.conventions = conventions;
    s.options.loss = loss;
    if (with & MASKED)
        training_mask(&s);
    if (with & HEADS)
        training_heads_open(&s, m, dir);
    truth_open(&x, dir, &s);
    struct vb_trainer *t = training_open(m, &s);
    struct training_losses losses = training_gradients(t, &s);
    check_losses(name, &losses, &x, part == TRAIN_MODEL);
    for (size_t i = 0; i < trainer_count(t); i++) {
        const struct trained_tensor *have = trainer_tensor(t, i);
        const struct reference_gradient *want = reference_gradient(&x.exact, have->name);
        if (have->g)
            most = fmax(most, check_tensor(name, &x, (size_t)(want - x.exact.of), have->g));
        compared += have->g != NULL;
    }
    if (part == TRAIN_MODEL && compared != x.exact.count)
        fail_msg("%s: %zu tensors are trained, %zu have gradients in the reference", name, compared, x.exact.count);
    print_message("%s, %s, %d depths: %.2g of the bound\n", name,
                  part == TRAIN_MODEL ? "model"
                  : part == TRAIN_HEADS ? "heads"
                  : "modules",
                  depths, most);
    trainer_close(t);
    training_heads_close(&s);
    vb_model_close(m);
    truth_close(&x);
}

static void check_loss(const char *dir, const char *name, const char *conventions, enum trained_part part, int depths,
                       const struct loss *loss)
{
    check_step(dir, name, conventions, part, depths, loss, 0);
}

static void check_checkpoint(const char *dir, const char *name, const char *conventions, enum trained_part part,
                             int depths)
{
    check_loss(dir, name, conventions, part, depths, NULL);
}

TEST(gradients_of_whole_models_are_those_of_the_reference)
{
    static const char *const paths[] = {TINY_CHECKPOINTS(TINY_PATH)};
    static const int modules[] = {TINY_CHECKPOINTS(TINY_MODULES)};
    for (size_t i = 0; i < TINY_COUNT; i++)
        check_checkpoint(paths[i], paths[i], NULL, TRAIN_MODEL, modules[i]);
}

TEST(gradients_of_modules_are_those_of_the_reference)
{
    check_checkpoint("golden/tiny/v3-mtp3", "v3-mtp3", NULL, TRAIN_MODULES, 2);
    check_checkpoint("golden/tiny/v3", "v3", NULL, TRAIN_MODULES, 3); /* module 0 three times */
    check_checkpoint("golden/tiny/glm", "glm", "main-hidden=pre-norm,concat=hidden-embedding", TRAIN_MODULES, 1);
}

/* Odd widths, YaRN, tied embeddings, no q_lora_rank, RoPE that rotates halves. */
TEST(gradients_of_small_models_are_those_of_the_reference)
{
    for (const struct small_checkpoint *c = small_checkpoints; c->name; c++) {
        char dir[64];
        small_checkpoint(dir, c);
        check_checkpoint(dir, c->name, NULL, TRAIN_MODEL, c->modules ? c->modules + 1 : 0);
        if (c == small_checkpoints) {
            check_checkpoint(dir, "pre-norm",
                             "main-hidden=pre-norm,draft-hidden=pre-norm,normaliser-eps=6.1e-5,yarn-scale=never",
                             TRAIN_MODEL, 2);
            check_checkpoint(dir, "hidden first",
                             "concat=hidden-embedding,draft-position=token,latent-eps=config,rope-angle=f32",
                             TRAIN_MODEL, 3);
            check_checkpoint(dir, "modules", "draft-hidden=pre-norm,draft-position=token,group-mask=zero",
                             TRAIN_MODULES, 3);
        }
        remove_dir(dir);
    }
}

static void check_published(const char *dir, const char *name, const char *conventions, enum trained_part part,
                            const char *loss_name, int depths)
{
    struct loss loss;
    char what[80];
    OK(loss_named(&loss, loss_name, depths, -1, &err));
    snprintf(what, sizeof what, "%s, %s", name, loss_name);
    check_loss(dir, what, conventions, part, depths, &loss);
}

TEST(gradients_of_published_losses_are_those_of_the_reference)
{
    char dir[64], one[64];
    struct loss mixture;
    check_published("golden/tiny/v3-mtp3", "v3-mtp3", NULL, TRAIN_MODULES, "fastmtp", 3);
    check_published("golden/tiny/v3-mtp3", "v3-mtp3", NULL, TRAIN_MODULES, "hass", 3);
    check_published("golden/tiny/v3", "v3", "draft-position=token", TRAIN_MODULES, "hass", 1);
    check_published("golden/tiny/v3", "v3", NULL, TRAIN_MODEL, "sum", 2);
    check_published("golden/tiny/glm", "glm", "main-hidden=pre-norm", TRAIN_MODULES, "eagle3", 4);
    small_checkpoint(dir, &small_checkpoints[0]);
    OK(loss_named(&mixture, "megatron", 3, 0.3, &err));
    mixture.terms = (struct loss_terms){.data = 0.5, .soft = 0.25, .top = 0.5, .features = 2, .top_tokens = 3};
    check_loss(dir, "mixture", "main-hidden=pre-norm,draft-hidden=pre-norm", TRAIN_MODEL, 3, &mixture);
    check_loss(dir, "mixture", NULL, TRAIN_MODEL, 3, &mixture);
    mixture.chain = CHAIN_ALIGNED;
    check_loss(dir, "aligned mixture", NULL, TRAIN_MODULES, 3, &mixture);
    small_checkpoint(one, &small_checkpoints[4]); /* with one module */
    check_step(one, "aligned mixture", "draft-position=token,draft-hidden=pre-norm", TRAIN_MODEL, 3, &mixture, MASKED);
    remove_dir(one);
    mixture.chain = CHAIN_MODULES;
    mixture.detached = 1;
    check_loss(dir, "detached mixture", "draft-hidden=pre-norm", TRAIN_MODEL, 3, &mixture);
    mixture.detached = 0;
    check_step(dir, "masked mixture", NULL, TRAIN_MODEL, 3, &mixture, 1);
    check_step(dir, "masked modules", "main-hidden=pre-norm", TRAIN_MODULES, 2, &mixture, 1);
    check_step(dir, "masked", NULL, TRAIN_MODEL, 2, NULL, 1);
    remove_dir(dir);
}

/* With soft targets, and masked; the conventions are those of modules, and change nothing here. */
TEST(gradients_of_parallel_heads_are_those_of_the_reference)
{
    for (const struct small_checkpoint *c = small_with_heads; c->name; c++) {
        char dir[64];
        struct loss loss;
        small_checkpoint(dir, c);
        OK(loss_named(&loss, "sum", c->heads, -1, &err));
        check_step(dir, c->name, NULL, TRAIN_MODEL, c->heads, &loss, HEADS);
        check_step(dir, c->name, NULL, TRAIN_HEADS, c->heads, NULL, HEADS | MASKED);
        loss.terms = (struct loss_terms){.data = 0.5, .soft = 0.25, .top = 0.5, .top_tokens = 3};
        check_step(dir, "soft", "main-hidden=pre-norm,draft-position=token", TRAIN_HEADS, c->heads, &loss, HEADS);
        check_step(dir, "soft", NULL, TRAIN_MODEL, c->heads, &loss, HEADS | MASKED);
        loss.detached = 1;
        check_step(dir, "detached", NULL, TRAIN_MODEL, c->heads, &loss, HEADS);
        remove_dir(dir);
    }
}

/* -- the loss ------------------------------------------------------------------------------------------------------ */

struct logits {
    float *z; /* [tokens, V] */
    size_t V;
};

static int keep_logits(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct logits *x = context;
    (void)hidden;
    if (depth < 0)
        memcpy(x->z + index * x->V, logits, x->V * sizeof *logits);
    return 0;
}

/* The sum of the cross entropies of a session's logits for the tokens that come `ahead` tokens later, as
 * op_cross_entropy adds them. */
static double loss_of_session(const vb_model *m, const int32_t *tokens, size_t n, size_t ahead)
{
    struct logits x = {calloc(n * m->config.dims.V, sizeof(float)), m->config.dims.V};
    struct op_ctx cx = {.k = kernels_select("best", NULL), .arithmetic = &arithmetic_exact, .threads = 1,
                        .most_threads = 1};
    double loss = 0;
    vb_session *s = open_session(m, &(vb_session_options){.prefill = "expanded", .threads = 1}, tokens, n);
    OK(vb_evaluate(s, 0, keep_logits, &x, &err));
    vb_session_close(s);
    cx.scratch_size = op_cross_entropy_scratch(n, x.V, 1);
    cx.scratch = aligned_alloc(64, cx.scratch_size);
    op_cross_entropy(&cx, &loss, x.z, x.z, tokens + ahead, 1.0f, n - ahead, x.V);
    free(cx.scratch);
    free(x.z);
    return loss;
}

TEST(the_forward_pass_has_the_bits_of_a_session_with_expanded_prefill)
{
    static const char *const paths[] = {TINY_CHECKPOINTS(TINY_PATH)};
    for (size_t i = 0; i < TINY_COUNT; i++) {
        struct training_step s;
        struct training_losses losses;
        vb_model *m = training_model(paths[i], NULL);
        training_step(&s, m, TRAIN_MODEL, 0);
        struct vb_trainer *t = training_open(m, &s);
        OK(trainer_losses(t, &s.list[4], 1, &losses, &err));
        double want = loss_of_session(m, s.list[4].tokens, s.list[4].count, 1) / (double)losses.rows;
        if (losses.main != want || losses.total != want)
            fail_msg("%s: the loss is %.17g, %.17g by the logits of a session", paths[i], losses.main, want);
        trainer_close(t);
        vb_model_close(m);
    }
}

/* The logits of a head that is a copy of the last layer, and reads the same rows, are the model's. */
TEST(heads_have_the_bits_of_a_session_with_expanded_prefill)
{
    static const char *const paths[] = {TINY_CHECKPOINTS(TINY_PATH)};
    for (size_t i = 0; i < TINY_COUNT; i++) {
        struct training_step s;
        struct training_losses losses;
        vb_model *m = training_model(paths[i], NULL);
        training_step(&s, m, TRAIN_HEADS, 2);
        training_heads_open(&s, m, NULL);
        s.heads.copied = 1;
        struct vb_trainer *t = training_open(m, &s);
        OK(trainer_losses(t, &s.list[4], 1, &losses, &err));
        for (size_t k = 0; k < 2; k++) {
            double want = loss_of_session(m, s.list[4].tokens, s.list[4].count, k + 2) / (double)losses.depth_rows[k];
            if (losses.by_depth[k] != want)
                fail_msg("%s: the loss of head %zu is %.17g, %.17g by the logits of a session", paths[i], k,
                         losses.by_depth[k], want);
        }
        trainer_close(t);
        vb_model_close(m);
    }
}

/* A row of module 0 after `have` rows of its cache, as mtp-eagle computes it, but with attention in the expanded
 * form. */
static struct row chain_row(const vb_model *m, struct kvcache *cache, size_t have, size_t ahead, int32_t token)
{
    int shift = m->config.conventions.value[DRAFT_POSITION] ? (int)ahead : 0;
    return (struct row){.cache = cache, .token = token, .index = (int32_t)have, .position = (int32_t)have + shift,
                        .slot = kvcache_append(cache), .expanded = 1};
}

/* Draft k after row i: rows 0..i read the target's rows, k more rows the output of the row before. The result is the
 * logits of the last. */
static void chain_logits(const vb_model *m, struct pass *pass, struct kvcache *cache, const int32_t *tokens,
                         const float *hidden, size_t i, size_t k, float *z)
{
    size_t d = m->config.dims.d;
    struct row rows[64];
    float g[64 * 64], next[64 * 64], h[64];
    assert_true(i < 64 && d <= 64);
    kvcache_truncate(cache, 0);
    for (size_t j = 0; j <= i; j++)
        rows[j] = chain_row(m, cache, j, 1, tokens[j + 1]);
    forward_mtp(pass, &m->mtp[0], 0, rows, hidden, g, next, i + 1);
    memcpy(h, next + i * d, d * sizeof *h);
    memmove(g, g + i * d, d * sizeof *g);
    for (size_t step = 1; step <= k; step++) {
        rows[0] = chain_row(m, cache, i + step, 1, tokens[i + step + 1]);
        forward_mtp(pass, &m->mtp[0], 0, rows, h, g, h, 1);
    }
    forward_head(pass, &m->mtp[0].head, z, g, 1);
}

struct hidden_rows {
    float *rows;
    size_t d;
};

static int keep_hidden(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct hidden_rows *x = context;
    (void)logits;
    if (depth < 0)
        memcpy(x->rows + index * x->d, hidden, x->d * sizeof *hidden);
    return 0;
}

/* The mean cross entropy of draft k after each row of a text. */
static double loss_of_chain(const vb_model *m, const int32_t *tokens, size_t n, size_t k)
{
    size_t V = m->config.dims.V, count = n - k - 2;
    struct hidden_rows hidden = {calloc(n * m->config.dims.d, sizeof(float)), m->config.dims.d};
    float *z = calloc(count * V, sizeof *z);
    struct pass pass;
    struct kvcache cache;
    double loss = 0;
    vb_session *s = open_session(m, &(vb_session_options){.prefill = "expanded", .threads = 1}, tokens, n);
    OK(vb_evaluate(s, 0, keep_hidden, &hidden, &err));
    vb_session_close(s);
    OK(pass_open(&pass, m, kernels_select("best", NULL), 1, n, 1, n, 1, &err));
    OK(kvcache_open(&cache, 1, n + k, model_mtp_cache_layout(&m->config), NULL, &err));
    for (size_t i = 0; i < count; i++)
        chain_logits(m, &pass, &cache, tokens, hidden.rows, i, k, z + i * V);
    struct op_ctx cx = {.k = kernels_select("best", NULL), .arithmetic = &arithmetic_exact, .threads = 1,
                        .most_threads = 1};
    cx.scratch_size = op_cross_entropy_scratch(count, V, 1);
    cx.scratch = aligned_alloc(64, cx.scratch_size);
    op_cross_entropy(&cx, &loss, z, z, tokens + k + 2, 1.0f, count, V);
    kvcache_close(&cache, NULL);
    pass_close(&pass);
    free(cx.scratch);
    free(z);
    free(hidden.rows);
    return loss / (double)count;
}

TEST(aligned_depths_have_the_bits_of_a_chain_of_drafts)
{
    static const struct {
        const char *dir, *conventions;
    } cases[] = {{"golden/tiny/v3-mtp3", NULL}, {"golden/tiny/v3", "draft-hidden=pre-norm,draft-position=token"},
                 {"golden/tiny/glm", NULL}};
    for (size_t c = 0; c < COUNT(cases); c++) {
        struct training_step s;
        struct training_losses losses;
        struct loss loss;
        vb_model *m = training_model(cases[c].dir, cases[c].conventions);
        training_step(&s, m, TRAIN_MODULES, 4);
        OK(loss_named(&loss, "eagle3", 4, -1, &err));
        loss.terms = (struct loss_terms){.data = 1};
        s.options.loss = &loss;
        struct vb_trainer *t = training_open(m, &s);
        OK(trainer_losses(t, &s.list[0], 1, &losses, &err));
        for (size_t k = 0; k < 4; k++) {
            double want = loss_of_chain(m, s.list[0].tokens, s.list[0].count, k);
            if (losses.by_depth[k] != want)
                fail_msg("%s: the loss of depth %zu is %.17g, that of drafts %.17g", cases[c].dir, k,
                         losses.by_depth[k], want);
        }
        trainer_close(t);
        vb_model_close(m);
    }
}

/* -- steps of another trainer -------------------------------------------------------------------------------------- */

static double option(json_t *golden, const char *name)
{
    return json_number_value(json_object_get(json_object_get(golden, "options"), name));
}

/* A weight is moved by lr m / (sqrt(v) + eps) and by its decay, at most by about lr in a step. Rounding errors of
 * gradients, which are below 10^-5 of a tensor's largest (the bounds above), enter with the factor lr / eps = 0.3, and
 * f32 rounds a weight below 4 by 2^-23. The losses of step i + 1 depend on i steps. */
static void check_steps(const char *name)
{
    char file[64], dir[64];
    int32_t tokens[128], *next = tokens;
    struct training_sequence list[8];
    size_t count, i, step;
    const char *tensor;
    json_t *one, *places, *entry;
    double far = 0, moved = 0;
    snprintf(file, sizeof file, "%s.steps", name);
    snprintf(dir, sizeof dir, "golden/tiny/%s", name);
    json_t *golden = golden_json(file), *sequences = json_object_get(golden, "sequences"),
           *steps = json_object_get(golden, "steps");
    json_array_foreach(sequences, count, one) {
        list[count] = (struct training_sequence){.tokens = next, .count = (size_t)read_tokens(one, next)};
        next += list[count].count;
    }
    count = json_array_size(sequences);
    vb_model *m = training_model(dir, NULL);
    struct trainer_options o = {.part = TRAIN_MODEL, .depths = (int)json_array_size(json_array_get(steps, 0)) - 3,
                                .threads = 1};
    o.mtp_loss_scaling_factor = json_real_value(json_object_get(golden, "mtp_loss_scaling_factor"));
    o.max_norm = option(golden, "max_norm");
    o.bias_update_speed = option(golden, "bias_update_speed");
    o.adamw = (struct adamw){.beta1 = option(golden, "beta1"), .beta2 = option(golden, "beta2")};
    o.adamw.eps = option(golden, "eps");
    o.adamw.weight_decay = option(golden, "weight_decay");
    struct vb_trainer *t, *before;
    OK(trainer_open(&t, m, &o, &err));
    OK(trainer_open(&before, m, &o, &err));
    json_array_foreach(steps, step, one) {
        struct training_losses losses;
        double norm, loss = json_real_value(json_array_get(one, 0)),
                     want_norm = json_real_value(json_array_get(one, 1));
        OK(trainer_gradients(t, list, count, &losses, &err));
        OK(trainer_update(t, (int64_t)step + 1, option(golden, "lr"), &norm, &err));
        far = fmax(far, fmax(fabs(losses.total - loss) / loss, fabs(norm - want_norm) / want_norm));
        if (!(fabs(losses.total - loss) <= 1e-5 * loss) || !(fabs(norm - want_norm) <= 1e-5 * want_norm))
            fail_msg("%s, step %zu: the loss is %.9g and the norm %.9g, PyTorch's are %.9g and %.9g", name, step + 1,
                     losses.total, norm, loss, want_norm);
    }
    json_object_foreach(json_object_get(golden, "changes"), tensor, places)
        json_array_foreach(places, i, entry) {
            size_t at = (size_t)json_integer_value(json_array_get(entry, 0));
            double want = json_real_value(json_array_get(entry, 1)), pass = training_tensor(t, tensor)->w[at];
            double change = pass - training_tensor(before, tensor)->w[at],
                   most = fabs(json_real_value(json_array_get(json_array_get(places, 0), 1)));
            double wrong = fabs(change - want);
            moved = fmax(moved, wrong / most);
            if (!(wrong <= 1e-4 * most + 8 * 0x1p-23 * fabs(pass)))
                fail_msg("%s: number %zu of %s changes by %.9g in all, PyTorch's by %.9g", name, at, tensor, change,
                         want);
        }
    print_message("%s: losses and norms of %zu steps differ by at most %.1g from PyTorch's, changes of weights by "
                  "%.1g\n",
                  name, step, far, moved);
    assert_true(json_object_size(json_object_get(golden, "changes")) == trainer_count(t));
    trainer_close(t);
    trainer_close(before);
    vb_model_close(m);
    json_decref(golden);
}

TEST(steps_are_those_of_pytorch)
{
    check_steps("v3");
    check_steps("v2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_whole_models_are_those_of_the_reference),
        cmocka_unit_test(gradients_of_modules_are_those_of_the_reference),
        cmocka_unit_test(gradients_of_small_models_are_those_of_the_reference),
        cmocka_unit_test(gradients_of_published_losses_are_those_of_the_reference),
        cmocka_unit_test(gradients_of_parallel_heads_are_those_of_the_reference),
        cmocka_unit_test(steps_are_those_of_pytorch),
        cmocka_unit_test(the_forward_pass_has_the_bits_of_a_session_with_expanded_prefill),
        cmocka_unit_test(heads_have_the_bits_of_a_session_with_expanded_prefill),
        cmocka_unit_test(aligned_depths_have_the_bits_of_a_chain_of_drafts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
