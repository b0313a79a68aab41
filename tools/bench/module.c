/* tools/bench/module.c -- passes of one row through the first MTP module and its output head, as a draft computes
 * them. */
#include <stdlib.h>

#include "engine/draft/net.h"
#include "tools/bench/bench.h"

struct bench_module {
    struct draft_net *net;
    vb_session *session;   /* its workspace computes the passes */
    struct kvcache cache;
    struct row *rows;      /* [depth] */
    float *h, *g;          /* [depth, d]: the inputs, which are random, and the outputs */
};

/* Computes rows [first, first + count) of the module, with logits for the last one. */
static void pass(struct bench *b, size_t first, size_t count)
{
    struct bench_module *m = b->module;
    struct pass *pass = m->session->pass;
    for (size_t i = 0; i < count; i++)
        m->rows[i] = m->net->type->row(m->net, &m->cache, 0, first + i, 1, b->text[first + i + 1]);
    m->net->type->pass(m->net, pass, 0, m->rows, m->h, m->g, m->g, count);
    m->net->type->logits(m->net, pass, 0, pass->w.logits, m->g + (count - 1) * m->net->width, 0, 1);
}

/* Fills the cache with `depth` rows. */
static int open_module(struct bench *b, size_t depth, vb_error *err)
{
    struct bench_module *m = calloc(1, sizeof *m);
    const struct vb_model *model = b->c->model;
    vb_session_options o = b->c->session;
    cli_must(m);
    b->module = m;
    o.context = (int32_t)depth + 2;
    if (mtp_net_open(&m->net, model, o.drafting.vocab, err) || vb_session_open(&m->session, model, &o, err) ||
        kvcache_open(&m->cache, 1, depth + 2, m->net->cache, model->allocator, err))
        return 1;
    m->rows = calloc(depth, sizeof *m->rows);
    m->h = calloc(depth * m->net->width, sizeof *m->h);
    m->g = calloc(depth * m->net->width, sizeof *m->g);
    cli_must(m->rows);
    cli_must(m->h);
    cli_must(m->g);
    for (size_t i = 0; i < depth * m->net->width; i++)
        m->h[i] = ((const float *)b->data)[i % (b->bytes / sizeof(float))];
    m->net->type->first_row(m->net, m->session->pass, &m->cache, 0, 1, b->text[0]);
    pass(b, 0, depth);
    return 0;
}

int bench_run_module(struct bench *b, struct bench_item *i, vb_error *err)
{
    if (!b->module && open_module(b, i->depth, err))
        return 1;
    struct bench_module *m = b->module;
    size_t length = m->cache.length;
    bench_clock_on(b, i, m->session->pass);
    pass(b, i->depth, 1);
    bench_clock_off(b, i, m->session->pass);
    kvcache_truncate(&m->cache, length);
    return 0;
}

void bench_close_module(struct bench *b)
{
    struct bench_module *m = b->module;
    if (!m)
        return;
    if (m->net)
        m->net->type->close(m->net);
    kvcache_close(&m->cache, b->c->model->allocator);
    vb_session_close(m->session);
    free(m->rows);
    free(m->h);
    free(m->g);
    free(m);
}
