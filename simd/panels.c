/* simd/panels.c -- reorders the blocks of a file into panels. */
#include "simd/quantized.h"

#include <string.h>

/* Copies one group of each of 16 rows, from the blocks at block[r]. A block has a scale of `scale` bytes, and `words`
 * words of 32 bits with four codes or, if they have four bits, eight. */
static inline void put_group(unsigned char *scales, unsigned char *codes, const unsigned char *const block[PANEL_ROWS],
                             size_t scale, size_t words, uint32_t flip)
{
    for (size_t r = 0; r < PANEL_ROWS; r++) {
        memcpy(scales + scale * r, block[r], scale);
        for (size_t j = 0; j < words; j++) {
            uint32_t word;
            memcpy(&word, block[r] + scale + 4 * j, sizeof word);
            word ^= flip;
            memcpy(codes + 64 * j + 4 * r, &word, sizeof word);
        }
    }
}

void panel_from_rows(unsigned char *panel, enum weight_type type, size_t cols, const unsigned char *const *row,
                     size_t rows)
{
    static const unsigned char zeros[18], middles[34] = {0, 0, [2 ... 33] = 128},
                                          wide[36] = {0, 0, 0, 0, [4 ... 35] = 128};
    size_t size = quantized_format(type)->bytes, groups = cols / QUANTIZED_GROUP, pair = panel_pair_bytes(type);
    const unsigned char *block[PANEL_ROWS];
    if (groups % 2)
        memset(panel + groups / 2 * pair, 0, pair);
    for (size_t g = 0; g < groups; g++) {
        unsigned char *scales = panel + g / 2 * pair + g % 2 * panel_scale_step(type);
        unsigned char *codes = panel + g / 2 * pair + 64 + g % 2 * panel_code_bytes(type);
        for (size_t r = 0; r < PANEL_ROWS; r++)
            block[r] = r < rows ? row[r] + g * size
                       : type == WEIGHT_Q8_0 ? middles
                       : type == WEIGHT_Q8_F32 ? wide
                       : zeros; /* 128 becomes 0 */
        if (type == WEIGHT_Q8_0)
            put_group(scales, codes, block, 2, 8, 0x80808080u);
        else if (type == WEIGHT_Q8_F32)
            put_group(scales, codes, block, 4, 8, 0x80808080u);
        else
            put_group(scales, codes, block, 2, 4, 0);
    }
}

void panel_from_blocks(unsigned char *panel, const struct weight_view *w, size_t row)
{
    const unsigned char *rows[PANEL_ROWS];
    size_t count = w->rows - row < PANEL_ROWS ? w->rows - row : PANEL_ROWS;
    for (size_t r = 0; r < count; r++)
        rows[r] = (const unsigned char *)w->data +
                  (row + r) * (w->stride / QUANTIZED_GROUP) * quantized_format(w->type)->bytes;
    panel_from_rows(panel, w->type, w->cols, rows, count);
}
