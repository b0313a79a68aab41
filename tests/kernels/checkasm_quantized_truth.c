/* tests/kernels/checkasm_quantized_truth.c -- what the scalar table makes of quantized weights, against the formats'
 * definitions: the blocks are read weight by weight as ggml's dequantize_row functions state them, in double, by code
 * of its own.
 *
 * Sums of integers are checked exactly (with scales of 1 they are the result), whole dots within the bound that rule
 * 2's roundings have. A term is rounded twice, as sw * sx and in its fma, and every later fma and addition of blocks
 * once more: with n of them, u = 2^-24 and terms a_i,
 *
 *     |dot - truth| <= (n + 1) u / (1 - (n + 1) u) * sum |a_i| + what underflows,
 *
 * where sw * sx loses at most 2^-150, times a sum of integers, and every fma 2^-150 more. sw = d * sc is exact: 11 bits
 * times at most 8, of 2^-24 at least. */
#include "tests/kernels/checkasm_quantized.h"

#include "simd/grids.h"

#include <math.h>
#include <stdio.h>

/* --- the definitions --- */

struct weight {
    int q;             /* signed */
    double scale, min; /* weight = scale * q - min */
};

static double half(const unsigned char *at)
{
    unsigned bits = at[0] | (unsigned)at[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? ldexp(1024 + (int)fraction, (int)exponent - 25)
                                      : ldexp((int)fraction, -24);
    return bits >> 15 ? -magnitude : magnitude;
}

static int nibble(const unsigned char *bytes, unsigned i, unsigned upper) { return bytes[i] >> 4 * upper & 15; }

/* Q4_0, Q5_0, Q5_1: weight i of 32; `five` bytes of a fifth bit each come first */
static int small_code(const unsigned char *bytes, unsigned i, int five)
{
    int q = nibble(bytes + (five ? 4 : 0), i % 16, i / 16);
    return five ? q + (bytes[i / 8] >> i % 8 & 1) * 16 : q;
}

/* get_scale_min_k4 */
static void k4_scales(int *scale, int *min, const unsigned char *q, unsigned j)
{
    *scale = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | (q[j - 4] >> 6) << 4;
    *min = j < 4 ? q[j + 4] & 63 : q[j + 4] >> 4 | (q[j] >> 6) << 4;
}

static unsigned u16(const unsigned char *at) { return at[0] | (unsigned)at[1] << 8; }

/* IQ1, IQ2, IQ3: weight i of a block; the grids are checked in tests/ops/test_blocks.c */
static struct weight weight_of_grid(enum weight_type type, const unsigned char *b, unsigned i)
{
    unsigned eight = i / 8, four = i / 4, group = i / 32, half_group = i / 16 % 2, minus = 0, ls, row;
    /* the XXS types: signs, ls */
    const unsigned char *packed = type == WEIGHT_IQ2_XXS ? b + 6 + 8 * group : b + 66 + 4 * group;
    unsigned seven = (u16(packed) | (unsigned)u16(packed + 2) << 16) >> 7 * (eight % 4) & 127;
    if (type == WEIGHT_IQ2_XS)
        seven = u16(b + 2 + 2 * eight) >> 9;
    if (type == WEIGHT_IQ2_XXS || type == WEIGHT_IQ2_XS || type == WEIGHT_IQ3_XXS)
        for (unsigned n = 0; n < 7; n++)
            minus ^= i % 8 == n || i % 8 == 7 ? seven >> n & 1 : 0;
    switch (type) {
    case WEIGHT_IQ2_XXS:
        ls = packed[3] >> 4;
        return (struct weight){(minus ? -1 : 1) *
                                   (int)(grid_iq2_xxs[b[2 + 8 * group + eight % 4]] >> 8 * (i % 8) & 255),
                               half(b) * (ls + 0.5) * 0.25, 0};
    case WEIGHT_IQ2_XS:
        ls = (unsigned)nibble(b + 66, group, half_group);
        return (struct weight){(minus ? -1 : 1) * (int)(grid_iq2_xs[u16(b + 2 + 2 * eight) & 511] >> 8 * (i % 8) & 255),
                               half(b) * (ls + 0.5) * 0.25, 0};
    case WEIGHT_IQ2_S:
        ls = (unsigned)nibble(b + 74, group, half_group);
        row = b[2 + eight] + 256u * (b[66 + group] >> 2 * (eight % 4) & 3);
        minus = b[34 + eight] >> i % 8 & 1;
        return (struct weight){(minus ? -1 : 1) * (int)(grid_iq2_s[row] >> 8 * (i % 8) & 255),
                               half(b) * (ls + 0.5) * 0.25, 0};
    case WEIGHT_IQ3_XXS:
        ls = packed[3] >> 4;
        return (struct weight){(minus ? -1 : 1) * (int)(grid_iq3_xxs[b[2 + four]] >> 8 * (i % 4) & 255),
                               half(b) * (ls + 0.5) * 0.5, 0};
    case WEIGHT_IQ3_S:
        ls = (unsigned)nibble(b + 106, group / 2, group % 2);
        row = b[2 + four] + 256u * (b[66 + group] >> four % 8 & 1);
        minus = b[74 + eight] >> i % 8 & 1;
        return (struct weight){(minus ? -1 : 1) * (int)(grid_iq3_s[row] >> 8 * (i % 4) & 255),
                               half(b) * (1 + 2 * (int)ls), 0};
    case WEIGHT_IQ1_S: {
        unsigned qh = u16(b + 34 + 2 * group);
        row = b[2 + eight] + 256u * (qh >> 3 * (eight % 4) & 7);
        return (struct weight){(signed char)(grid_iq1[row] >> 8 * (i % 8) & 255) + (qh & 0x8000 ? -1 : 1),
                               half(b) * (2 * (int)(qh >> 12 & 7) + 1) / 8, 0};
    }
    default: {
        unsigned qh = (unsigned)nibble(b + 32, eight / 2, eight % 2), d = 0;
        for (unsigned n = 0; n < 4; n++)
            d |= (u16(b + 48 + 2 * n) >> 12) << 4 * n;
        ls = u16(b + 48 + 2 * (group / 2)) >> 3 * (group % 2 * 2 + half_group) & 7;
        row = b[eight] + 256u * (qh & 7);
        return (struct weight){(signed char)(grid_iq1[row] >> 8 * (i % 8) & 255) + (qh & 8 ? -1 : 1),
                               half((const unsigned char[]){d & 255, d >> 8}) * (2 * (int)ls + 1) / 8, 0};
    }
    }
}

/* TQ1_0: dequantize_row_tq1_0's loops, which fill the block in this order */
static int tq1_0_code(const unsigned char *b, unsigned i)
{
    static const struct { unsigned first, bytes, digits; } parts[] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
    unsigned at = 0;
    for (size_t p = 0; p < 3; p++) {
        unsigned power = 1;
        for (unsigned n = 0; n < parts[p].digits; n++, power *= 3)
            for (unsigned m = 0; m < parts[p].bytes; m++, at++)
                if (at == i)
                    return (int)((uint8_t)(b[parts[p].first + m] * power) * 3u >> 8) - 1;
    }
    return 0;
}
/* kvalues_iq4nl */
static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* E4M3: bias 7, 0x7f is NaN */
static double e4m3(unsigned code)
{
    double magnitude = code & 0x78 ? ldexp(8 + (code & 7), (int)(code >> 3 & 15) - 10) : ldexp(code & 7, -9);
    return (code & 0x7f) == 0x7f ? NAN : code & 0x80 ? -magnitude : magnitude;
}

/* weight i of a block of w */
static struct weight weight_of(const struct weight_view *view, const unsigned char *b, unsigned i)
{
    const enum weight_type type = view->type;
    struct weight w = {.scale = half(b)};
    int scale, min;
    switch (type) {
    case WEIGHT_Q8_0: w.q = b[2 + i] < 128 ? b[2 + i] : b[2 + i] - 256; break;
    case WEIGHT_CACHE_Q8:
    case WEIGHT_Q8_F32:
        w.scale = bits_to_f32((uint32_t)(b[0] | b[1] << 8 | b[2] << 16) | (uint32_t)b[3] << 24);
        w.q = b[4 + i] < 128 ? b[4 + i] : b[4 + i] - 256;
        break;
    case WEIGHT_Q4_BF16:
        w.scale = bits_to_f32((uint32_t)b[0] << 16 | (uint32_t)b[1] << 24);
        w.q = small_code(b + 2, i, 0) - 8;
        break;
    case WEIGHT_GGUF_NVFP4: { /* dequantize_row_nvfp4 */
        unsigned code = (unsigned)nibble(b + 4, i / 16 * 8 + i % 8, i % 16 >= 8), s = b[i / 16] & 127;
        static const int doubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
        w.scale = (double)(float)((s == 127 ? 0 : e4m3((unsigned char)s) / 2) * (double)view->tensor_scale);
        w.q = code & 8 ? -doubled[code & 7] : doubled[code & 7];
        break;
    }
    case WEIGHT_NVFP4:
    case WEIGHT_MXFP4: { /* OCP Microscaling Formats: E8M0, then E2M1 with bias 1; twice the latter is an integer */
        unsigned code = (unsigned)small_code(b + (type == WEIGHT_MXFP4 ? 1 : 2), i, 0), exponent = code >> 1 & 3,
                 fraction = code & 1;
        double e2m1 = exponent ? ldexp(1 + 0.5 * fraction, (int)exponent - 1) : 0.5 * fraction;
        double t = (double)view->tensor_scale, half_scale = e4m3(b[i / 16]) / 2; /* a double holds the product, and
                                                                                    rounds the quotient harmlessly */
        w.scale = type == WEIGHT_MXFP4 ? ldexp(0.5, b[0] - 127)
                                       : (double)(float)(view->divides ? half_scale / t : half_scale * t);
        w.q = (int)(code & 8 ? -2 * e2m1 : 2 * e2m1);
        break;
    }
    case WEIGHT_Q4_1:
        w.q = small_code(b + 4, i, 0);
        w.min = -half(b + 2);
        break;
    case WEIGHT_IQ4_NL: w.q = iq4[small_code(b + 2, i, 0)]; break;
    case WEIGHT_IQ4_XS: /* d | scales_h u16 | scales_l 4 | qs 128 */
        scale = nibble(b + 4, i / 64, i / 32 % 2) | ((b[2] | b[3] << 8) >> i / 32 * 2 & 3) << 4;
        w.scale *= scale - 32;
        w.q = iq4[nibble(b + 8, i / 32 * 16 + i % 16, i % 32 / 16)];
        break;
    case WEIGHT_Q3_K: { /* hmask 32 | qs 64 | scales 12 | d: dequantize_row_q3_K's words of four scales */
        unsigned word[3], s = i / 16, l = i % 32;
        for (int k = 0; k < 3; k++)
            word[k] = b[96 + 4 * k] | (unsigned)b[97 + 4 * k] << 8 | (unsigned)b[98 + 4 * k] << 16 |
                      (unsigned)b[99 + 4 * k] << 24;
        unsigned low = word[s / 4 % 2] >> s / 8 * 4 & 0x0f0f0f0f, high = (word[2] >> s / 4 * 2 & 0x03030303) << 4;
        scale = (int)((low | high) >> s % 4 * 8 & 255) - 32;
        w.scale = half(b + 108) * scale;
        w.q = (b[32 + i / 128 * 32 + l] >> i % 128 / 32 * 2 & 3) - (b[l] & 1 << i / 32 ? 0 : 4);
        break;
    }
    case WEIGHT_Q2_K: /* scales 16 | qs 64 | d | dmin */
        w.scale = half(b + 80) * (b[i / 16] & 15);
        w.min = half(b + 82) * (b[i / 16] >> 4);
        w.q = b[16 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
        break;
    case WEIGHT_Q4_0: w.q = small_code(b + 2, i, 0) - 8; break;
    case WEIGHT_Q5_0: w.q = small_code(b + 2, i, 1) - 16; break;
    case WEIGHT_Q5_1:
        w.q = small_code(b + 4, i, 1);
        w.min = -half(b + 2);
        break;
    case WEIGHT_Q6_K: { /* d | ql 128 | qh 64 | scales 16: of 128 weights, four of 32 share qh's bytes, two of 32
                           ql's */
        unsigned n = i / 128, quarter = i % 128 / 32, l = i % 32;
        unsigned low = (unsigned)nibble(b + 64 * n, l + quarter % 2 * 32, quarter / 2),
                 high = b[128 + 32 * n + l] >> 2 * quarter & 3;
        scale = b[192 + i / 16];
        w.scale = half(b + 208) * (scale < 128 ? scale : scale - 256);
        w.q = (int)(low + 16 * high) - 32;
        break;
    }
    case WEIGHT_IQ2_XXS:
    case WEIGHT_IQ2_XS:
    case WEIGHT_IQ2_S:
    case WEIGHT_IQ3_XXS:
    case WEIGHT_IQ3_S:
    case WEIGHT_IQ1_S:
    case WEIGHT_IQ1_M: return weight_of_grid(type, b, i);
    case WEIGHT_TQ1_0: return (struct weight){tq1_0_code(b, i), half(b + 52), 0};
    case WEIGHT_TQ2_0:
        return (struct weight){(b[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3) - 1, half(b + 64), 0};
    default: /* d | dmin | scales 12 | (Q5_K: qh 32) | qs 128: of 64 weights, the lower nibbles are the first 32 */
        k4_scales(&scale, &min, b + 4, i / 32);
        w.scale = half(b) * scale;
        w.min = half(b + 2) * min;
        w.q = nibble(b + (type == WEIGHT_Q5_K ? 48 : 16), i / 64 * 32 + i % 32, i % 64 / 32);
        if (type == WEIGHT_Q5_K)
            w.q += (b[16 + i % 32] >> i / 32 & 1) * 16;
    }
    return w;
}

static struct weight weight_at(const struct weight_view *w, size_t row, size_t k)
{
    const struct quantized_format *f = quantized_format(w->type);
    const unsigned char *blocks = w->data;
    return weight_of(w, blocks + (row * w->stride + k) / f->numbers * f->bytes, (unsigned)(k % f->numbers));
}

/* --- a dot --- */

/* The exact sum of row `row` with x, and how far scalar may be from it. */
static double dot_truth(double *bound, const struct weight_view *w, size_t row, const struct quantized_group *x)
{
    const struct quantized_format *f = quantized_format(w->type);
    size_t step = f->halves ? 16 : 32, terms = 0;
    long double sum = 0, magnitudes = 0;
    double underflow = 0;
    for (size_t k = 0; k < w->cols; k += step) {
        const struct quantized_group *g = &x[k / QUANTIZED_GROUP];
        struct weight first = weight_at(w, row, k);
        int products = 0, of_x = 0;
        for (size_t l = k; l < k + step; l++) {
            products += weight_at(w, row, l).q * g->q[l % QUANTIZED_GROUP];
            of_x += g->q[l % QUANTIZED_GROUP];
        }
        long double a = (long double)(first.scale * products) * g->d, b = (long double)(first.min * of_x) * g->d;
        sum += a - b;
        magnitudes += fabsl(a) + fabsl(b);
        terms += 1 + (size_t)f->minimums;
        underflow += 0x1p-150 * (fabs((double)products) + 1 + (f->minimums ? fabs((double)of_x) + 1 : 0));
    }
    double u = ((double)(terms + w->cols / DOT_BLOCK) + 1) * 0x1p-24;
    *bound = (u / (1 - u) * (double)magnitudes + underflow) * (1 + 0x1p-20);
    return (double)sum;
}

static void check_within_bound(enum weight_type type, size_t rows, size_t blocks, size_t T)
{
    static unsigned char data[1 << 18];
    static struct quantized_group x[4][512];
    enum kernel kernel = (enum kernel)(MATMUL_QUANTIZED + type - WEIGHT_TYPES);
    size_t K = blocks * quantized_format(type)->numbers, G = K / QUANTIZED_GROUP;
    struct weight_view w = {.type = type, .data = data, .rows = rows, .cols = K, .stride = K};
    float y[4 * 8];
    enum kind kind = below(2) ? UNIFORM : below(2) ? WIDE : SUBNORMAL;
    random_blocks(data, type, below(2) ? ORDINARY_SCALES : FINITE_SCALES, 0, rows * blocks);
    random_tensor_scale(&w, ORDINARY_SCALES);
    for (size_t t = 0; t < T; t++)
        for (size_t g = 0; g < G; g++) {
            float d;
            random_numbers(&d, WEIGHT_F32, kind, 1);
            random_group(&x[t][g], fabsf(d), 0);
        }
    kernels_scalar.matmul_quantized(y, rows, &w, 0, rows, x[0], 512, T, kernel_scratch());
    for (size_t t = 0; t < T; t++)
        for (size_t r = 0; r < rows; r++) {
            double bound, truth = dot_truth(&bound, &w, r, x[t]), got = (double)y[t * rows + r];
            char why[160];
            snprintf(why, sizeof why, "row %zu, x %zu: %.9g, the truth is %.17g, the bound %g", r, t, got, truth,
                     bound);
            if (!(fabs(got - truth) <= bound))
                failed(kernel, &kernels_scalar, "against the format's definition", why);
        }
}

/* With f16 of 1 and a single group of x whose d is 1 (the others' is 0) the dot is an integer below 2^24: scale * the
 * sum of products - min * the sum of x, exactly, in every table, from blocks and from panels. */
static void check_integers(enum weight_type type, size_t group, int extreme)
{
    unsigned char data[3 * 256], panel[2 * (64 + 2 * 512)] __attribute__((aligned(64)));
    enum kernel kernel = (enum kernel)(MATMUL_QUANTIZED + type - WEIGHT_TYPES);
    struct quantized_group x[8];
    struct weight_view w = {.type = type, .data = data, .rows = 3, .cols = quantized_format(type)->numbers};
    w.stride = w.cols;
    random_blocks(data, type, UNIT_SCALES, extreme, 3);
    random_tensor_scale(&w, UNIT_SCALES);
    for (size_t g = 0; g < w.cols / QUANTIZED_GROUP; g++)
        random_group(&x[g], g == group ? 1.0f : 0.0f, extreme);
    for (int panels = 0; panels <= weight_has_panels(type); panels++) {
        if (panels) {
            panel_from_blocks(panel, &w, 0);
            w.data = panel;
            w.panels = 1;
        }
        for (const struct kernels *k = &kernels_scalar; k; k = next_table(k == &kernels_scalar ? NULL : k)) {
            float y[3];
            k->matmul_quantized(y, 3, &w, 0, 3, x, 8, 1, kernel_scratch());
            for (size_t r = 0; r < 3; r++) {
                double want = 0; /* IQ1 and IQ2 have eighths, which f32 holds too */
                for (size_t l = 0; l < QUANTIZED_GROUP; l++) {
                    struct weight v = weight_of(&w, data + r * quantized_format(type)->bytes,
                                                (unsigned)(group * QUANTIZED_GROUP + l));
                    want += (v.scale * v.q - v.min) * x[group].q[l];
                }
                char why[120];
                snprintf(why, sizeof why, "row %zu: %.9g, the sum of integers is %.9g", r, (double)y[r], want);
                if (y[r] != (float)want)
                    failed(kernel, k, panels ? "panels, scales of 1" : "blocks, scales of 1", why);
            }
        }
    }
}

/* fl32(fl32(scale * q) - min) of finite scales, from any column on */
static void check_decode(enum weight_type type)
{
    unsigned char data[3 * 256];
    float out[3 * 256];
    size_t K = 3 * quantized_format(type)->numbers, from = below(K), count = below(K - from + 1);
    struct weight_view w = {.type = type, .data = data, .rows = 1, .cols = K, .stride = K};
    random_blocks(data, type, FINITE_SCALES, 0, 3);
    random_tensor_scale(&w, FINITE_SCALES);
    decode_weights(out, &w, 0, from, count);
    for (size_t k = 0; k < count; k++) {
        struct weight v = weight_at(&w, 0, from + k);
        float want = (float)((double)(float)(v.scale * v.q) - v.min);
        if (out[k] != want)
            failed((enum kernel)(MATMUL_QUANTIZED + type - WEIGHT_TYPES), &kernels_scalar, "a weight by itself",
                   "is not fl32(fl32(scale q) - min)");
    }
}

void check_quantized_truth(enum weight_type type)
{
    size_t groups = quantized_format(type)->numbers / QUANTIZED_GROUP;
    for (size_t i = 0; i < (quick ? 20 : 300); i++) {
        check_integers(type, i % groups, i % 4 == 3);
        check_decode(type);
    }
    for (size_t i = 0; i < (quick ? 8 : 60); i++)
        check_within_bound(type, 1 + below(5), 1 + below(i % 6 ? 4 : 112 / groups), 1 + below(3));
    check_within_bound(type, 2, (3 * DOT_BLOCK + 512) / quantized_format(type)->numbers, 2);
}

/* --- x --- */

/* x to the nearest integer, of two as near to the even one */
static int nearest(double x)
{
    double down = floor(x), rest = x - down; /* exact */
    return (int)down + (rest > 0.5 || (rest == 0.5 && fmod(down, 2) != 0));
}

void quantize_truth(const struct quantized_group *got, const float *packed, const char *what)
{
    double m = 0;
    int finite = 1, sum = 0, upper = 0, wrong = 0;
    for (size_t l = 0; l < QUANTIZED_GROUP; l++) {
        finite = finite && isfinite(packed[l]);
        m = fmax(m, fabs((double)packed[l]));
    }
    int zero = !finite || m < 0x1p-100;
    float inverse = zero ? 0.0f : (float)(127.0 / m); /* a quotient of two floats, rounded to double first, is rounded
                                                         right */
    for (size_t l = 0; l < QUANTIZED_GROUP; l++) {
        double x = zero ? 0 : (double)packed[l % 2 ? l / 2 : 16 + l / 2];
        int q = nearest((double)(float)(x * (double)inverse));
        wrong += got->q[l] != q;
        sum += q;
        upper += l < 16 ? 0 : q;
    }
    wrong += got->sum != sum || got->upper != upper || got->offset8 != -8 * sum || got->offset128 != -128 * sum;
    wrong += finite ? got->d != (zero ? 0.0f : (float)(m / 127.0)) : !isnan(got->d);
    if (wrong)
        failed(QUANTIZE, &kernels_scalar, what, "is not what the rule says");
}
