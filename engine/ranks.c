/* engine/ranks.c -- the public functions about a group of ranks. */
#include "engine/base/options.h"
#include "engine/model/ranks.h"

#include <stdio.h>
#include <string.h>

#define MOST_RANKS 1024
#define PROTOCOL 2 /* to be increased when a message changes */

static void free_all(struct vb_ranks *r)
{
    vb_allocator a = r->allocator;
    vb_free(&a, r->before);
    vb_free(&a, r->part);
    vb_free(&a, r->op.offset);
    vb_free(&a, r->op.buffer);
    vb_free(&a, r);
}

/* Rank 0 sends the weights of the shares that it was given to the other ranks. */
static int set_shares(struct vb_ranks *r, const uint32_t *weights, vb_error *err)
{
    int code = VB_OK;
    for (int i = 0; i < r->op.count; i++) {
        uint64_t weight = weights ? weights[i] : 1;
        if (!weight)
            code = vb_fail(err, VB_BAD_ARGUMENT, "the weight of rank %d is 0, wanted 1 or more", i);
        r->before[i + 1] = r->before[i] + weight;
    }
    if (r->op.rank)
        ranks_get(r, r->before, ((size_t)r->op.count + 1) * sizeof *r->before);
    else
        ranks_put(r, r->before, ((size_t)r->op.count + 1) * sizeof *r->before);
    if (r->op.rank)
        ranks_done(r);
    else
        ranks_send(r);
    return r->op.rank ? VB_OK : code;
}

/* The first two exchanges. In the first, each rank sends its version, or 0 if it has no memory. If a rank differs from
 * rank 0, the second exchange sends the name of its machine, for the error message. Both use only the stack, so a rank
 * without memory can take part. */
static int say_hello(const vb_ranks_options *o, int has_memory, vb_error *err)
{
    uint32_t build[MOST_RANKS], own = PROTOCOL;
    size_t offset[MOST_RANKS + 1];
    char host[64] = "";
    int other = 0;
    for (const char *c = vb_version(); *c; c++)
        own = 31 * own + (unsigned char)*c;
    build[o->rank] = has_memory ? own | 1 : 0;
    for (int i = 0; i <= o->count; i++)
        offset[i] = (size_t)i * sizeof *build;
    o->all_gather(o->context, build, offset);
    while (other < o->count && build[other] && build[other] == build[0])
        other++;
    if (other == o->count)
        return VB_OK;
    if (o->rank == other)
        snprintf(host, sizeof host, "%s", o->host ? o->host : "");
    for (int i = 0; i <= o->count; i++)
        offset[i] = i > other ? sizeof host : 0;
    o->all_gather(o->context, host, offset);
    return vb_fail(err, build[other] ? VB_BAD_ARGUMENT : VB_NO_MEMORY, "rank %d%s%s%s: %s", other, *host ? " (" : "",
                   host, *host ? ")" : "",
                   build[other] ? "it was built from another version of Verbatim than rank 0"
                                : "no memory for a group of ranks");
}

/* Returns NULL if there is no memory. */
static struct vb_ranks *new_group(const vb_ranks_options *o)
{
    struct vb_ranks *r = vb_alloc(&o->allocator, 1, sizeof *r);
    if (!r)
        return NULL;
    r->allocator = o->allocator;
    r->before = vb_alloc(&r->allocator, (size_t)o->count + 1, sizeof *r->before);
    r->part = vb_alloc(&r->allocator, RANKS_PART, 1);
    r->op = (struct op_ranks){.rank = o->rank, .count = o->count, .before = r->before, .all_gather = o->all_gather,
                              .context = o->context};
    r->op.offset = vb_alloc(&r->allocator, (size_t)o->count + 1, sizeof *r->op.offset);
    snprintf(r->host, sizeof r->host, "%s", o->host ? o->host : "");
    snprintf(r->isa, sizeof r->isa, "%s", o->isa ? o->isa : "");
    r->threads = o->threads;
    if (r->before && r->part && r->op.offset && !ranks_room(r, OP_GATHER_BYTES, NULL))
        return r;
    free_all(r);
    return NULL;
}

int vb_ranks_open(vb_ranks **out, const vb_ranks_options *options, vb_error *err)
{
    vb_ranks_options o;
    *out = NULL;
    if (OPTIONS_COPY(&o, vb_ranks_options, options, err))
        return VB_BAD_ARGUMENT;
    if (o.count < 1 || o.count > MOST_RANKS || o.rank < 0 || o.rank >= o.count)
        return vb_fail(err, VB_BAD_ARGUMENT, "rank %d of %d, wanted 0 to count - 1 of at most %d", o.rank, o.count,
                       MOST_RANKS);
    struct vb_ranks *r = new_group(&o);
    int code = say_hello(&o, r != NULL, err);
    if (!code)
        code = ranks_agree(r, set_shares(r, o.weights, err), err);
    if (code && r)
        free_all(r);
    else
        *out = r;
    return code;
}

void vb_ranks_close(vb_ranks *r)
{
    if (r && !r->op.rank) {
        ranks_put_number(r, RANKS_END);
        ranks_send(r);
    }
    if (r)
        free_all(r);
}

void vb_ranks_facts_sized(vb_ranks *r, vb_rank_facts *out, size_t size)
{
    ranks_put_number(r, RANKS_FACTS);
    ranks_send(r);
    const vb_rank_facts *facts = ranks_account(r);
    for (int i = 0; i < r->op.count; i++)
        struct_fill((char *)out + (size_t)i * size, size, &facts[i], sizeof facts[i]);
}
