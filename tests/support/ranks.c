#include "tests/support/ranks.h"
#include "tests/support/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct member {
    struct group *g;
    int rank, code;
    vb_error error;
    vb_ranks *ranks;
    pthread_t thread;
    void *buffer;
    const size_t *offset;
    uint64_t exchanges;
};

struct group {
    struct group_options o;
    struct member member[MOST_GROUP];
    pthread_barrier_t barrier;
    uint64_t different; /* exchanges in which two ranks had different sizes */
};

/* Copies what the other ranks have. Nobody changes its own bytes before all have copied them. */
static void all_gather(void *context, void *buffer, const size_t *offset)
{
    struct member *m = context;
    struct group *g = m->g;
    int differ = 0;
    m->buffer = buffer;
    m->offset = offset;
    m->exchanges++;
    pthread_barrier_wait(&g->barrier);
    for (int i = 0; i < g->o.count; i++)
        differ |= memcmp(g->member[i].offset, offset, ((size_t)g->o.count + 1) * sizeof *offset) != 0;
    for (int i = 0; i < g->o.count && !differ; i++)
        if (i != m->rank && offset[i + 1] > offset[i])
            memcpy((char *)buffer + offset[i], (char *)g->member[i].buffer + offset[i], offset[i + 1] - offset[i]);
    __atomic_add_fetch(&g->different, (uint64_t)differ, __ATOMIC_RELAXED);
    pthread_barrier_wait(&g->barrier);
}

static int start(struct member *m)
{
    const struct group_options *o = &m->g->o;
    char host[16] = "host-";
    host[5] = (char)('0' + m->rank);
    vb_ranks_options options = {.allocator = o->allocator[m->rank], .rank = m->rank, .count = o->count, .weights = o->weights[0] ? o->weights : NULL,
                                .all_gather = all_gather, .context = m, .host = host, .threads = o->threads ? o->threads : 1,
                                .isa = o->isa[m->rank]};
    return vb_ranks_open(&m->ranks, &options, &m->error);
}

static void *follow(void *arg)
{
    struct member *m = arg;
    m->code = start(m);
    if (!m->code)
        m->code = vb_ranks_follow(m->ranks, &m->error);
    vb_ranks_close(m->ranks);
    return NULL;
}

vb_ranks *group_open(struct group **out, const struct group_options *o)
{
    struct group *g = calloc(1, sizeof *g);
    assert_true(g && o->count <= MOST_GROUP);
    g->o = *o;
    pthread_barrier_init(&g->barrier, NULL, (unsigned)o->count);
    for (int i = o->count; i--;) {
        g->member[i] = (struct member){.g = g, .rank = i};
        if (i)
            assert_int_equal(pthread_create(&g->member[i].thread, NULL, follow, &g->member[i]), 0);
    }
    if (start(&g->member[0]))
        fail_msg("%s", g->member[0].error.message);
    *out = g;
    return g->member[0].ranks;
}

void group_close(struct group *g)
{
    vb_ranks_close(g->member[0].ranks);
    for (int i = 1; i < g->o.count; i++) {
        pthread_join(g->member[i].thread, NULL);
        if (g->member[i].code)
            fail_msg("rank %d: %s", i, g->member[i].error.message);
        assert_int_equal(g->member[i].exchanges, g->member[0].exchanges);
    }
    assert_int_equal(g->different, 0);
    pthread_barrier_destroy(&g->barrier);
    free(g);
}
