/* simd/tiles.c -- how a matrix is cut into tiles, once for all vector instruction sets.
 *
 * No choice made here can reach the bits: a sum is never split differently, only computed earlier or later. Measured
 * (prototypes, BF16): few tokens want the four rows of a tile to be four streams that are each read front to back;
 * many tokens want a block of rows to stay in L2 while tiles of tokens, each in L1, pass over it. */
#include "simd/tiles.h"

#include <string.h>

#define FEW_TOKENS 12    /* up to here a tile's weights stay in L1 while all tokens pass */
#define L2_ROWS 128      /* rows x DOT_BLOCK weights that stay in L2 while many tokens pass */
#define DECODED_ROWS 32  /* rows of decoded weights: 128 KB; more of them if they are shorter than a block */
#define PANEL_TOKENS 252 /* tokens that share one decoded panel and stay in L2: a multiple of TILE_TOKENS; more of
                            shorter ones */
#define PREFETCH 512     /* bytes ahead in a stream of weights */
#define TILES_AT_ONCE 16 /* whose weights stay in L2 while a few tokens pass tile by tile */
#define PIECES 8         /* of the tiles that many tokens pass; the next tokens are prefetched between them */
#define WIDE_FLOATS 32768 /* of narrow vectors, widened: 128 KB */

/* The memory that a caller gives (KERNEL_SCRATCH). */
struct work {
    float panel[DECODED_ROWS * DOT_BLOCK]; /* rows decoded and packed, panel_pitch apart */
    float copy[TILE_TOKENS][DOT_BLOCK];   /* the tokens of a tile, where they cannot be read in place */
    float tail[FEW_TOKENS][DOT_BLOCK];    /* x's last block, where it is cut short */
    float wide[WIDE_FLOATS];              /* narrow vectors, widened */
};
_Static_assert(sizeof(struct work) <= KERNEL_SCRATCH, "kernels.h promises too little");

/* n stored weights, natural or packed; a chunk that is cut short is decoded from a copy */
static void decode_codes(const struct vector_loops *v, float *out, enum weight_type type, const unsigned char *codes,
                         size_t n, float scale, int packed)
{
    size_t size = weight_size(type), tail = n % DOT_CHUNK, whole = n - tail;
    unsigned char cut[DOT_CHUNK * sizeof(uint16_t)] = {0};
    float decoded[DOT_CHUNK];
    if (type == WEIGHT_F32) {
        if (packed)
            v->pack(out, (const float *)(const void *)codes, n);
        else
            memcpy(out, codes, n * size);
        return;
    }
    v->decode(out, type, codes, whole / DOT_CHUNK, scale, packed);
    if (!tail)
        return;
    memcpy(cut, codes + whole * size, tail * size);
    v->decode(decoded, type, cut, 1, scale, 0);
    if (packed)
        v->pack(out + whole, decoded, tail); /* not decoded as packed: 0 * scale need not be +0 */
    else
        memcpy(out + whole, decoded, tail * sizeof *out);
}

/* j is a multiple of 32. A group that is cut short is decoded from a copy. */
static void decode_groups_of_i4(const struct vector_loops *v, float *out, const struct weight_view *w, size_t i,
                                size_t j, size_t n, int packed)
{
    size_t at = i * w->stride + j, tail = n % DOT_CHUNK, whole = n - tail;
    const unsigned char *codes = (const unsigned char *)w->data + at / 2,
                        *scales = (const unsigned char *)w->group_scale + at / DOT_CHUNK * 2;
    unsigned char cut[DOT_CHUNK / 2] = {0};
    float decoded[DOT_CHUNK];
    v->decode_i4(out, codes, scales, whole / DOT_CHUNK, w->rounded, packed);
    if (!tail)
        return;
    memcpy(cut, codes + whole / 2, (tail + 1) / 2);
    v->decode_i4(decoded, cut, scales + whole / DOT_CHUNK * 2, 1, w->rounded, 0);
    if (packed)
        v->pack(out + whole, decoded, tail);
    else
        memcpy(out + whole, decoded, tail * sizeof *out);
}

/* j is a multiple of 32 */
static void decode_chunks_of_f4(const struct vector_loops *v, float *out, const struct weight_view *w, size_t i,
                                size_t j, size_t n, int packed)
{
    size_t tail = n % DOT_CHUNK, whole = n - tail;
    float decoded[DOT_CHUNK];
    v->decode_f4(out, w, i * w->stride + j, whole / DOT_CHUNK, packed);
    if (!tail)
        return;
    decode_f4(decoded, w, i, j + whole, tail);
    if (packed)
        v->pack(out + whole, decoded, tail);
    else
        memcpy(out + whole, decoded, tail * sizeof *out);
}

/* A run of F8 or I8 weights shares one scale. */
void tiled_decode(const struct vector_loops *v, float *out, const struct weight_view *w, size_t i, size_t j, size_t n,
                  int packed)
{
    if (w->type == WEIGHT_I4) {
        decode_groups_of_i4(v, out, w, i, j, n, packed);
        return;
    }
    if (w->type == WEIGHT_F4) {
        decode_chunks_of_f4(v, out, w, i, j, n, packed);
        return;
    }
    if (!weight_is_byte(w->type)) {
        decode_codes(v, out, w->type, weight_at(w, i, j), n, 1.0f, packed);
        return;
    }
    const float *scale = w->scale + (i + w->scale_row) / w->block_rows * w->scale_stride;
    for (size_t run, end = j + n; j < end; j += run, out += run) {
        size_t block = (j + w->scale_col) / w->block_cols;
        run = min_size((block + 1) * w->block_cols - w->scale_col, end) - j;
        decode_codes(v, out, w->type, weight_at(w, i, j), run, scale[block], packed);
    }
}

/* --- matmul --- */

struct product {
    const struct vector_loops *v;
    const struct weight_view *w;
    float *y;
    size_t ldy, ldx;
    const float *x;           /* packed vectors; */
    const uint16_t *narrow;   /* or narrow ones */
    int many;                 /* more than FEW_TOKENS */
    int decoded;              /* weights go through a panel of packed f32 */
    struct work *work;
    float (*tail)[DOT_BLOCK]; /* x's last block, copied once for all rows; NULL: copied where it is needed */
};

/* x's block cut short: what the caller left beyond K is not trusted */
static void copy_tokens(float (*copy)[DOT_BLOCK], const float *x, size_t ldx, size_t T, size_t n)
{
    size_t whole = n / DOT_CHUNK * DOT_CHUNK, tail = n - whole;
    for (size_t t = 0; t < T; t++, x += ldx) {
        memmove(copy[t], x, whole * sizeof *x);
        float last[DOT_CHUNK] = {0};
        memcpy(last, x + whole, tail / 2 * sizeof *x);
        memcpy(last + 16, x + whole + 16, (tail + 1) / 2 * sizeof *x);
        memcpy(copy[t] + whole, last, sizeof last);
    }
}

/* Narrow vectors chunk by chunk, side by side: apart by a power of two, as models have them, they would push one
 * another out of L1, which a tile of pairs of bf16, twice as fast as f32's, has no time for. */
static void gather_tokens(uint16_t *copy, const uint16_t *x, size_t ldx, size_t T, size_t chunks)
{
    for (size_t c = 0; c < chunks; c++)
        for (size_t t = 0; t < T; t++, copy += DOT_CHUNK)
            memcpy(copy, x + t * ldx + c * DOT_CHUNK, DOT_CHUNK * sizeof *x);
}

/* How many tokens go through the next tile when `left` are left. All tiles get about as many. */
static size_t next_tokens(const struct vector_loops *v, size_t left)
{
    size_t tiles = (left + v->tokens - 1) / v->tokens;
    return (left + tiles - 1) / tiles;
}

/* Tokens t..t+T of the block at k, `length` numbers, for a tile: in place where they can be read so, else in a copy. */
static void set_tokens(const struct product *p, struct tile *tile, size_t t, size_t T, size_t k, size_t length)
{
    const struct vector_loops *v = p->v;
    float (*copy)[DOT_BLOCK] = p->work->copy;
    tile->ldx = p->ldx;
    tile->step = DOT_CHUNK;
    tile->narrow = NULL;
    if (p->narrow && v->tile_bf16 && tile->source == FROM_BF16) {
        tile->narrow = p->narrow + t * p->ldx + k;
        if (p->many) {
            gather_tokens((uint16_t *)(void *)copy, tile->narrow, p->ldx, T, tile->chunks);
            tile->narrow = (const uint16_t *)(const void *)copy;
            tile->ldx = DOT_CHUNK;
            tile->step = T * DOT_CHUNK;
        }
        return;
    }
    if (!p->narrow) {
        tile->x = p->x + t * p->ldx + k;
    } else {
        for (size_t i = 0; i < T; i++)
            v->decode(copy[i], WEIGHT_BF16, p->narrow + (t + i) * p->ldx + k, tile->chunks, 1.0f, 1);
        tile->x = copy[0];
        tile->ldx = DOT_BLOCK;
    }
    if (length % DOT_CHUNK) {
        if (!p->tail)
            copy_tokens(copy, tile->x, tile->ldx, T, length);
        tile->x = p->tail ? p->tail[t] : copy[0];
        tile->ldx = DOT_BLOCK;
    }
}

/* Chunks [from, to) of tokens [t, end) of the block at k. They are in L2 when a tile needs them. */
static void prefetch_tokens(const struct product *p, size_t t, size_t end, size_t k, size_t from, size_t to)
{
    size_t size = p->narrow ? sizeof *p->narrow : sizeof *p->x;
    const char *x = p->narrow ? (const char *)p->narrow : (const char *)p->x;
    for (; t < end; t++)
        for (size_t at = from * DOT_CHUNK * size; at < to * DOT_CHUNK * size; at += 64)
            __builtin_prefetch(x + (t * p->ldx + k) * size + at, 0, 2);
}

/* Rows of w in tiles: tile i takes rows n + i * next + r * apart, r < count. */
struct tiles {
    size_t n, tiles, next, apart, count;
};

/* Tiles of fewer than TILE_ROWS rows, one at a time: a row that is missing repeats the first, into sums that nobody
 * takes. */
static void multiply_cut(const struct vector_loops *v, struct tile *tile, size_t T, size_t tiles, size_t count)
{
    void (*const work)(size_t, const struct tile *) = tile->narrow ? v->tile_bf16 : v->tile;
    float sums[TILE_TOKENS][TILE_ROWS];
    struct tile one = *tile;
    for (size_t r = count; r < TILE_ROWS; r++)
        one.w[r] = one.w[0];
    one.y = sums[0], one.y_row = 1, one.ldy = TILE_ROWS, one.first = 1, one.count = 1;
    for (size_t i = 0; i < tiles; i++) {
        work(T, &one);
        for (size_t t = 0; t < T; t++)
            for (size_t r = 0; r < count; r++)
                put_sum(tile->y + i * tile->y_next + r * tile->y_row + t * tile->ldy, sums[t][r], tile->first);
        for (size_t r = 0; r < TILE_ROWS; r++)
            one.w[r] = (const char *)one.w[r] + one.w_next;
    }
}

/* All tiles. Of many tokens, those of the next tile, up to t1, are prefetched piece by piece meanwhile. */
static void multiply_tiles(const struct product *p, struct tile *tile, const struct tiles *rows, size_t t, size_t T,
                           size_t t1, size_t k)
{
    void (*const work)(size_t, const struct tile *) = tile->narrow ? p->v->tile_bf16 : p->v->tile;
    size_t pieces = p->many ? min_size(rows->tiles, PIECES) : 1;
    if (rows->count < TILE_ROWS) {
        multiply_cut(p->v, tile, T, rows->tiles, rows->count);
        return;
    }
    struct tile piece = *tile;
    for (size_t i = 0, done = 0; i < pieces; i++, done += piece.count) {
        if (p->many)
            prefetch_tokens(p, t + T, min_size(t + 2 * T, t1), k, tile->chunks * i / pieces,
                            tile->chunks * (i + 1) / pieces);
        piece.count = rows->tiles * (i + 1) / pieces - done;
        piece.y = tile->y + done * tile->y_next;
        for (size_t r = 0; r < TILE_ROWS; r++)
            piece.w[r] = (const char *)tile->w[r] + done * tile->w_next;
        work(T, &piece);
    }
}

/* How far ahead a tile of T tokens prefetches: the same rows of the next tile, or a place further on in the same
 * rows. */
static size_t prefetch_distance(const struct product *p, const struct tiles *rows, size_t T)
{
    size_t size = weight_size(p->w->type), row_bytes = p->w->stride * size;
    if (p->decoded)
        return 0;
    if (rows->next > 1 && rows->tiles > 1)
        return rows->next * row_bytes;
    return p->v->parts_from && T >= p->v->parts_from ? min_size(row_bytes, DOT_BLOCK * size) : PREFETCH;
}

/* floats from a row of a panel to the next: no more than a block of K needs, so that short rows stay in L1 */
static size_t panel_pitch(const struct weight_view *w) { return packed_length(min_size(w->cols, DOT_BLOCK)); }

/* Those rows times tokens t0..t1, over the whole of K. A panel holds the rows decoded, tile by tile. */
static void multiply_rows(const struct product *p, const struct tiles *rows, size_t t0, size_t t1)
{
    const struct weight_view *w = p->w;
    float *panel = p->work->panel;
    struct tile tile = {.source = p->decoded || w->packed ? FROM_PACKED : w->type == WEIGHT_BF16 ? FROM_BF16 : FROM_F32,
                        .ldy = p->ldy, .y_row = rows->apart, .y_next = rows->next};
    size_t row_bytes = w->stride * weight_size(w->type), pitch = panel_pitch(w);
    tile.w_next = p->decoded ? TILE_ROWS * pitch * sizeof *panel : rows->next * row_bytes;

    for (size_t k = 0; k < w->cols; k += DOT_BLOCK) {
        size_t length = min_size(w->cols - k, DOT_BLOCK);
        tile.chunks = packed_length(length) / DOT_CHUNK;
        tile.first = k == 0;
        for (size_t i = 0; p->decoded && i < rows->tiles; i++)
            for (size_t r = 0; r < rows->count; r++)
                tiled_decode(p->v, panel + (i * TILE_ROWS + r) * pitch, w, rows->n + i * rows->next + r * rows->apart,
                             k, length, 1);
        for (size_t r = 0; r < rows->count; r++)
            tile.w[r] = p->decoded ? (const void *)(panel + r * pitch) : weight_at(w, rows->n + r * rows->apart, k);
        for (size_t t = t0, T; t < t1; t += T) {
            T = next_tokens(p->v, t1 - t);
            tile.prefetch = prefetch_distance(p, rows, T);
            set_tokens(p, &tile, t, T, k, length);
            tile.y = p->y + t * p->ldy + rows->n;
            multiply_tiles(p, &tile, rows, t, T, t1, k);
        }
    }
}

/* Few tokens: four streams of rows, the last the shortest; tile i takes the i-th row of each. Rows of one block go all
 * at once; longer ones, and those that are decoded, tile by tile, each read front to back. */
static void multiply_streams(const struct product *p, size_t n0, size_t n1, size_t T)
{
    size_t rows = n1 - n0, streams = (rows + TILE_ROWS - 1) / TILE_ROWS, at_once;
    for (size_t i = 0; i < streams; i += at_once) {
        size_t count = (rows - i + streams - 1) / streams; /* so many up to the end of the shorter streams, then one
                                                              less */
        size_t alike = rows % streams > i ? rows % streams - i : streams - i;
        at_once = p->decoded || p->w->cols > DOT_BLOCK ? 1 : T > p->v->tokens ? min_size(alike, TILES_AT_ONCE) : alike;
        multiply_rows(p, &(struct tiles){n0 + i, at_once, 1, streams, count}, 0, T);
    }
}

/* Many tokens: rows that stay in the cache while tokens t0..t1 pass. */
static void multiply_block(const struct product *p, size_t n, size_t rows, size_t t0, size_t t1)
{
    size_t whole = rows / TILE_ROWS, rest = rows % TILE_ROWS;
    if (whole)
        multiply_rows(p, &(struct tiles){n, whole, TILE_ROWS, 1, TILE_ROWS}, t0, t1);
    if (rest)
        multiply_rows(p, &(struct tiles){n + rows - rest, 1, TILE_ROWS, 1, rest}, t0, t1);
}

static void multiply(struct product *p, size_t n0, size_t n1, size_t T)
{
    const struct weight_view *w = p->w;
    int whole = w->cols % DOT_CHUNK == 0,
        rare = w->type == WEIGHT_F16 || weight_is_byte(w->type) || weight_is_packed(w->type);
    p->many = T > FEW_TOKENS;
    p->decoded = !w->packed && (rare || !whole || (w->type == WEIGHT_F32 && p->many));
    if (w->cols == 0) {
        for (size_t t = 0; t < T; t++)
            for (size_t n = n0; n < n1; n++)
                p->y[t * p->ldy + n] = 0.0f;
    } else if (!p->many) {
        size_t last = w->cols / DOT_BLOCK * DOT_BLOCK;
        if (!whole && p->x) {
            copy_tokens(p->work->tail, p->x + last, p->ldx, T, w->cols - last);
            p->tail = p->work->tail;
        }
        multiply_streams(p, n0, n1, T);
    } else {
        size_t pitch = panel_pitch(w),
               rows = p->decoded ? DECODED_ROWS * DOT_BLOCK / pitch / TILE_ROWS * TILE_ROWS : L2_ROWS;
        size_t tokens = p->decoded ? PANEL_TOKENS * DOT_BLOCK / pitch / TILE_TOKENS * TILE_TOKENS : T;
        for (size_t t = 0; t < T; t += tokens)
            for (size_t n = n0; n < n1; n += rows)
                multiply_block(p, n, min_size(rows, n1 - n), t, min_size(T, t + tokens));
    }
}

void tiled_matmul(const struct vector_loops *v, float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                  const float *x, size_t ldx, size_t T, void *scratch)
{
    struct product p = {.v = v, .w = w, .y = y, .ldy = ldy, .x = x, .ldx = ldx, .work = scratch};
    multiply(&p, n0, n1, T);
}

/* Without a tile for narrow vectors, few tokens are widened once for all rows where there is room for them. */
void tiled_matmul_bf16(const struct vector_loops *v, float *y, size_t ldy, const struct weight_view *w, size_t n0,
                       size_t n1, const uint16_t *x, size_t ldx, size_t T, void *scratch)
{
    struct product p = {.v = v, .w = w, .y = y, .ldy = ldy, .narrow = x, .ldx = ldx, .work = scratch};
    size_t K = packed_length(w->cols);
    if (v->tile_bf16 || T > FEW_TOKENS || T * K > WIDE_FLOATS) {
        multiply(&p, n0, n1, T);
        return;
    }
    float *wide = p.work->wide;
    for (size_t t = 0; t < T; t++)
        v->decode(wide + t * K, WEIGHT_BF16, x + t * ldx, K / DOT_CHUNK, 1.0f, 1);
    tiled_matmul(v, y, ldy, w, n0, n1, wide, K, T, scratch);
}
