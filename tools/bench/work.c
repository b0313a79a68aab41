/* tools/bench/work.c -- how many bytes of weights the parts of a pass must read, and how many operations they must do. */
#include <stdlib.h>
#include <string.h>

#include "engine/draft/vocab.h"
#include "ops/weights.h"
#include "tools/bench/bench.h"

static double bytes_of(const struct weight_view *w) { return (double)weight_bytes(w); }

static double numbers_of(const struct weight_view *w) { return (double)w->rows * (double)w->cols; }

enum bench_loop bench_loop_of(enum weight_type type, int bf16)
{
    if (weight_is_quantised(type))
        return type == WEIGHT_Q8_0 ? LOOP_INT8 : LOOP_INT4;
    return bf16 ? LOOP_BF16 : LOOP_FMA;
}

static void add_operations(struct bench_work *work, enum bench_loop loop, double operations)
{
    work->flops += operations;
    work->of_loop[loop] += operations;
}

static void add_work(struct bench_work *to, const struct bench_work *more)
{
    to->bytes += more->bytes;
    for (int loop = 0; loop < BENCH_LOOPS; loop++)
        add_operations(to, loop, more->of_loop[loop]);
}

struct bench_work bench_sum(const struct bench_parts *parts)
{
    struct bench_work sum = {0};
    for (int part = 0; part < PASS_PARTS; part++)
        add_work(&sum, &parts->part[part]);
    return sum;
}

/* Adds the work of multiplying `rows` rows by a matrix. The matrix is read once. Each number of it costs one product
 * and one addition per row. */
static void add_in(struct bench_work *work, const struct weight_view *w, double rows, enum bench_loop loop)
{
    work->bytes += bytes_of(w);
    add_operations(work, loop, 2 * numbers_of(w) * rows);
}

static void add(struct bench_parts *work, enum pass_part part, const struct config *c, const struct weight_view *w, double rows)
{
    int bf16 = c->precision == PRECISION_BF16 && part != PART_ROUTER; /* the router's input is never rounded */
    add_in(&work->part[part], w, rows, bench_loop_of(w->type, bf16));
}

static void add_mlp(struct bench_parts *work, enum pass_part part, const struct config *c, const struct mlp *m, double rows)
{
    add(work, part, c, &m->gate_proj, rows);
    add(work, part, c, &m->up_proj, rows);
    add(work, part, c, &m->down_proj, rows);
}

/* Adds the work of attention. W_uk (for the queries) and W_uv (for the outputs of the heads) are read once. Then each
 * row attends to `depth` rows of the cache: a score needs c + r numbers of a cache row, and the weighted sum needs c.
 * The cache rows are read as well. If `expanded` is not 0, attention has the expanded form: W_uk and W_uv multiply
 * `expanded` cache rows, a score needs n + r numbers of a key, and the weighted sum needs v numbers of a value. */
static void add_heads(struct bench_parts *parts, const struct config *c, const struct mla *a, double rows, double depth, double expanded)
{
    double H = c->num_attention_heads, latent = c->kv_lora_rank, rope = c->qk_rope_head_dim;
    double nope = c->qk_nope_head_dim, value = c->v_head_dim;
    /* if both are views of kv_b_proj, `rows` also counts the rows of the other one */
    struct weight_view w_uk = a->w_uk, w_uv = a->w_uv;
    struct bench_work *work = &parts->part[PART_ATTENTION];
    w_uk.rows = c->dims.H * (a->uk_transposed ? c->dims.c : c->dims.n);
    w_uv.rows = c->dims.H * c->dims.v;
    /* q_abs is computed with fma in every precision, but with integers if W_uk is quantised; keys always with fma */
    add_in(work, &w_uk, expanded > 0 ? expanded : rows, bench_loop_of(expanded > 0 ? WEIGHT_F32 : w_uk.type, 0));
    add(parts, PART_ATTENTION, c, &w_uv, expanded > 0 ? expanded : rows);
    add_operations(work, LOOP_FMA, 2 * rows * depth * H * (expanded > 0 ? nope + rope + value : 2 * latent + rope));
    struct kv_layout layout = model_cache_layout(c);
    work->bytes += depth * 4 * (double)kv_row_words(&layout);
}

/* Adds the work of an indexer. Queries and scores are computed if there are tokens to choose from; each token's key is read. */
static void add_indexer(struct bench_parts *parts, const struct config *c, const struct mla *a, double rows, double depth)
{
    struct bench_work *work = &parts->part[PART_INDEXER];
    add(parts, PART_Q_A, c, &a->indexer.wk, rows);
    if (depth <= c->index_topk)
        return;
    add(parts, PART_INDEXER, c, &a->indexer.wq_b, rows);
    add_in(work, &a->indexer.weights_proj, rows, bench_loop_of(a->indexer.weights_proj.type, 0));
    add_operations(work, LOOP_FMA, 2 * rows * depth * c->index_n_heads * c->index_head_dim);
    work->bytes += depth * (double)model_cache_layout(c).index_row;
}

static void add_attention(struct bench_parts *work, const struct config *c, const struct mla *a, double rows, double depth, double expanded)
{
    if (c->q_lora_rank) {
        add(work, PART_Q_A, c, &a->q_a_proj, rows);
        add(work, PART_Q_B, c, &a->q_b_proj, rows);
    } else {
        add(work, PART_Q_A, c, &a->q_proj, rows);
    }
    add(work, PART_Q_A, c, &a->kv_a_proj_with_mqa, rows);
    if (a->has_indexer)
        add_indexer(work, c, a, rows, depth);
    add_heads(work, c, a, rows, c->index_topk && depth > c->index_topk ? c->index_topk : depth, expanded);
    add(work, PART_O, c, &a->o_proj, rows);
}

/* experts: the number of different experts that the rows chose */
static void add_experts(struct bench_parts *work, const struct config *c, const struct moe *moe, double rows, double experts)
{
    struct bench_parts one = {0};
    struct bench_work *each = &one.part[PART_EXPERTS];
    add_mlp(&one, PART_EXPERTS, c, &moe->experts[0], rows * c->num_experts_per_tok);
    each->bytes *= experts;
    add_work(&work->part[PART_EXPERTS], each);
    if (c->n_shared_experts)
        add_mlp(work, PART_EXPERTS, c, &moe->shared_experts, rows);
}

static void add_layer(struct bench_parts *work, const struct config *c, const struct layer *l, double rows, double depth,
                      double expanded, double experts)
{
    add_attention(work, c, &l->self_attn, rows, depth, expanded);
    if (!l->is_moe) {
        add_mlp(work, PART_DENSE, c, &l->mlp, rows);
        return;
    }
    add(work, PART_ROUTER, c, &l->moe.gate, rows);
    add_experts(work, c, &l->moe, rows, experts);
}

struct bench_work bench_attention_work(const struct model *m, const struct mla *a, double rows, double depth)
{
    struct bench_parts work = {0};
    /* the queries are the last tokens; each attends to the tokens up to itself */
    add_heads(&work, &m->config, a, rows, depth - (rows - 1) / 2, 0);
    return bench_sum(&work);
}

struct counted { /* which experts each layer chose for the tokens with index `first` and above */
    const struct config *c;
    size_t first;
    char *chosen;   /* [layers, E] */
};

static void count_experts(void *context, const vb_tap *tap)
{
    struct counted *k = context;
    if (tap->depth >= 0 || !cli_ends_with(tap->name, ".mlp.gate.experts"))
        return;
    for (size_t r = 0; r < tap->rows; r++)
        for (size_t i = 0; i < tap->inner && (size_t)tap->row[r].index >= k->first; i++)
            k->chosen[tap->layer * k->c->n_routed_experts + ((const int32_t *)tap->data)[r * tap->stride + i]] = 1;
}

static int no_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)context, (void)depth, (void)index, (void)logits, (void)hidden;
    return 0;
}

/* Returns for how many cache rows keys and values are computed with --prefill expanded: each chunk computes those of all
 * tokens up to its end. */
static double expanded_rows(size_t rows, size_t chunk)
{
    double sum = 0;
    for (size_t end = 0; end < rows;) {
        end = rows - end < chunk ? rows : end + chunk;
        sum += (double)end;
    }
    return sum;
}

int bench_pass_work(struct bench *b, const int32_t *tokens, size_t first, size_t rows, size_t head_rows, int expanded, struct bench_parts *work)
{
    const struct model *m = b->c->model;
    const struct config *c = &m->config;
    size_t layers = c->dims.layers, E = c->dims.E ? c->dims.E : 1;
    struct counted k = {c, first, calloc(layers * E, 1)};
    vb_session_options o = b->c->session;
    vb_session *s = NULL;
    vb_error err = {0};
    cli_must(k.chosen);
    o.context = (int32_t)(first + rows);
    o.prefill = expanded ? "expanded" : NULL;
    o.tap = count_experts;
    o.tap_context = &k;
    int code = EXIT_DONE;
    if (vb_session_open(&s, m, &o, &err) || vb_append(s, tokens, first + rows, &err) || vb_evaluate(s, 0, no_row, NULL, &err))
        code = cli_error(b->c, &err);
    double keys = s && expanded ? expanded_rows(rows, s->chunk) : 0;
    vb_session_close(s);
    *work = (struct bench_parts){0};
    for (size_t l = 0; l < layers; l++) {
        double experts = 0;
        for (size_t e = 0; e < E; e++)
            experts += k.chosen[l * E + e];
        add_layer(work, c, &m->layers[l], (double)rows, (double)first + ((double)rows + 1) / 2, keys, experts);
    }
    if (head_rows)
        add(work, PART_HEAD, c, &m->lm_head, (double)head_rows);
    free(k.chosen);
    return code;
}

/* Returns the output head of an MTP module: all of it, or the rows of the tokens that may be drafted. */
static const struct weight_view *head_of(const struct model *m, const vb_draft_vocab *vocab, size_t module)
{
    return vocab ? &vocab->heads[module] : &m->mtp[module].head;
}

struct bench_parts bench_module_work(const struct model *m, const vb_draft_vocab *vocab, size_t depth, size_t rows)
{
    struct bench_parts work = {0};
    const struct config *c = &m->config;
    double experts = (double)rows * c->num_experts_per_tok;
    if (experts > c->n_routed_experts)
        experts = c->n_routed_experts;
    add(&work, PART_EH, c, &m->mtp[0].eh_proj, (double)rows);
    add_layer(&work, c, &m->mtp[0].layer, (double)rows, (double)depth, 0, experts);
    add(&work, PART_HEAD, c, head_of(m, vocab, 0), 1);
    return work;
}

/* --- a run of passes --- */

struct bench_counter {
    const struct model *m;
    const vb_draft_vocab *vocab;
    size_t prompt, E;
    struct bench_parts work;
    /* the pass whose taps are being received */
    int any, depth;        /* depth: the MTP depth; -1: the target */
    uint64_t pass;
    int32_t layer;         /* the layer of the module */
    size_t rows, head_rows;
    int32_t last;          /* the index of the last row of the pass */
    char *chosen;          /* [layers + modules, E] */
};

struct bench_counter *bench_counter_open(const struct model *m, const vb_draft_vocab *vocab, size_t prompt)
{
    struct bench_counter *k = calloc(1, sizeof *k);
    cli_must(k);
    k->m = m;
    k->vocab = vocab;
    k->prompt = prompt;
    k->E = m->config.dims.E ? m->config.dims.E : 1;
    k->chosen = calloc((m->config.dims.layers + (size_t)m->num_mtp) * k->E, 1);
    cli_must(k->chosen);
    return k;
}

static double experts_of(const struct bench_counter *k, int32_t layer)
{
    double experts = 0;
    for (size_t e = 0; e < k->E; e++)
        experts += k->chosen[(size_t)layer * k->E + e];
    return experts;
}

/* Returns whether the pass computes rows of the prompt only. Row i of a module takes the token with index i + 1, so the
 * module's rows of the prompt end one row earlier. */
static int is_prompt(const struct bench_counter *k) { return k->last + (k->depth >= 0) < (int32_t)k->prompt; }

/* Adds the work of the received pass to the sum. */
static void end_pass(struct bench_counter *k)
{
    const struct model *m = k->m;
    const struct config *c = &m->config;
    double rows = (double)k->rows, depth = (double)k->last + 1 - (rows - 1) / 2;
    if (k->any && k->rows && !is_prompt(k)) {
        for (int32_t l = 0; k->depth < 0 && l < c->num_hidden_layers; l++)
            add_layer(&k->work, c, &m->layers[l], rows, depth, 0, experts_of(k, l));
        const struct mtp_module *module = k->depth < 0 ? NULL : &m->mtp[k->layer - c->num_hidden_layers];
        if (module) {
            add(&k->work, PART_EH, c, &module->eh_proj, rows);
            add_layer(&k->work, c, &module->layer, rows, depth, 0, experts_of(k, k->layer));
        }
        if (k->head_rows)
            add(&k->work, PART_HEAD, c, module ? head_of(m, k->vocab, (size_t)(module - m->mtp)) : &m->lm_head, (double)k->head_rows);
    }
    k->rows = k->head_rows = 0;
    memset(k->chosen, 0, (c->dims.layers + (size_t)m->num_mtp) * k->E);
}

void bench_count(void *counter, const vb_tap *tap)
{
    struct bench_counter *k = counter;
    if (!k->any || tap->pass != k->pass) {
        end_pass(k);
        k->any = 1;
        k->pass = tap->pass;
        k->depth = tap->depth;
    }
    if (cli_ends_with(tap->name, ".input_layernorm.input")) { /* every layer passes all rows of the pass to this tap */
        k->layer = tap->layer;
        k->rows = tap->rows;
        k->last = tap->row[tap->rows - 1].index;
    } else if (cli_ends_with(tap->name, ".mlp.gate.experts")) {
        for (size_t r = 0; r < tap->rows; r++)
            for (size_t i = 0; i < tap->inner; i++)
                k->chosen[(size_t)tap->layer * k->E + (size_t)((const int32_t *)tap->data)[r * tap->stride + i]] = 1;
    } else if (cli_ends_with(tap->name, "head.output")) {
        k->head_rows += tap->rows;
    }
}

struct bench_work bench_counter_close(struct bench_counter *k)
{
    end_pass(k);
    struct bench_work work = bench_sum(&k->work);
    free(k->chosen);
    free(k);
    return work;
}
