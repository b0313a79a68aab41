#include "ops/ranks.h"

#include <assert.h>
#include <string.h>

#include "ops/op.h"
#include "simd/decode.h"

struct op_share op_share_of(const struct op_ranks *r, int rank, size_t count, size_t unit)
{
    uint64_t units = (count + unit - 1) / unit, all = r->before[r->count];
    size_t begin = (size_t)(units * r->before[rank] / all) * unit,
           end = (size_t)(units * r->before[rank + 1] / all) * unit;
    return (struct op_share){begin < count ? begin : count, end < count ? end : count};
}

struct op_share op_own(const struct op_ctx *cx, size_t count, size_t unit)
{
    return cx->ranks ? op_share_of(cx->ranks, cx->ranks->rank, count, unit) : (struct op_share){0, count};
}

/* The bytes that a rank has of each row of a piece, as the row stores them. */
static struct op_share bytes_of(const struct op_ranks *r, int rank, const struct op_piece *p)
{
    struct op_share units = p->cuts ? (struct op_share){p->cuts[rank], p->cuts[rank + 1]}
                                    : op_share_of(r, rank, p->units, 1);
    size_t begin = units.begin * p->unit_bytes, end = units.end * p->unit_bytes;
    return (struct op_share){begin < p->row_bytes ? begin : p->row_bytes, end < p->row_bytes ? end : p->row_bytes};
}

/* The same bytes, as they are exchanged. */
static size_t exchanged(const struct op_piece *p, size_t bytes)
{
    switch (p->travel) {
    case OP_AS_BF16: return bytes / 2;
    case OP_AS_GROUPS: return bytes / sizeof(struct quantized_group) * OP_GROUP_BYTES;
    default: return bytes;
    }
}

static void put_groups(char *to, const struct quantized_group *g, size_t count)
{
    for (; count--; g++, to += OP_GROUP_BYTES) {
        memcpy(to, &g->d, sizeof g->d);
        memcpy(to + sizeof g->d, g->q, sizeof g->q);
    }
}

static void get_groups(struct quantized_group *g, const char *from, size_t count)
{
    for (; count--; g++, from += OP_GROUP_BYTES) {
        memcpy(&g->d, from, sizeof g->d);
        memcpy(g->q, from + sizeof g->d, sizeof g->q);
        quantized_group_sums(g);
    }
}

static void put(const struct op_ctx *cx, char *to, const struct op_piece *p, const char *from, size_t bytes)
{
    if (p->travel == OP_AS_GROUPS)
        put_groups(to, (const struct quantized_group *)(const void *)from, bytes / sizeof(struct quantized_group));
    else if (p->travel == OP_AS_BF16)
        cx->k->narrow((uint16_t *)(void *)to, (const float *)(const void *)from, bytes / sizeof(float));
    else
        memcpy(to, from, bytes);
}

static void get(const struct op_ctx *cx, char *to, const struct op_piece *p, const char *from, size_t bytes)
{
    if (p->travel == OP_AS_STORED)
        memcpy(to, from, bytes);
    if (p->travel == OP_AS_GROUPS)
        get_groups((struct quantized_group *)(void *)to, from, bytes / sizeof(struct quantized_group));
    if (p->travel != OP_AS_BF16)
        return;
    for (size_t at = 0; at < bytes; at += DOT_CHUNK * sizeof(float)) { /* rows in packed order have whole chunks */
        float x[DOT_CHUNK];
        for (size_t i = 0; i < DOT_CHUNK; i++) {
            uint16_t b;
            memcpy(&b, from + at / 2 + i * sizeof b, sizeof b);
            x[i] = bits_to_f32((uint32_t)b << 16);
        }
        cx->k->pack((float *)(void *)(to + at), x, DOT_CHUNK);
    }
}

/* Rows [first, end) of all pieces, where the rows of all pieces are numbered in one sequence. */
struct gathered {
    const struct op_piece *pieces;
    size_t first, end;
};

static void exchange(struct op_ranks *r, void *buffer)
{
    double begun = op_seconds();
    r->all_gather(r->context, buffer, r->offset);
    r->seconds += op_seconds() - begun;
    r->gathers++;
    r->bytes += r->offset[r->count];
}

/* Copies what rank `rank` has of the rows of a part to the buffer, or from the buffer. */
static void move(const struct op_ctx *cx, const struct gathered *part, int rank, int to_buffer)
{
    struct op_ranks *r = cx->ranks;
    const struct op_piece *p = part->pieces;
    char *at = r->buffer + r->offset[rank];
    for (size_t row = part->first, before = 0; row < part->end; row++) {
        for (; row - before >= p->rows; p++)
            before += p->rows;
        struct op_share own = bytes_of(r, rank, p);
        char *data = (char *)p->data + (row - before) * p->row_bytes + own.begin;
        size_t bytes = own.end - own.begin;
        if (to_buffer)
            put(cx, at, p, data, bytes);
        else
            get(cx, data, p, at, bytes);
        at += exchanged(p, bytes);
    }
}

static void gather_part(const struct op_ctx *cx, const struct gathered *part)
{
    struct op_ranks *r = cx->ranks;
    memset(r->offset, 0, ((size_t)r->count + 1) * sizeof *r->offset);
    const struct op_piece *p = part->pieces;
    size_t before = 0;
    for (size_t row = part->first; row < part->end; row++) {
        for (; row - before >= p->rows; p++)
            before += p->rows;
        for (int rank = 0; rank < r->count; rank++) {
            struct op_share own = bytes_of(r, rank, p);
            r->offset[rank + 1] += exchanged(p, own.end - own.begin);
        }
    }
    for (int rank = 0; rank < r->count; rank++)
        r->offset[rank + 1] += r->offset[rank];
    if (part->end - part->first == 1 && p->travel == OP_AS_STORED) { /* the bytes of the ranks lie side by side
                                                                        already */
        exchange(r, (char *)p->data + (part->first - before) * p->row_bytes);
        return;
    }
    move(cx, part, r->rank, 1);
    exchange(r, r->buffer);
    for (int rank = 0; rank < r->count; rank++)
        if (rank != r->rank)
            move(cx, part, rank, 0);
}

void op_gather(const struct op_ctx *cx, const struct op_piece *pieces, size_t count)
{
    struct gathered part = {pieces, 0, 0};
    size_t bytes = 0;
    if (!cx->ranks)
        return;
    for (size_t i = 0; i < count; i++)
        for (size_t row = 0; row < pieces[i].rows; row++) {
            size_t more = exchanged(&pieces[i], pieces[i].row_bytes);
            assert(more <= cx->ranks->room);
            if (bytes + more > cx->ranks->room) {
                gather_part(cx, &part);
                part.first = part.end;
                bytes = 0;
            }
            bytes += more;
            part.end++;
        }
    if (part.end > part.first)
        gather_part(cx, &part);
}

void op_gather_floats(const struct op_ctx *cx, float *y, size_t S, size_t N, size_t unit)
{
    op_gather(cx, &(struct op_piece){y, S, N * sizeof *y, (N + unit - 1) / unit, unit * sizeof *y, OP_AS_STORED, NULL},
              1);
}

void op_spread(const struct op_ctx *cx, int from, void *data, size_t bytes)
{
    struct op_ranks *r = cx->ranks;
    for (int rank = 0; r && rank <= r->count; rank++)
        r->offset[rank] = rank > from ? bytes : 0;
    if (r)
        exchange(r, data);
}

int op_owner(const struct op_ranks *r, size_t row, size_t count, size_t unit)
{
    int rank = 0;
    while (op_share_of(r, rank, count, unit).end <= row)
        rank++;
    return rank;
}
