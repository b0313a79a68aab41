#include "tests/support/ranks.h"
#include "numbers/numbers.h"

#include <pthread.h>
#include <stdarg.h>

struct member {
    struct group *g;
    int rank, code, opened;
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
    if (g->o.exchange)
        g->o.exchange(g->o.context, m->rank, 0, buffer, offset);
    pthread_barrier_wait(&g->barrier);
    for (int i = 0; i < g->o.count; i++)
        differ |= memcmp(g->member[i].offset, offset, ((size_t)g->o.count + 1) * sizeof *offset) != 0;
    for (int i = 0; i < g->o.count && !differ; i++)
        if (i != m->rank && offset[i + 1] > offset[i])
            memcpy((char *)buffer + offset[i], (char *)g->member[i].buffer + offset[i], offset[i + 1] - offset[i]);
    __atomic_add_fetch(&g->different, (uint64_t)differ, __ATOMIC_RELAXED);
    pthread_barrier_wait(&g->barrier);
    if (g->o.exchange)
        g->o.exchange(g->o.context, m->rank, 1, buffer, offset);
}

static int start(struct member *m)
{
    const struct group_options *o = &m->g->o;
    char host[16] = "host-";
    host[5] = (char)('0' + m->rank);
    uint32_t any = 0;
    for (int i = 0; i < o->count; i++)
        any |= o->weights[i];
    vb_ranks_options options = {.allocator = o->allocator[m->rank], .rank = m->rank, .count = o->count,
                                .weights = any ? o->weights : NULL, .all_gather = all_gather, .context = m,
                                .host = host, .threads = o->threads ? o->threads : 1, .isa = o->isa[m->rank]};
    return vb_ranks_open(&m->ranks, &options, &m->error);
}

static void *follow(void *arg)
{
    struct member *m = arg;
    m->code = start(m);
    m->opened = !m->code;
    if (!m->code)
        m->code = vb_ranks_follow(m->ranks, &m->error);
    if (m->code && m->opened && m->g->o.failed)
        m->g->o.failed(m->rank, &m->error);
    vb_ranks_close(m->ranks);
    return NULL;
}

/* Returns the code of rank 0. */
static int begin(struct group **out, const struct group_options *o)
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
    *out = g;
    return g->member[0].code = start(&g->member[0]);
}

static void end(struct group *g)
{
    for (int i = 1; i < g->o.count; i++) {
        pthread_join(g->member[i].thread, NULL);
        assert_int_equal(g->member[i].exchanges, g->member[0].exchanges);
    }
    assert_int_equal(g->different, 0);
    pthread_barrier_destroy(&g->barrier);
}

vb_ranks *group_open(struct group **out, const struct group_options *o)
{
    if (begin(out, o))
        fail_msg("%s", (*out)->member[0].error.message);
    return (*out)->member[0].ranks;
}

void group_close(struct group *g)
{
    vb_ranks_close(g->member[0].ranks);
    end(g);
    for (int i = 1; i < g->o.count; i++)
        if (g->member[i].code)
            fail_msg("rank %d: %s", i, g->member[i].error.message);
    free(g);
}

void group_refused(const struct group_options *o, int code, vb_error *err)
{
    struct group *g;
    begin(&g, o);
    end(g);
    for (int i = 0; i < o->count; i++)
        if (g->member[i].code != code || g->member[i].opened || g->member[i].ranks)
            fail_msg("rank %d has code %d, \"%s\"; wanted %d", i, g->member[i].code, g->member[i].error.message, code);
    *err = g->member[0].error;
    free(g);
}

/* ---- runs with notes ---- */

static void add(struct notes *n, uint64_t value, const char *what, va_list args)
{
    if (n->count == n->room) {
        n->room = 2 * n->room + 256;
        assert_non_null(n->note = realloc(n->note, n->room * sizeof *n->note));
    }
    vsnprintf(n->note[n->count].what, sizeof n->note->what, what, args);
    n->note[n->count++].value = value;
}

void note(struct notes *n, uint64_t value, const char *what, ...)
{
    va_list args;
    va_start(args, what);
    add(n, value, what, args);
    va_end(args);
}

void note_bytes(struct notes *n, const void *data, size_t size, const char *what, ...)
{
    va_list args;
    uint64_t hash = fnv1a_bytes(FNV1A_START, data, size);
    va_start(args, what);
    add(n, hash, what, args);
    va_end(args);
}

void note_run(struct notes *n, vb_session *s, size_t count, const char *what)
{
    static struct record r;
    generate(s, count, &r);
    for (size_t i = 0; i < r.n; i++) {
        note(n, r.row[i], "%s: logits of token %zu", what, i);
        note(n, (uint64_t)r.token[i], "%s: token %zu", what, i);
    }
    for (size_t k = 0; k < VB_MAX_DRAFT; k++)
        note(n, r.result.drafted_by_depth[k] << 32 | r.result.accepted_by_depth[k], "%s: drafts at depth %zu", what,
             k + 1);
}

void check_notes(const char *what, const struct notes *alone, const struct notes *together)
{
    if (!alone->count)
        fail_msg("%s: nothing was noted", what);
    for (size_t i = 0; i < alone->count || i < together->count; i++) {
        if (i >= alone->count || i >= together->count || strcmp(alone->note[i].what, together->note[i].what))
            fail_msg("%s: note %zu is \"%s\", in one process \"%s\"", what, i,
                     i < together->count ? together->note[i].what : "", i < alone->count ? alone->note[i].what : "");
        if (alone->note[i].value != together->note[i].value)
            fail_msg("%s: %s is %" PRIx64 ", in one process %" PRIx64, what, alone->note[i].what,
                     together->note[i].value, alone->note[i].value);
    }
}

void check_scenario(const char *what, const char *dir, const vb_model_options *o, const struct group_options *g,
                    scenario *compute, void *context)
{
    struct notes alone = {0}, together = {0};
    struct group *group = NULL;
    for (int on_ranks = 0; on_ranks < 2; on_ranks++) {
        vb_model *m = NULL;
        vb_model_options options = *o;
        vb_error err = {0};
        options.ranks = on_ranks ? group_open(&group, g) : NULL;
        if (vb_model_open(&m, dir, &options, &err))
            fail_msg("%s: %s", what, err.message);
        compute(m, on_ranks ? &together : &alone, context);
        vb_model_close(m);
    }
    group_close(group);
    check_notes(what, &alone, &together);
    free(alone.note);
    free(together.note);
}
