/* tools/bench/work.c -- how many bytes of weights the parts of a pass must read, and how many operations they must
 * do. */
#include <stdlib.h>
#include <string.h>

#include "engine/pass/vocab.h"
#include "engine/pass/reads.h"
#include "tools/bench/bench.h"

static double numbers_of(const struct weight_view *w) { return (double)w->rows * (double)w->cols; }

enum bench_loop bench_loop_of(enum weight_type type, int bf16)
{
    if (weight_is_quantized(type))
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
    to->gpu_bytes += more->gpu_bytes;
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
    work->bytes += read_bytes(w, w->rows);
    add_operations(work, loop, 2 * numbers_of(w) * rows);
}

/* Adds the work of eh_proj or of an output head. */
static void add_end(struct bench_parts *work, enum pass_part part, const struct vb_model *m,
                    const struct weight_view *w, double rows, int on_gpu)
{
    struct bench_work own = {0};
    add_in(&own, w, rows, bench_loop_of(w->type, m->config.precision == PRECISION_BF16));
    own.gpu_bytes = on_gpu ? own.bytes : 0;
    add_work(&work->part[part], &own);
}

/* The work of a layer: `rows` rows, each of which attends to `depth` tokens and all of which chose `experts` different
 * experts. `expanded`: for how many cache rows keys and values are computed; 0 if attention has the absorbed form. */
struct layer_work {
    const struct config *c;
    const struct mla *mla;
    double rows, depth, expanded, experts;
    struct bench_parts *to;
};

/* A routed expert reads its matrices once, and multiplies the rows that chose it. */
static void add_experts(const struct layer_work *l, const struct read *r)
{
    struct bench_work each = {0};
    add_in(&each, &r->w, l->rows * l->c->num_experts_per_tok,
           bench_loop_of(r->w.type, l->c->precision == PRECISION_BF16));
    each.bytes *= l->experts;
    add_work(&l->to->part[PART_EXPERTS], &each);
}

/* Keys of the expanded form are computed with fma. Queries and scores of an indexer are computed if there are tokens to
 * choose from. */
static void add_read(void *context, const struct read *r)
{
    const struct layer_work *l = context;
    int expands = r->part == PART_ATTENTION && l->expanded > 0;
    enum weight_type type = expands && r->exact ? WEIGHT_F32 : r->w.type;
    if (r->routed)
        add_experts(l, r);
    else if (r->part != PART_INDEXER || reads_chosen(l->c, l->mla, l->depth))
        add_in(&l->to->part[r->part], &r->w, expands ? l->expanded : l->rows,
               bench_loop_of(type, l->c->precision == PRECISION_BF16 && !r->exact));
}

/* Adds what attention does with `tokens` cached tokens. In the absorbed form, a score needs c + r numbers of a cache
 * row, and the weighted sum needs c. In the expanded form, they need n + r numbers of a key and v numbers of a
 * value. */
static void add_tokens(const struct layer_work *l, double tokens)
{
    const struct config *c = l->c;
    double latent = c->kv_lora_rank, rope = c->qk_rope_head_dim, nope = c->qk_nope_head_dim, value = c->v_head_dim;
    struct bench_work *work = &l->to->part[PART_ATTENTION];
    add_operations(work, LOOP_FMA,
                   2 * l->rows * tokens * c->num_attention_heads *
                       (l->expanded > 0 ? nope + rope + value : 2 * latent + rope));
    work->bytes += read_latents(c, tokens);
}

static void add_choice(const struct layer_work *l)
{
    struct bench_work *work = &l->to->part[PART_INDEXER];
    if (!l->mla->has_indexer || !reads_chosen(l->c, l->mla, l->depth))
        return;
    add_operations(work, LOOP_FMA, 2 * l->rows * l->depth * l->c->index_n_heads * l->c->index_head_dim);
    work->bytes += read_keys(l->c, l->depth);
}

static void add_layer(struct bench_parts *work, const struct config *c, const struct layer *layer, double rows,
                      double depth, double expanded, double experts)
{
    struct bench_parts own = {0};
    struct layer_work l = {c, &layer->self_attn, rows, depth, expanded, experts, &own};
    reads_of_layer(c, layer, add_read, &l);
    add_tokens(&l, reads_chosen(c, l.mla, depth) ? c->index_topk : depth);
    add_choice(&l);
    for (int part = 0; part < PASS_PARTS; part++) {
        int of_mlp = part == PART_DENSE || part == PART_ROUTER || part == PART_EXPERTS;
        if (of_mlp ? layer->mlp_on_device : layer->attention_on_device)
            own.part[part].gpu_bytes = own.part[part].bytes;
        add_work(&work->part[part], &own.part[part]);
    }
}

struct bench_work bench_attention_work(const struct vb_model *m, const struct layer *layer, double rows, double depth)
{
    struct bench_parts work = {0};
    /* the queries are the last tokens; each attends to the tokens up to itself */
    struct layer_work l = {&m->config, &layer->self_attn, rows, depth - (rows - 1) / 2, 0, 0, &work};
    reads_of_layer(&m->config, layer, add_read, &l);
    add_tokens(&l, l.depth);
    return work.part[PART_ATTENTION];
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

/* Returns for how many cache rows keys and values are computed with --prefill expanded: each chunk computes those of
 * all tokens up to its end. */
static double expanded_rows(size_t rows, size_t chunk)
{
    double sum = 0;
    for (size_t end = 0; end < rows;) {
        end = rows - end < chunk ? rows : end + chunk;
        sum += (double)end;
    }
    return sum;
}

int bench_pass_work(struct bench *b, const int32_t *tokens, size_t first, size_t rows, size_t head_rows, int expanded,
                    struct bench_parts *work)
{
    const struct vb_model *m = b->c->model;
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
    int code = EXIT_DONE, is_one = rows == 1 && !expanded; /* then each layer reads as many experts as a token
                                                              chooses */
    int failed = !is_one && vb_session_open(&s, m, &o, &err);
    if (s)
        s->pass->arithmetic.tensor_cores = 0; /* the CPU counts */
    if (failed || (!is_one && (vb_append(s, tokens, first + rows, &err) || vb_evaluate(s, 0, no_row, NULL, &err))))
        code = cli_error(b->c, &err);
    double keys = s && expanded ? expanded_rows(rows, s->chunk) : 0;
    vb_session_close(s);
    *work = (struct bench_parts){0};
    for (size_t l = 0; l < layers; l++) {
        double experts = is_one ? (double)c->dims.chosen : 0;
        for (size_t e = 0; e < E; e++)
            experts += k.chosen[l * E + e];
        add_layer(work, c, &m->layers[l], (double)rows, (double)first + ((double)rows + 1) / 2, keys, experts);
    }
    if (head_rows)
        add_end(work, PART_HEAD, m, &m->lm_head, (double)head_rows, m->offload.ends);
    free(k.chosen);
    return code;
}

/* Returns the output head of an MTP module: all of it, or the rows of the tokens that may be drafted. */
static const struct weight_view *head_of(const struct vb_model *m, const vb_draft_vocab *vocab, size_t module)
{
    return vocab ? &vocab->heads[module] : &m->mtp[module].head;
}

struct bench_parts bench_module_work(const struct vb_model *m, const vb_draft_vocab *vocab, size_t depth, size_t rows)
{
    struct bench_parts work = {0};
    const struct config *c = &m->config;
    double experts = (double)rows * c->num_experts_per_tok;
    if (experts > c->n_routed_experts)
        experts = c->n_routed_experts;
    add_end(&work, PART_EH, m, &m->mtp[0].eh_proj, (double)rows, m->offload.ends);
    add_layer(&work, c, &m->mtp[0].layer, (double)rows, (double)depth, 0, experts);
    add_end(&work, PART_HEAD, m, head_of(m, vocab, 0), 1, m->offload.ends && !vocab);
    return work;
}

/* --- a run of passes --- */

struct bench_counter {
    const struct vb_model *m;
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

struct bench_counter *bench_counter_open(const struct vb_model *m, const vb_draft_vocab *vocab, size_t prompt)
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
    const struct vb_model *m = k->m;
    const struct config *c = &m->config;
    double rows = (double)k->rows, depth = (double)k->last + 1 - (rows - 1) / 2;
    if (k->any && k->rows && !is_prompt(k)) {
        for (int32_t l = 0; k->depth < 0 && l < c->num_hidden_layers; l++)
            add_layer(&k->work, c, &m->layers[l], rows, depth, 0, experts_of(k, l));
        const struct mtp_module *module = k->depth < 0 ? NULL : &m->mtp[k->layer - c->num_hidden_layers];
        if (module) {
            add_end(&k->work, PART_EH, m, &module->eh_proj, rows, m->offload.ends);
            add_layer(&k->work, c, &module->layer, rows, depth, 0, experts_of(k, k->layer));
        }
        if (k->head_rows)
            add_end(&k->work, PART_HEAD, m, module ? head_of(m, k->vocab, (size_t)(module - m->mtp)) : &m->lm_head,
                    (double)k->head_rows, m->offload.ends && !(module && k->vocab));
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
