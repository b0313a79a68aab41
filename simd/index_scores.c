/* simd/index_scores.c -- kernel `index_scores`: the loop over tiles of keys, which all vector instruction sets
 * share. */
#include "simd/index_scores.h"

#define MOST_HEADS 128 /* the largest number of heads in one loop over the tiles */

struct index_work {
    float rows[INDEX_MOST_KEYS * INDEX_MAX_DIM]; /* the keys of a tile, decoded */
    float keys[INDEX_MAX_DIM * INDEX_MOST_KEYS]; /* the same, transposed */
    float pairs[MOST_HEADS * INDEX_MAX_DIM / 2];
    float acc[INDEX_MOST_KEYS];
};
_Static_assert(sizeof(struct index_work) <= KERNEL_SCRATCH, "kernels.h promises too little");

/* Decodes and transposes the keys of the tile that begins at key `first`. If the last tile has too few keys, its last
 * key is repeated. */
static void open_keys(const struct vector_loops *v, const struct index_loops *loops, struct index_work *work,
                      const struct index_view *keys, size_t first, size_t terms)
{
    for (size_t j = 0; j < loops->keys; j++) {
        const char *row = index_key(keys, min_size(first + j, keys->count - 1));
        float *to = work->rows + j * terms;
        if (!keys->codes)
            v->pack(to, (const float *)(const void *)row, terms);
        else if (loops->pairs)
            loops->pairs(to, row, keys->dim / DOT_CHUNK);
        else
            v->decode(to, WEIGHT_F8_E4M3, row, keys->dim / DOT_CHUNK, 1.0f, 1);
    }
    loops->transpose(work->keys, work->rows, terms);
}

/* Converts packed numbers that BF16 can represent to pairs of BF16 numbers, with the odd element in the upper half. */
static void make_pairs(float *pairs, const float *packed, size_t n)
{
    for (size_t i = 0; i < n; i += DOT_CHUNK, packed += DOT_CHUNK, pairs += DOT_CHUNK / 2)
        for (size_t l = 0; l < DOT_CHUNK / 2; l++)
            pairs[l] = bits_to_f32(f32_to_bits(packed[l]) | f32_to_bits(packed[l + DOT_CHUNK / 2]) >> 16);
}

/* Adds the products of H heads to the scores of a tile that begins at key `first`. */
static void add_tile(const struct vector_loops *v, const struct index_loops *loops, struct index_work *work,
                     float *score, const struct index_view *keys, size_t first, const float *q, const float *w,
                     size_t H)
{
    size_t n = min_size(loops->keys, keys->count - first), terms = loops->pairs ? keys->dim / 2 : keys->dim;
    open_keys(v, loops, work, keys, first, terms);
    memcpy(work->acc, score + first, n * sizeof *score);
    loops->sums(work->acc, work->keys, q, w, H, terms);
    memcpy(score + first, work->acc, n * sizeof *score);
}

void tiled_index_scores(const struct vector_loops *v, const struct index_loops *loops, float *score,
                        const struct index_view *keys, const float *q, const float *w, size_t H, void *scratch)
{
    struct index_work *work = scratch;
    memset(work->acc, 0, sizeof work->acc);
    memset(score, 0, keys->count * sizeof *score);
    for (size_t h = 0, heads; h < H; h += heads, q += heads * keys->dim, w += heads) {
        heads = min_size(H - h, MOST_HEADS);
        if (loops->pairs)
            make_pairs(work->pairs, q, heads * keys->dim);
        for (size_t first = 0; first < keys->count; first += loops->keys)
            add_tile(v, loops, work, score, keys, first, loops->pairs ? work->pairs : q, w, heads);
    }
    for (size_t i = 0; i < keys->count; i++)
        score[i] = index_scale(keys, i) * score[i];
}
