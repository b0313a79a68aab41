/* tools/dump/values.c -- runs the engine or the reference and passes their values to the dump. Values come from the
 * engine's taps, or from the reference's hook; then they are renamed to Verbatim's names. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/values.h"
#include "reference/reference.h"
#include "tools/dump/dump.h"

struct target {
    struct dump *dump;
    int32_t layers;   /* how many layers the target has */
    int depths;       /* how many MTP depths compute the prompt */
    int scores;       /* whether attention scores are wanted */
    const struct config *config;   /* of the layer that is computed now */
    const struct config *of_heads; /* of parallel heads */
    /* the members below are used for the reference only */
    const int32_t *ids;
    size_t tokens;    /* the number of ids */
    int depth;        /* the MTP depth that is being computed; -1: the target */
    struct conventions conventions;
    size_t phantom;   /* 1 if the pass begins with the row of zeros of the convention first-row=phantom */
    vb_tap_row *rows; /* the rows of the current pass */
    size_t count;
    int32_t *experts; /* the experts that the reference chose in layer `moe_layer`, [count, chosen] */
    size_t chosen;
    int moe_layer, residual_layer;
    /* of the engine, with an indexer: the tokens that the rows of a pass attend to, since the last layer that chose
     * them */
    struct kept_row *kept;
    size_t kept_count;
    int kept_layer;
    uint64_t kept_pass;
};

struct kept_row {
    int32_t index, slot; /* of the row */
    size_t count;
    int32_t *tokens;
};

static void forget_kept(struct target *t)
{
    while (t->kept_count)
        free(t->kept[--t->kept_count].tokens);
}

static void keep_kept(struct target *t, const vb_tap *tap)
{
    if (tap->layer != t->kept_layer || tap->pass != t->kept_pass)
        forget_kept(t);
    t->kept_layer = tap->layer;
    t->kept_pass = tap->pass;
    t->kept = cli_must(realloc(t->kept, (t->kept_count + (size_t)tap->rows) * sizeof *t->kept));
    for (size_t i = 0; i < (size_t)tap->rows; i++) {
        struct kept_row *k = &t->kept[t->kept_count++];
        *k = (struct kept_row){tap->row[i].index, tap->row[i].slot, (size_t)tap->inner,
                               cli_must(malloc(((size_t)tap->inner + 1) * sizeof *k->tokens))};
        memcpy(k->tokens, (const int32_t *)tap->data + i * (size_t)tap->stride, k->count * sizeof *k->tokens);
    }
}

/* Returns a row of attention scores with one number for each token: -inf for those that the indexer does not keep.
 * NULL: `tap` is no such row, or all tokens are kept. The engine reports attention scores row by row. */
static float *spread(const struct target *t, const vb_tap *tap, size_t *width)
{
    const struct kept_row *k = t->kept;
    size_t left = t->kept_count;
    if (!strstr(tap->name, ".self_attn.scores.") || tap->rows != 1 || tap->pass != t->kept_pass)
        return NULL;
    for (; left && (k->index != tap->row->index || k->slot != tap->row->slot); left--)
        k++;
    if (!left || k->count != (size_t)tap->inner || !k->count)
        return NULL;
    *width = (size_t)(tap->depth < 0 ? tap->row->position : tap->row->index) + 1;
    *width = (size_t)k->tokens[k->count - 1] < *width
                 ? *width
                 : (size_t)k->tokens[k->count - 1] + 1; /* a phantom row counts too */
    float *scores = cli_must(malloc(*width * sizeof *scores));
    for (size_t i = 0; i < *width; i++)
        scores[i] = -INFINITY;
    for (size_t i = 0; i < k->count; i++)
        scores[k->tokens[i]] = ((const float *)tap->data)[i];
    return scores;
}

static void on_tap(void *context, const vb_tap *tap)
{
    struct target *t = context;
    size_t width = 0;
    if (strstr(tap->name, ".self_attn.indexer.kept"))
        keep_kept(t, tap);
    float *scores = spread(t, tap, &width);
    dump_rows(t->dump,
              &(struct dump_rows){.name = tap->name, .layer = tap->layer, .depth = tap->depth, .pass = tap->pass,
                                  .rows = tap->rows, .row = tap->row, .outer = tap->outer,
                                  .inner = scores ? width : tap->inner, .stride = scores ? width : tap->stride,
                                  .outer_stride = tap->outer_stride, .dtype = tap->integers ? DUMP_I32 : DUMP_F32,
                                  .data = scores ? scores : tap->data});
    free(scores);
    if (tap->layer >= 0 && t->dump->step == 0)
        cli_progress("layer", (size_t)tap->layer + 1, (size_t)(t->layers + t->depths));
}

static int on_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)depth, (void)context, (void)index, (void)logits, (void)hidden;
    return 0;
}

static int on_token(void *context, const vb_event *event)
{
    struct target *t = context;
    dump_emitted(t->dump, event->index, event->draft);
    return 0;
}

static int dump_engine(struct cli *c, struct target *t, const int32_t *ids, size_t count)
{
    vb_session *session = NULL;
    vb_error err = {0};
    long long n = c->n > 0 ? c->n : 0;
    c->session.tap = on_tap;
    c->session.tap_context = t;
    c->session.tap_scores = t->scores;
    /* compute the prompt in one pass, unless another chunk size is given */
    if (!c->session.prefill_chunk && (!c->session.prefill || strcmp(c->session.prefill, "onednn")))
        c->session.prefill_chunk = (int32_t)count;
    int code = cli_session(c, count, n, &session);
    if (code == EXIT_DONE) {
        vb_result result;
        vb_generate_options g = {.max_tokens = (size_t)n, .ignore_eos = c->ignore_eos, .callback = on_token,
                                 .context = t};
        int failed = vb_append(session, ids, count, &err) || (n ? vb_generate(session, &g, &result, &err)
                                                                : vb_evaluate(session, t->depths, on_row, NULL, &err));
        if (failed)
            code = cli_error(c, &err);
    }
    vb_session_close(session);
    forget_kept(t);
    free(t->kept);
    return code;
}

/* --- the reference: its names, and the names in a dump --- */

static const struct { const char *reference; enum pass_value value; } names[] = {
    {"taken", HNORM_INPUT}, {"input_layernorm", INPUT_NORM}, {"q_a", Q_A}, {"q_a_norm", Q_A_NORM}, {"kv_a", KV_A},
    {"latent", LATENT}, {"q_rope", Q_ROPE}, {"k_rope", K_ROPE}, {"index_wk", INDEX_WK},
    {"index_k_norm", INDEX_K_NORM}, {"index_k", INDEX_K}, {"index_wq_b", INDEX_WQ_B},
    {"index_weights_proj", INDEX_WEIGHTS_PROJ}, {"index_q", INDEX_Q}, {"index_weights", INDEX_WEIGHTS},
    {"heads", ATTENTION_HEADS}, {"attention", O_PROJ}, {"post_attention_layernorm", POST_ATTENTION_NORM},
    {"router_logits", ROUTER_LOGITS}, {"router_scores", ROUTER_SCORES}, {"router_choice", ROUTER_CHOICE},
    {"router_weights", ROUTER_WEIGHTS}, {"moe", MLP_OUTPUT}, {"norm", FINAL_NORM}, {"enorm", ENORM}, {"hnorm", HNORM},
    {"concat", EH_INPUT}, {"eh_proj", EH_PROJ}, {"shared_head_norm", MODULE_NORM},
};

/* `index`: the number of the head or expert for the H or E in the value's name. */
static void add_reference(struct target *t, enum pass_value value, int index, int layer, const vb_tap_row *row,
                          size_t rows, size_t outer, size_t inner, size_t stride, enum dump_dtype dtype,
                          const void *data)
{
    const char *name = value_table[value].name, *letter = strpbrk(name, "EH");
    char full[128], in_layer[32] = "";
    if (layer >= 0)
        snprintf(in_layer, sizeof in_layer, "model.layers.%d.", layer);
    if (letter)
        snprintf(full, sizeof full, "%s%.*s%d%s", in_layer, (int)(letter - name), name, index, letter + 1);
    else
        snprintf(full, sizeof full, "%s%s", in_layer, name);
    dump_rows(t->dump,
              &(struct dump_rows){.name = full, .layer = layer, .depth = t->depth, .pass = (uint64_t)(t->depth + 1),
                                  .rows = rows, .row = row, .outer = outer, .inner = inner, .stride = stride,
                                  .outer_stride = inner, .dtype = dtype, .data = data});
}

static void add_matrix(struct target *t, enum pass_value value, int layer, const struct reference_value *v)
{
    size_t D = (size_t)v->cols;
    add_reference(t, value, v->index, layer, t->rows, t->count, 1, D, D, DUMP_F64, v->data);
}

/* Begins a pass and sets its rows. MTP depth k reads the tokens that are k+1 places later. */
static void reference_pass(struct target *t, int depth)
{
    const unsigned char *convention = t->conventions.value;
    int phantom = depth >= 0 && convention[FIRST_ROW], ahead = depth + 1;
    int first = depth >= 0 && convention[DRAFT_POSITION] ? ahead - phantom : -phantom; /* the RoPE position of the first
                                                                                          row */
    t->depth = depth;
    t->phantom = (size_t)phantom;
    t->count = t->tokens - (size_t)ahead + t->phantom;
    t->moe_layer = t->residual_layer = -1;
    for (int i = 0; i < (int)t->count; i++)
        t->rows[i] = (vb_tap_row){.token = t->ids[i - phantom + ahead], .index = i - phantom, .position = first + i,
                                  .slot = i, .hidden_of = depth < 0 ? -1 : i - phantom,
                                  .hidden_depth = depth < 0 ? -1 : depth - 1};
}

/* Adds choices, which the reference stores as doubles, as integers. Returns them. */
static int32_t *integers(struct target *t, enum pass_value value, const struct reference_value *v)
{
    size_t n = (size_t)v->rows * (size_t)v->cols, cols = (size_t)v->cols;
    int32_t *numbers = malloc(n * sizeof *numbers);
    cli_must(numbers);
    for (size_t i = 0; i < n; i++)
        numbers[i] = (int32_t)v->data[i];
    add_reference(t, value, -1, v->layer, t->rows, t->count, 1, cols, cols, DUMP_I32, numbers);
    return numbers;
}

/* Adds the residual stream. In each layer, it comes once after attention and once after the MLP. The second value is
 * the output of the layer and the input of the next step. */
static void reference_residual(struct target *t, const struct reference_value *v)
{
    int last = v->layer == t->residual_layer, next = v->layer + 1;
    t->residual_layer = last ? -1 : v->layer;
    add_matrix(t, last ? LAYER_OUTPUT : MIDDLE, v->layer, v);
    if (last && t->depth >= 0)
        add_matrix(t, MODULE_NORM_INPUT, v->layer, v);
    else if (last && next < t->layers)
        add_matrix(t, LAYER_INPUT, next, v);
    else if (last)
        add_matrix(t, FINAL_NORM_INPUT, -1, v);
}

/* Begins a pass with its embedding. */
static void reference_embedding(struct target *t, const struct reference_value *v)
{
    reference_pass(t, v->layer < 0 ? -1 : v->layer - t->layers);
    add_matrix(t, t->depth < 0 ? EMBEDDING : MODULE_EMBEDDING, v->layer, v);
    if (t->depth < 0)
        add_matrix(t, LAYER_INPUT, 0, v);
}

static void reference_down(struct target *t, const struct reference_value *v)
{
    size_t D = (size_t)v->cols;
    if (v->index < 0) {
        add_matrix(t, t->moe_layer == v->layer ? SHARED_EXPERTS : MLP_OUTPUT, v->layer, v);
        return;
    }
    for (size_t i = 0, row = 0; i < t->count * t->chosen; i++)
        if (t->experts[i] == v->index)
            add_reference(t, EXPERT_OUTPUT, v->index, v->layer, t->rows + i / t->chosen, 1, 1, D, D, DUMP_F64,
                          v->data + row++ * D);
}

/* Begins a pass of a parallel head. Its row i belongs to token i. */
static void reference_trunk(struct target *t, const struct reference_value *v)
{
    reference_pass(t, -1);
    t->depth = v->layer - t->layers;
    t->config = t->of_heads;
    for (size_t i = 0; i < t->count; i++) {
        t->rows[i].hidden_of = (int32_t)i;
        t->rows[i].hidden_depth = -1;
    }
    add_matrix(t, LAYER_INPUT, v->layer, v);
}

static void on_value(void *context, const struct reference_value *v)
{
    struct target *t = context;
    size_t inner = (size_t)v->cols;
    if (!strcmp(v->name, "embed"))
        reference_embedding(t, v);
    if (!strcmp(v->name, "trunk"))
        reference_trunk(t, v);
    /* the head computes nothing for the phantom row */
    size_t headless = !strcmp(v->name, "shared_head_norm") || !strcmp(v->name, "logits") ? t->phantom : 0;
    const vb_tap_row *row = t->rows + headless;
    size_t S = t->count - headless, outer = (size_t)v->rows / S;
    if (!strcmp(v->name, "router_experts")) {
        free(t->experts); /* reference_down needs the experts of each token */
        t->experts = integers(t, ROUTER_EXPERTS, v);
        t->chosen = (size_t)v->cols;
        t->moe_layer = v->layer;
    } else if (!strcmp(v->name, "router_kept") && t->config->topk_group < t->config->n_group) {
        free(integers(t, ROUTER_GROUPS, v));
    } else if (!strcmp(v->name, "router_groups") && t->config->topk_group < t->config->n_group) {
        add_matrix(t, ROUTER_GROUP_SCORES, v->layer, v);
    } else if (!strcmp(v->name, "experts_sum") && t->config->n_shared_experts == 0) {
        add_matrix(t, MLP_OUTPUT, v->layer, v);
    } else if (!strcmp(v->name, "down")) {
        reference_down(t, v);
    } else if (!strcmp(v->name, "scores")) {
        if (t->scores)
            add_matrix(t, ATTENTION_SCORES, v->layer, v);
    } else if (!strcmp(v->name, "index_scores") && t->scores) {
        add_matrix(t, INDEX_SCORES, v->layer, v);
    } else if (!strcmp(v->name, "index_set")) {
        free(integers(t, INDEX_KEPT, v));
    } else if (!strcmp(v->name, "index_margin")) {
        add_reference(t, INDEX_MARGIN, -1, v->layer, t->rows + t->count - v->rows, (size_t)v->rows, 1, 1, 1, DUMP_F64,
                      v->data);
    } else if (!strcmp(v->name, "q")) {
        add_matrix(t, t->config->q_lora_rank ? Q_B : Q_PROJ, v->layer, v);
    } else if (!strcmp(v->name, "logits")) {
        add_reference(t, t->depth < 0 ? LOGITS : MODULE_LOGITS, -1, v->layer, row, S, 1, inner, inner, DUMP_F64,
                      v->data);
    } else if (!strcmp(v->name, "eh_proj")) {
        add_matrix(t, LAYER_INPUT, v->layer, v);
    } else if (!strcmp(v->name, "residual")) {
        reference_residual(t, v);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(v->name, names[i].reference))
            add_reference(t, names[i].value, -1, v->layer, row, S, outer, inner, outer * inner, DUMP_F64, v->data);
    if (v->layer >= 0)
        cli_progress("layer", (size_t)v->layer + 1, (size_t)(t->layers + t->depths));
}

static int is_of_heads(const struct cli *c)
{
    int kind = 0;
    return c->session.drafting.head && !vb_draft_head(&kind, c->session.drafting.head, NULL) &&
           kind == VB_PARALLEL_HEADS;
}

/* The target's values, and those of its parallel heads. Returns an error code. */
static int run_heads(const char *dir, struct target *t, const struct reference *r, const struct reference_options *o,
                     vb_error *err)
{
    struct reference *heads;
    int code = reference_heads_open(&heads, dir, r, err);
    if (code)
        return code;
    t->of_heads = reference_config(heads);
    code = reference_heads(r, heads, o, t->ids, (int)t->tokens, NULL, err);
    reference_close(heads);
    return code;
}

static int dump_reference(struct cli *c, struct target *t, const int32_t *ids, size_t count, uint64_t perturb)
{
    struct reference *r;
    vb_error err = {0};
    struct reference_options o = {.hook = on_value, .hook_context = t, .perturb = perturb, .x_as_is = c->x_as_is,
                                  .routes = c->session.routes.experts, .route_tokens = (int)c->session.routes.tokens,
                                  .route_layers = c->session.routes.layers, .sets = c->session.routes.kept,
                                  .set_tokens = (int)c->session.routes.tokens, .set_layers = c->session.routes.layers,
                                  .expanded = c->session.prefill && !strcmp(c->session.prefill, "expanded") ? (int)count
                                                                                                            : 0};
    vb_model_facts facts = cli_facts(c);
    if (conventions_parse(&o.conventions, facts.conventions, &err) ||
        precision_parse(&o.precision, NULL, facts.precision, &err) ||
        cache_type_parse(&o.cache_type, facts.cache_type, &err) || reference_open(&r, c->model_dir, NULL, &err))
        return cli_error(c, &err);
    t->config = reference_config(r);
    t->conventions = o.conventions;
    t->ids = ids;
    t->tokens = count;
    t->rows = calloc(count + 1, sizeof *t->rows);
    cli_must(t->rows);
    int failed = is_of_heads(c) ? run_heads(c->session.drafting.head, t, r, &o, &err)
                                : reference_modules(r, &o, ids, (int)count, t->depths, NULL, &err);
    reference_close(r);
    free(t->experts);
    free(t->rows);
    return failed ? cli_error(c, &err) : EXIT_DONE;
}

int dump_values(struct cli *c, struct dump *dump, const int32_t *ids, size_t count, uint64_t perturb)
{
    vb_model_facts facts = cli_facts(c);
    struct target t = {.dump = dump, .layers = facts.layers};
    t.depths = c->n > 0 ? 0 : vb_mtp_modules(c->model) < VB_MAX_DRAFT ? vb_mtp_modules(c->model) : VB_MAX_DRAFT;
    dump->layout = facts.rope_halves ? "halves" : "interleaved";
    dump->layers = t.layers;
    dump->prompt = count;
    dump->decodes = c->n > 0;
    t.scores = dump_wants_scores(dump, t.layers + t.depths, facts.attention_heads);
    return c->reference ? dump_reference(c, &t, ids, count, perturb) : dump_engine(c, &t, ids, count);
}
