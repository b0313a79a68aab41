/* tools/bench_work.c -- how many bytes of weights a pass must read, and how many operations it must do. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static double bytes_of(const struct weight_view *w)
{
    static const double size[WEIGHT_TYPES] = {4, 2, 2, 1};
    return (double)w->rows * (double)w->cols * size[w->type];
}

static double numbers_of(const struct weight_view *w) { return (double)w->rows * (double)w->cols; }

/* A matrix that `rows` rows go through: read once, a product and a sum per number and row. */
static void add(struct bench_work *work, const struct weight_view *w, double rows)
{
    work->bytes += bytes_of(w);
    work->flops += 2 * numbers_of(w) * rows;
}

static void add_mlp(struct bench_work *work, const struct mlp *m, double rows)
{
    add(work, &m->gate_proj, rows);
    add(work, &m->up_proj, rows);
    add(work, &m->down_proj, rows);
}

/* kv_b_proj is read once: W_uk for the query, W_uv for the heads; then every row looks at `depth` rows of the cache, each
 * c + r numbers for the score and c for the sum, which are read too. */
static void add_attention(struct bench_work *work, const struct config *c, const struct mla *a, double rows, double depth)
{
    double H = c->num_attention_heads, latent = c->kv_lora_rank, rope = c->qk_rope_head_dim;
    if (c->q_lora_rank) {
        add(work, &a->q_a_proj, rows);
        add(work, &a->q_b_proj, rows);
    } else {
        add(work, &a->q_proj, rows);
    }
    add(work, &a->kv_a_proj_with_mqa, rows);
    add(work, &a->kv_b_proj, rows);
    add(work, &a->o_proj, rows);
    work->flops += 2 * rows * depth * H * (2 * latent + rope);
    work->bytes += 4 * depth * (latent + rope);
}

/* experts: how many different ones the rows chose together */
static void add_layer(struct bench_work *work, const struct config *c, const struct layer *l, double rows, double depth,
                      double experts)
{
    add_attention(work, c, &l->self_attn, rows, depth);
    if (!l->is_moe) {
        add_mlp(work, &l->mlp, rows);
        return;
    }
    const struct mlp *e = &l->moe.experts[0];
    double one = bytes_of(&e->gate_proj) + bytes_of(&e->up_proj) + bytes_of(&e->down_proj);
    double numbers = numbers_of(&e->gate_proj) + numbers_of(&e->up_proj) + numbers_of(&e->down_proj);
    add(work, &l->moe.gate, rows);
    work->bytes += one * experts;
    work->flops += 2 * numbers * rows * c->num_experts_per_tok;
    if (c->n_shared_experts)
        add_mlp(work, &l->moe.shared_experts, rows);
}

struct counted { /* different experts per layer, in the last `rows` rows of the run */
    const struct config *c;
    size_t first;
    char *chosen;   /* [layers, E] */
};

static void count_experts(void *context, const vb_tap *tap)
{
    struct counted *k = context;
    size_t length = strlen(tap->name);
    if (tap->depth >= 0 || length < 17 || strcmp(tap->name + length - 17, ".mlp.gate.experts"))
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

int bench_pass_work(struct bench *b, const int32_t *tokens, size_t first, size_t rows, int head, struct bench_work *work)
{
    const struct model *m = b->c->model;
    const struct config *c = &m->config;
    size_t layers = (size_t)c->num_hidden_layers, E = (size_t)(c->n_routed_experts ? c->n_routed_experts : 1);
    struct counted k = {c, first, calloc(layers * E, 1)};
    vb_session_options o = b->c->session;
    vb_session *s = NULL;
    vb_error err = {0};
    if (!k.chosen)
        abort();
    o.context = (int32_t)(first + rows);
    o.tap = count_experts;
    o.tap_context = &k;
    int code = EXIT_DONE;
    if (vb_session_open(&s, m, &o, &err) || vb_append(s, tokens, first + rows, &err) || vb_evaluate(s, 0, no_row, NULL, &err))
        code = cli_error(b->c, &err);
    vb_session_close(s);
    *work = (struct bench_work){0, 0};
    for (size_t l = 0; l < layers; l++) {
        double experts = 0;
        for (size_t e = 0; e < E; e++)
            experts += k.chosen[l * E + e];
        add_layer(work, c, &m->layers[l], (double)rows, (double)first + ((double)rows + 1) / 2, experts);
    }
    if (head)
        add(work, &m->lm_head, (double)rows);
    free(k.chosen);
    return code;
}

struct bench_work bench_module_work(const struct model *m, size_t depth, size_t rows)
{
    struct bench_work work = {0, 0};
    const struct config *c = &m->config;
    double experts = (double)rows * c->num_experts_per_tok;
    if (experts > c->n_routed_experts)
        experts = c->n_routed_experts;
    add(&work, &m->mtp[0].eh_proj, (double)rows);
    add_layer(&work, c, &m->mtp[0].layer, (double)rows, (double)depth, experts);
    add(&work, &m->mtp[0].head, 1);
    return work;
}
