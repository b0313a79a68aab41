/* engine/model/ranks.c -- the messages of rank 0, and comparisons among all ranks. */
#include "engine/model/ranks.h"

#include "simd/kernels.h"
#include "numbers/numbers.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- messages ---- */

/* Broadcasts the current part of rank 0's message to all ranks. */
static void spread_part(struct vb_ranks *r)
{
    for (int i = 0; i <= r->op.count; i++)
        r->op.offset[i] = i ? r->part_size : 0;
    r->op.all_gather(r->op.context, r->part, r->op.offset);
    r->at = 0;
}

static size_t first_part(void) { return RANKS_PART / 64; }
static size_t next_part(size_t size) { return 4 * size < RANKS_PART ? 4 * size : RANKS_PART; }

void ranks_put(struct vb_ranks *r, const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes) {
        if (!r->part_size)
            r->part_size = first_part();
        if (r->at == r->part_size) {
            spread_part(r);
            r->part_size = next_part(r->part_size);
        }
        size_t some = r->part_size - r->at < bytes ? r->part_size - r->at : bytes;
        memcpy(r->part + r->at, from, some);
        r->at += some;
        from += some;
        bytes -= some;
    }
}

void ranks_put_number(struct vb_ranks *r, uint64_t number) { ranks_put(r, &number, sizeof number); }

void ranks_put_text(struct vb_ranks *r, const char *text)
{
    size_t size = text ? strlen(text) + 1 : 0;
    ranks_put_number(r, size);
    ranks_put(r, text, size);
}

void ranks_send(struct vb_ranks *r)
{
    memset(r->part + r->at, 0, r->part_size - r->at);
    spread_part(r);
    r->part_size = 0;
}

void ranks_get(struct vb_ranks *r, void *data, size_t bytes)
{
    char *to = data;
    while (bytes) {
        if (!r->part_size || r->at == r->part_size) {
            r->part_size = r->part_size ? next_part(r->part_size) : first_part();
            spread_part(r);
        }
        size_t some = r->part_size - r->at < bytes ? r->part_size - r->at : bytes;
        memcpy(to, r->part + r->at, some);
        r->at += some;
        to += some;
        bytes -= some;
    }
}

uint64_t ranks_get_number(struct vb_ranks *r)
{
    uint64_t number;
    ranks_get(r, &number, sizeof number);
    return number;
}

char *ranks_get_text(struct vb_ranks *r, int *code)
{
    size_t size = (size_t)ranks_get_number(r);
    char *text = size ? vb_alloc(&r->allocator, size, 1) : NULL;
    if (text)
        ranks_get(r, text, size);
    else if (size)
        *code = VB_NO_MEMORY;
    for (char c; !text && size; size--)
        ranks_get(r, &c, 1);
    return text;
}

void ranks_done(struct vb_ranks *r) { r->part_size = 0; }

/* ---- agreement ---- */

struct report {
    int32_t code;
    char host[64], message[512];
};

/* Gathers `bytes` bytes from each rank. On entry, those of this rank are at buffer + rank * bytes. */
static void exchange(struct vb_ranks *r, size_t bytes)
{
    for (int i = 0; i <= r->op.count; i++)
        r->op.offset[i] = (size_t)i * bytes;
    r->op.all_gather(r->op.context, r->op.buffer, r->op.offset);
}

int ranks_agree(struct vb_ranks *r, int code, vb_error *err)
{
    struct report *all = (struct report *)(void *)r->op.buffer, *own = &all[r->op.rank];
    *own = (struct report){.code = code};
    memcpy(own->host, r->host, sizeof own->host);
    snprintf(own->message, sizeof own->message, "%s", code && err ? err->message : "");
    exchange(r, sizeof *own);
    for (int i = 0; i < r->op.count; i++)
        if (all[i].code)
            return i == r->op.rank && !i ? code
                                         : vb_fail(err, all[i].code, "rank %d%s%s%s: %s", i, *all[i].host ? " (" : "",
                                                   all[i].host, *all[i].host ? ")" : "", all[i].message);
    return VB_OK;
}

int ranks_differ(struct vb_ranks *r, uint64_t number)
{
    uint64_t *all = (uint64_t *)(void *)r->op.buffer;
    int rank = 1;
    all[r->op.rank] = number;
    exchange(r, sizeof number);
    while (rank < r->op.count && all[rank] == all[0])
        rank++;
    return rank < r->op.count ? rank : 0;
}

/* ---- statistics ---- */

static size_t resident_bytes(void)
{
    unsigned long long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    int read = f ? fscanf(f, "%llu %llu", &pages, &resident) : 0;
    if (f)
        fclose(f);
    return read == 2 ? (size_t)resident * (size_t)sysconf(_SC_PAGESIZE) : 0;
}

const vb_rank_facts *ranks_account(struct vb_ranks *r)
{
    vb_rank_facts *all = (vb_rank_facts *)(void *)r->op.buffer, *own = &all[r->op.rank];
    *own = (vb_rank_facts){.weight_bytes = r->weight_bytes, .resident_bytes = resident_bytes(), .passes = r->passes,
                           .gathers = r->op.gathers, .bytes = r->op.bytes, .seconds = r->op.seconds};
    memcpy(own->host, r->host, sizeof own->host);
    exchange(r, sizeof *own);
    return all;
}

size_t ranks_longest_row(const struct config *c)
{
    const struct dims *d = &c->dims;
    size_t attention = d->H * max_size(d->n + d->r, d->v), experts = d->expert * max_size(d->shared, 1);
    return max_size(max_size(d->V, d->dense), max_size(attention, experts)) + DOT_CHUNK;
}

int ranks_room(struct vb_ranks *r, size_t bytes, vb_error *err)
{
    if (bytes <= r->op.room)
        return VB_OK;
    char *buffer = vb_alloc(&r->allocator, bytes, 1);
    if (!buffer)
        return vb_fail(err, VB_NO_MEMORY, "no memory for exchanges of %zu bytes", bytes);
    vb_free(&r->allocator, r->op.buffer);
    r->op.buffer = buffer;
    r->op.room = bytes;
    return VB_OK;
}
