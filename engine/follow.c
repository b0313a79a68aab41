/* engine/follow.c -- a rank other than 0: it reads the messages of rank 0 (engine/pass/lead.h) and does what they
 * say. */
#include "engine/model/ranks.h"
#include "engine/pass/forward.h"
#include "engine/pass/vocab.h"
#include "engine/session/session.h"
#include "simd/fpenv.h"

#include <string.h>
#include <unistd.h>

/* A model, workspace or pool, with the number that rank 0 gave it. */
struct object {
    struct object *next;
    uint32_t number;
    struct vb_model *model;     /* three of these four are NULL */
    struct pass *pass;
    struct kvpool *pool;
    vb_draft_vocab *vocab;
};

/* The rows of a pass. Numbers are first collected in one array, because it may move. */
struct followed_rows {
    size_t S, rooms;          /* number of rows; number of rows for which there is memory */
    struct row *rows;
    struct kvcache *caches;   /* [S]: only the fields that a pass reads are set: pool and slots */
    struct kept_tokens *use;  /* [S] */
    size_t *forced, *forced_kept, *used, *slots; /* [S]: where the numbers of each row begin; SIZE_MAX: it has none */
    size_t *keeper;           /* [S]: number, from 1, of the row whose pass writes the set that this row uses; 0: none
                                 of this pass does */
    int32_t *numbers;
    size_t count, room;
};

struct follower {
    struct vb_ranks *r;
    struct object *objects;
    struct followed_rows rows;
    float *hidden;            /* [hidden_room]: the input of a pass or of a head */
    size_t hidden_room;
    float *logits;            /* [logits_room] */
    size_t logits_room;
    vb_error *err;
};

/* ---- objects ---- */

/* Rank 0 names only what it has opened. Returns NULL if this rank had no memory for it. */
static struct object *object_of(const struct follower *f, uint64_t number)
{
    struct object *o = f->objects;
    while (o && o->number != number)
        o = o->next;
    return o;
}

static struct object *add(struct follower *f, uint64_t number)
{
    struct object *o = vb_alloc(&f->r->allocator, 1, sizeof *o);
    if (!o)
        return NULL;
    o->number = (uint32_t)number;
    o->next = f->objects;
    f->objects = o;
    return o;
}

static void drop(struct follower *f, struct object *o)
{
    const vb_allocator *a = &f->r->allocator;
    struct object **at = &f->objects;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    if (o->pass)
        pass_close(o->pass);
    if (o->pool)
        kvpool_close(o->pool, a);
    vb_draft_vocab_close(o->vocab);
    if (o->model)
        vb_model_close(o->model);
    vb_free(a, o->pass);
    vb_free(a, o->pool);
    vb_free(a, o);
}

static int no_memory(struct follower *f) { return vb_fail(f->err, VB_NO_MEMORY, "no memory for a pass of rank 0"); }

static int open_model(struct follower *f)
{
    struct vb_ranks *r = f->r;
    uint64_t number = ranks_get_number(r);
    int code = VB_OK;
    char *text[6];
    for (size_t i = 0; i < 6; i++)
        text[i] = ranks_get_text(r, &code);
    ranks_done(r);
    vb_model_options o = {.allocator = r->allocator, .precision = text[1], .cache_type = text[2],
                          .conventions = text[3], .repack = text[4], .repack_cache = text[5], .threads = r->threads,
                          .ranks = r};
    struct object *object = code ? NULL : add(f, number);
    if (!object) /* report it now: vb_model_open calls ranks_agree itself */
        ranks_agree(r, vb_fail(f->err, VB_NO_MEMORY, "%s: no memory to open it", text[0] ? text[0] : "model"), f->err);
    else if (vb_model_open(&object->model, text[0], &o, f->err))
        drop(f, object);
    for (size_t i = 0; i < 6; i++)
        vb_free(&r->allocator, text[i]);
    return VB_OK;
}

static int open_work(struct follower *f)
{
    uint64_t number = ranks_get_number(f->r), sizes[6];
    ranks_get(f->r, sizes, sizeof sizes);
    ranks_done(f->r);
    struct object *o = add(f, number);
    vb_session_options options = {.threads = f->r->threads, .isa = *f->r->isa ? f->r->isa : NULL,
                                  .exact_threads = (int)sizes[5], .prefill = sizes[4] ? "expanded" : NULL};
    if (o)
        o->pass = vb_alloc(&f->r->allocator, 1, sizeof *o->pass);
    int code = !o || !o->pass ? no_memory(f)
                              : session_open_pass(o->pass, object_of(f, sizes[0])->model, &options,
                                                       (size_t)sizes[1], (size_t)sizes[2], (size_t)sizes[3], f->err);
    ranks_agree(f->r, code, f->err); /* after a failure, rank 0 closes it again */
    return VB_OK;
}

static int open_pool(struct follower *f)
{
    uint64_t number = ranks_get_number(f->r), sizes[7];
    ranks_get(f->r, sizes, sizeof sizes);
    ranks_done(f->r);
    struct kv_layout layout = {(enum kv_type)sizes[2], (size_t)sizes[3], (size_t)sizes[4], (size_t)sizes[5],
                               (size_t)sizes[6]};
    struct object *o = add(f, number);
    if (o)
        o->pool = vb_alloc(&f->r->allocator, 1, sizeof *o->pool);
    ranks_agree(f->r,
                o && o->pool
                    ? kvpool_open(o->pool, (size_t)sizes[0], (size_t)sizes[1], layout, &f->r->allocator, f->err)
                    : no_memory(f),
                f->err);
    return VB_OK;
}

static int open_vocab(struct follower *f)
{
    uint64_t number = ranks_get_number(f->r), model = ranks_get_number(f->r), count = ranks_get_number(f->r);
    struct object *o = add(f, number);
    int32_t *tokens = vb_alloc(&f->r->allocator, (size_t)count, sizeof *tokens), none;
    for (size_t i = 0; i < count; i++)
        ranks_get(f->r, tokens ? &tokens[i] : &none, sizeof none);
    ranks_done(f->r);
    int code = o && tokens
                   ? vb_draft_vocab_open(&o->vocab, object_of(f, model)->model, tokens, (size_t)count, f->err)
                   : vb_fail(f->err, VB_NO_MEMORY, "no memory for a draft vocabulary of %zu tokens", (size_t)count);
    vb_free(&f->r->allocator, tokens);
    ranks_agree(f->r, code, f->err);
    return VB_OK;
}

static void close_object(struct follower *f)
{
    uint64_t number = ranks_get_number(f->r);
    struct object *o = object_of(f, number);
    ranks_done(f->r);
    if (o)
        drop(f, o);
}

/* ---- passes ---- */

/* Appends `more` numbers to rows.numbers, and returns the first; NULL if there is no memory. */
static int32_t *numbers(struct follower *f, size_t more)
{
    struct followed_rows *p = &f->rows;
    if (p->count + more > p->room) {
        size_t room = 2 * (p->count + more) + 1024;
        int32_t *bigger = vb_alloc(&f->r->allocator, room, sizeof *bigger);
        if (!bigger)
            return NULL;
        if (p->count)
            memcpy(bigger, p->numbers, p->count * sizeof *bigger);
        vb_free(&f->r->allocator, p->numbers);
        p->numbers = bigger;
        p->room = room;
    }
    p->count += more;
    return p->numbers + p->count - more;
}

/* Reads *count numbers. Sets *at to the index of the first, or to SIZE_MAX if there are none. */
static int get_numbers(struct follower *f, size_t *at, size_t *count)
{
    *count = (size_t)ranks_get_number(f->r);
    *at = *count ? f->rows.count : SIZE_MAX;
    int32_t *to = *count ? numbers(f, *count) : NULL;
    if (*count && !to)
        return no_memory(f);
    ranks_get(f->r, to, *count * sizeof *to);
    return VB_OK;
}

static int get_slots(struct follower *f, size_t *at)
{
    uint64_t runs = ranks_get_number(f->r);
    *at = f->rows.count;
    for (uint64_t i = 0; i < runs; i++) {
        int32_t run[2];
        ranks_get(f->r, run, sizeof run);
        int32_t *to = numbers(f, (size_t)run[1]);
        if (!to)
            return no_memory(f);
        for (int32_t j = 0; j < run[1]; j++)
            to[j] = run[0] + j;
    }
    return VB_OK;
}

static int make_rows(struct follower *f, size_t S)
{
    struct followed_rows *p = &f->rows;
    const vb_allocator *a = &f->r->allocator;
    p->S = S;
    p->count = 0;
    if (S <= p->rooms)
        return VB_OK;
    void **of[] = {(void **)&p->rows, (void **)&p->caches, (void **)&p->use, (void **)&p->forced,
                   (void **)&p->forced_kept, (void **)&p->used, (void **)&p->slots, (void **)&p->keeper};
    const size_t size[] = {sizeof *p->rows, sizeof *p->caches, sizeof *p->use, sizeof *p->forced,
                           sizeof *p->forced_kept, sizeof *p->used, sizeof *p->slots, sizeof *p->keeper};
    p->rooms = 0;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        vb_free(a, *of[i]);
        *of[i] = vb_alloc(a, S, size[i]);
        if (!*of[i])
            return no_memory(f);
    }
    p->rooms = S;
    return VB_OK;
}

/* `topk`: the largest number of tokens in a set. */
static int get_row(struct follower *f, size_t s, size_t topk)
{
    struct followed_rows *p = &f->rows;
    size_t count;
    int32_t x[7];
    ranks_get(f->r, x, sizeof x);
    p->caches[s] = (struct kvcache){.pool = object_of(f, (uint32_t)x[0])->pool};
    p->rows[s] = (struct row){.cache = &p->caches[s], .token = x[1], .slot = x[2], .index = x[3], .position = x[4],
                              .skipped = x[5], .expanded = x[6]};
    int code = get_numbers(f, &p->forced[s], &count);
    if (!code)
        code = get_numbers(f, &p->forced_kept[s], &count);
    if (!code)
        code = get_numbers(f, &p->used[s], &count);
    if (code)
        return code;
    p->use[s].count = count;
    p->keeper[s] = (size_t)ranks_get_number(f->r);
    if (p->keeper[s] && !count)
        p->used[s] = p->count;
    return !p->keeper[s] || numbers(f, topk - count) ? VB_OK : no_memory(f); /* room for the set that a row of the pass
                                                                                will write there */
}

static const int32_t *at(const struct followed_rows *p, size_t place)
{
    return place == SIZE_MAX ? NULL : p->numbers + place;
}

static int get_rows(struct follower *f, const struct pass *pass)
{
    struct followed_rows *p = &f->rows;
    int code = make_rows(f, (size_t)ranks_get_number(f->r));
    for (size_t s = 0; s < p->S && !code; s++)
        code = get_row(f, s, pass->model->config.dims.index_topk);
    for (size_t s = 0, n, first; s < p->S && !code; s += n) {
        n = (size_t)ranks_get_number(f->r);
        code = get_slots(f, &first);
        for (size_t i = s; i < s + n; i++)
            p->slots[i] = first;
    }
    for (size_t s = 0; s < p->S && !code; s++) {
        p->caches[s].slots = p->numbers + p->slots[s];
        p->rows[s].forced = at(p, p->forced[s]);
        p->rows[s].forced_kept = at(p, p->forced_kept[s]);
        p->use[s].slots = p->used[s] == SIZE_MAX ? NULL : p->numbers + p->used[s];
        struct row *keeper = p->keeper[s] ? &p->rows[p->keeper[s] - 1] : NULL;
        if (keeper && !keeper->keep)
            keeper->keep = &p->use[s];
        p->rows[s].use = keeper ? keeper->keep : &p->use[s];
    }
    return code;
}

/* Makes room for `count` numbers in an array. Its old numbers are lost. */
static int make_floats(struct follower *f, float **array, size_t *room, size_t count)
{
    if (count <= *room)
        return VB_OK;
    vb_free(&f->r->allocator, *array);
    *room = 0;
    *array = vb_alloc(&f->r->allocator, count, sizeof **array);
    *room = *array ? count : 0;
    return *array ? VB_OK : no_memory(f);
}

static struct pass *begin(struct follower *f)
{
    struct pass *pass = object_of(f, ranks_get_number(f->r))->pass;
    f->r->op.taps_all = (int)ranks_get_number(f->r);
    f->r->op.scores = (int)ranks_get_number(f->r);
    return pass;
}

static int target(struct follower *f)
{
    struct pass *pass = begin(f);
    pass->asks = (int)ranks_get_number(f->r);
    int code = get_rows(f, pass);
    ranks_done(f->r);
    f->r->passes++;
    if (!code)
        forward_target(pass, f->rows.rows, f->rows.S);
    return code;
}

static int mtp(struct follower *f)
{
    struct pass *pass = begin(f);
    uint64_t module = ranks_get_number(f->r), depth = ranks_get_number(f->r);
    int code = get_rows(f, pass);
    size_t n = f->rows.S * pass->model->config.dims.d;
    if (!code)
        code = make_floats(f, &f->hidden, &f->hidden_room, 2 * n);
    if (code)
        return code;
    ranks_get(f->r, f->hidden, n * sizeof *f->hidden);
    ranks_done(f->r);
    forward_mtp(pass, &pass->model->mtp[module], (int)depth, f->rows.rows, f->hidden, f->hidden + n, f->hidden,
                f->rows.S);
    return VB_OK;
}

static int head(struct follower *f)
{
    struct pass *pass = begin(f);
    const struct vb_model *m = pass->model;
    uint64_t number = ranks_get_number(f->r), vocab = ranks_get_number(f->r), bf16 = ranks_get_number(f->r),
             S = ranks_get_number(f->r);
    uint64_t from = ranks_get_number(f->r);
    size_t d = m->config.dims.d;
    int code = make_floats(f, &f->logits, &f->logits_room, (size_t)S * m->config.dims.V);
    if (!code && from == UINT64_MAX)
        code = make_floats(f, &f->hidden, &f->hidden_room, (size_t)S * d);
    if (code)
        return code;
    if (from == UINT64_MAX)
        ranks_get(f->r, f->hidden, (size_t)S * d * sizeof *f->hidden);
    ranks_done(f->r);
    pass->cx.arithmetic = bf16 ? &pass->arithmetic : &arithmetic_exact;
    const float *hidden = from == UINT64_MAX ? f->hidden : pass->w.hidden + from;
    if (vocab)
        forward_listed(pass, object_of(f, vocab)->vocab, (int)number - 1, f->logits, hidden, (size_t)S);
    else
        forward_head(pass, number ? &m->mtp[number - 1].head : &m->lm_head, f->logits, hidden, (size_t)S);
    pass->cx.arithmetic = &pass->arithmetic;
    return VB_OK;
}

/* Receives cache rows that rank 0 read from a file or copied. */
static int rows(struct follower *f)
{
    struct kvpool *p = object_of(f, ranks_get_number(f->r))->pool;
    struct kvcache c = {.pool = p};
    size_t first, count;
    f->rows.count = 0;
    int code = get_numbers(f, &first, &count);
    if (code)
        return code;
    c.slots = f->rows.numbers + first;
    for (size_t layer = 0; layer < p->layers; layer++)
        for (size_t i = 0; i < count; i++)
            ranks_get(f->r, kvcache_row(&c, layer, c.slots[i]), p->row * 4);
    for (size_t layer = 0; layer < p->layout.index_layers; layer++)
        for (size_t i = 0; i < count; i++)
            ranks_get(f->r, kvcache_index_row(&c, layer, c.slots[i]), p->layout.index_row);
    ranks_done(f->r);
    return VB_OK;
}

/* ---- messages ---- */

static int follow(struct follower *f, enum ranks_message message)
{
    switch (message) {
    case RANKS_MODEL: return open_model(f);
    case RANKS_WORK: return open_work(f);
    case RANKS_POOL: return open_pool(f);
    case RANKS_ROWS: return rows(f);
    case RANKS_VOCAB: return open_vocab(f);
    case RANKS_TARGET: return target(f);
    case RANKS_MTP: return mtp(f);
    case RANKS_HEAD: return head(f);
    case RANKS_FACTS: ranks_done(f->r); ranks_account(f->r); return VB_OK;
    default: close_object(f); return VB_OK;
    }
}

int vb_ranks_follow(vb_ranks *r, vb_error *err)
{
    struct follower f = {.r = r, .err = err};
    struct fpenv env = fpenv_enter();
    int code = VB_OK;
    for (enum ranks_message message; !code && (message = (enum ranks_message)ranks_get_number(r)) != RANKS_END;)
        code = follow(&f, message);
    ranks_done(r);
    while (f.objects)
        drop(&f, f.objects);
    struct followed_rows *p = &f.rows;
    void *all[] = {p->rows, p->caches, p->use, p->forced, p->forced_kept, p->used, p->slots, p->keeper, p->numbers,
                   f.hidden, f.logits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        vb_free(&r->allocator, all[i]);
    fpenv_leave(env);
    return code;
}
