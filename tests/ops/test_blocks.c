/* tests/ops/test_blocks.c -- what the reference and the engine take quantized numbers for: blocks and rounded weights
 * as the `gguf` package has them (golden/truth/blocks.safetensors); packed codes as the compressed-tensors package has
 * them; x as rule 2 of simd/kernels.h says. Runs in the repository's root. */
#include "ops/quantize.h"
#include "reference/layers.h"
#include "simd/grids.h"
#include "simd/quantized.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/support/golden.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define COLS 64 /* of the rows that were quantized */

static const struct { const char *name; enum dtype dtype; int numbers, minimums;
} types[] = {
    {"Q8_0", DTYPE_Q8_0, 32, 0}, {"Q4_0", DTYPE_Q4_0, 32, 0}, {"Q5_0", DTYPE_Q5_0, 32, 0},
    {"Q5_1", DTYPE_Q5_1, 32, 1},
    {"Q4_K", DTYPE_Q4_K, 256, 1}, {"Q5_K", DTYPE_Q5_K, 256, 1}, {"Q6_K", DTYPE_Q6_K, 256, 0},
    {"MXFP4", DTYPE_MXFP4, 32, 0},
    {"IQ2_XXS", DTYPE_IQ2_XXS, 256, 0},
    {"IQ2_XS", DTYPE_IQ2_XS, 256, 0},
    {"IQ2_S", DTYPE_IQ2_S, 256, 0},
    {"IQ3_XXS", DTYPE_IQ3_XXS, 256, 0},
    {"IQ3_S", DTYPE_IQ3_S, 256, 0},
    {"IQ1_S", DTYPE_IQ1_S, 256, 0},
    {"IQ1_M", DTYPE_IQ1_M, 256, 0},
    {"TQ1_0", DTYPE_TQ1_0, 256, 0},
    {"TQ2_0", DTYPE_TQ2_0, 256, 0},
    {"Q4_1", DTYPE_Q4_1, 32, 1}, {"IQ4_NL", DTYPE_IQ4_NL, 32, 0}, {"IQ4_XS", DTYPE_IQ4_XS, 256, 0},
    {"Q3_K", DTYPE_Q3_K, 256, 0}, {"Q2_K", DTYPE_Q2_K, 256, 1}, {"NVFP4", DTYPE_GGUF_NVFP4, 64, 0},
};

static void check_bits(const char *what, size_t i, double have, float want)
{
    float f = (float)have;
    if (memcmp(&f, &want, sizeof f) || (double)f != have)
        fail_msg("%s, number %zu: %a, the golden has %a", what, i, have, (double)want);
}

/* Bit for bit, zeros with their signs. */
TEST(every_quantized_type_decodes_to_the_numbers_of_the_gguf_package)
{
    struct golden g = golden_open("blocks");
    char name[32];
    double row[256], exact[256];
    float engine[256];
    for (size_t k = 0; k < COUNT(types); k++) {
        size_t bytes, count;
        snprintf(name, sizeof name, "%s.blocks", types[k].name);
        struct tensor t = {.dtype = types[k].dtype, .data = golden_data(&g, name, &bytes)};
        const float *want = golden_data(&g, types[k].name, &count);
        struct matrix w = {.tensor = &t, .rows = (int)count / types[k].numbers, .cols = types[k].numbers};
        struct weight_view view = {.type = (enum weight_type)t.dtype, .data = t.data, .rows = (size_t)w.rows,
                                   .cols = (size_t)w.cols, .stride = (size_t)w.cols, .tensor_scale = 1.0f};
        assert_true(w.rows >= 12);
        for (int i = 0; i < w.rows; i++) {
            ref_row(&w, i, row);
            ref_quantized_row(&w, i, exact);
            decode_quantized(engine, &view, (size_t)i, 0, view.cols);
            for (int j = 0; j < w.cols; j++) {
                size_t at = (size_t)(i * w.cols + j);
                check_bits(types[k].name, at, row[j], want[at]);
                check_bits(types[k].name, at, (double)engine[j], want[at]);
                if (types[k].minimums ? (float)exact[j] != want[at] : exact[j] != row[j])
                    fail_msg("%s, number %zu: %a in sums, %a by itself", types[k].name, at, exact[j], row[j]);
            }
        }
    }
    golden_close(&g);
}

/* The blocks do not contain every row of a grid. */
TEST(every_row_of_every_grid_is_that_of_the_gguf_package)
{
    static const struct { const char *name; const void *grid; size_t bytes; int times; } grids[] = {
        {"grid.IQ2_XXS", grid_iq2_xxs, sizeof grid_iq2_xxs, 1}, {"grid.IQ2_XS", grid_iq2_xs, sizeof grid_iq2_xs, 1},
        {"grid.IQ2_S", grid_iq2_s, sizeof grid_iq2_s, 1},       {"grid.IQ3_XXS", grid_iq3_xxs, sizeof grid_iq3_xxs, 1},
        {"grid.IQ3_S", grid_iq3_s, sizeof grid_iq3_s, 1},       {"grid.IQ1_S", grid_iq1, sizeof grid_iq1, 8},
    };
    struct golden g = golden_open("blocks");
    for (size_t k = 0; k < COUNT(grids); k++) {
        size_t count;
        const signed char *want = golden_data(&g, grids[k].name, &count), *have = grids[k].grid;
        assert_int_equal(count, grids[k].bytes);
        for (size_t i = 0; i < count; i++)
            if (have[i] != grids[k].times * want[i])
                fail_msg("%s, byte %zu: %d, the golden has %d", grids[k].name, i, have[i], want[i]);
    }
    golden_close(&g);
}

static const void *data_of(const struct golden *g, const char *format, const char *part, size_t *count)
{
    char name[60];
    snprintf(name, sizeof name, "%s.%s", format, part);
    return golden_data(g, name, count);
}

/* Bit for bit: the engine in precision f32 and, as the package rounds to BF16, in bf16; and the reference. */
TEST(packed_codes_decode_to_the_numbers_of_the_compressed_tensors_package)
{
    static const struct { const char *name; enum dtype dtype, scale; size_t group;
    } formats[] = {
                   {"int4", DTYPE_I4, DTYPE_BF16, 32}, {"nvfp4", DTYPE_F4, DTYPE_F8_E4M3, 16},
                   {"mxfp4", DTYPE_F4, DTYPE_OTHER, 32}};
    enum { HEIGHT = 24, WIDTH = 96 };
    struct golden g = golden_open("compressed");
    for (size_t f = 0; f < COUNT(formats); f++) {
        size_t group = formats[f].group, count;
        char name[40];
        double row[WIDTH];
        float engine[WIDTH];
        struct tensor codes = {.dtype = formats[f].dtype,
                               .data = data_of(&g, formats[f].name, "weight_packed", &count)};
        assert_int_equal(count * (formats[f].dtype == DTYPE_I4 ? 8 : 2), HEIGHT * WIDTH);
        struct tensor scale = {.dtype = formats[f].scale, .data = data_of(&g, formats[f].name, "weight_scale", &count)};
        assert_int_equal(count * group, HEIGHT * WIDTH);
        struct tensor total = {.dtype = DTYPE_F32,
                               .data = group == 16 ? data_of(&g, formats[f].name, "weight_global_scale", &count)
                                                   : NULL};
        struct matrix w = {.tensor = &codes, .scale = &scale, .tensor_scale = total.data ? &total : NULL, .divides = 1,
                           .rows = HEIGHT, .cols = WIDTH, .block_rows = 1, .block_cols = (int)group};
        struct weight_view view = {.type = formats[f].dtype == DTYPE_I4 ? WEIGHT_I4 : WEIGHT_F4, .data = codes.data,
                                   .group_scale = scale.data, .rows = HEIGHT, .cols = WIDTH, .stride = WIDTH,
                                   .group_size = group, .divides = 1};
        if (total.data)
            memcpy(&view.tensor_scale, total.data, sizeof view.tensor_scale);
        for (int rounded = 0; rounded < 2; rounded++) {
            const float *want = data_of(&g, formats[f].name, rounded ? "stored" : "f32", &count);
            snprintf(name, sizeof name, "%s%s", formats[f].name, rounded ? " in bf16" : "");
            view.rounded = rounded;
            for (int i = 0; i < HEIGHT; i++, want += WIDTH) {
                ref_row(&w, i, row);
                decode_weights(engine, &view, (size_t)i, 0, view.cols);
                for (int j = 0; j < WIDTH; j++) {
                    check_bits(name, (size_t)(i * WIDTH + j), (double)engine[j], want[j]);
                    if (!rounded)
                        check_bits("the reference", (size_t)(i * WIDTH + j), row[j], want[j]);
                }
            }
        }
    }
    golden_close(&g);
}

/* A matrix of int8 codes with a scale for each row. `stored`: what the copy of precision bf16 has; may be NULL. */
static void check_int8(const char *what, const struct tensor *codes, const struct tensor *scale, const float *scale_f32,
                       const float *want, const float *stored)
{
    double row[96];
    float engine[96];
    struct matrix w = {.tensor = codes, .scale = scale, .rows = 24, .cols = 96, .block_rows = 1, .block_cols = 96};
    struct weight_view view = {.type = WEIGHT_I8, .data = codes->data, .scale = scale_f32, .rows = 24, .cols = 96,
                               .stride = 96, .scale_stride = 1, .block_rows = 1, .block_cols = 96};
    for (int i = 0; i < 24; i++) {
        ref_row(&w, i, row);
        decode_weights(engine, &view, (size_t)i, 0, view.cols);
        for (int j = 0; j < 96; j++) {
            size_t at = (size_t)(i * 96 + j);
            check_bits(what, at, (double)engine[j], want[at]);
            check_bits(what, at, row[j], want[at]);
            if (stored)
                check_bits("INT8 in bf16", at, (double)round_to_bf16(engine[j]), stored[at]);
        }
    }
}

TEST(int8_codes_decode_to_the_numbers_of_the_compressed_tensors_package)
{
    struct golden g = golden_open("compressed");
    size_t count, scales;
    float scale_f32[24];
    struct tensor codes = {.dtype = DTYPE_I8, .data = golden_data(&g, "int8.weight", &count)};
    struct tensor scale = {.dtype = DTYPE_BF16, .data = golden_data(&g, "int8.weight_scale", &scales)};
    assert_true(count == 24 * 96 && scales == 24);
    for (size_t i = 0; i < 24; i++)
        scale_f32[i] = bf16_to_f32(((const uint16_t *)scale.data)[i]);
    check_int8("INT8", &codes, &scale, scale_f32, golden_data(&g, "int8.f32", &count),
               golden_data(&g, "int8.stored", &count));
    golden_close(&g);
}

/* F32 scales: products are rounded. */
TEST(int8_codes_decode_to_the_numbers_that_numpy_computes_for_modelslim)
{
    struct golden g = golden_open("modelslim");
    size_t count, scales;
    struct tensor codes = {.dtype = DTYPE_I8, .data = golden_data(&g, "weight", &count)};
    struct tensor scale = {.dtype = DTYPE_F32, .data = golden_data(&g, "weight_scale", &scales)};
    assert_true(count == 24 * 96 && scales == 24);
    check_int8("ModelSlim", &codes, &scale, scale.data, golden_data(&g, "f32", &count), NULL);
    golden_close(&g);
}

/* The reference has the grids in another form: a block for each row of a grid tells whether they are the same. */
TEST(the_grids_of_the_reference_are_those_of_the_engine)
{
    static const struct { enum dtype dtype; size_t bytes; int rows;
    } grids[] = {
        {DTYPE_IQ2_XXS, 66, 256}, {DTYPE_IQ2_XS, 74, 512}, {DTYPE_IQ2_S, 82, 1024},
        {DTYPE_IQ3_XXS, 98, 256}, {DTYPE_IQ3_S, 110, 512}, {DTYPE_IQ1_S, 50, 2048},
    };
    static const unsigned char one[2] = {0x00, 0x3c};
    for (size_t k = 0; k < COUNT(grids); k++)
        for (int i = 0; i < grids[k].rows; i++) {
            unsigned char block[110] = {0};
            float have[256];
            memcpy(block, one, 2);
            block[2] = (unsigned char)i;
            if (grids[k].dtype == DTYPE_IQ2_XS)
                block[3] = (unsigned char)(i >> 8);
            if (grids[k].dtype == DTYPE_IQ2_S || grids[k].dtype == DTYPE_IQ3_S)
                block[66] = (unsigned char)(i >> 8);
            if (grids[k].dtype == DTYPE_IQ1_S)
                block[34] = (unsigned char)(i >> 8);
            struct tensor t = {.dtype = grids[k].dtype, .data = block};
            struct weight_view view = {.type = (enum weight_type)t.dtype, .data = block, .rows = 1, .cols = 256,
                                       .stride = 256};
            decode_quantized(have, &view, 0, 0, 256);
            for (size_t j = 0; j < 256; j++)
                check_bits("a row of a grid", (size_t)i, ref_quantized(&t, j), have[j]);
        }
}

TEST(weights_of_q8_and_q4_are_those_that_the_gguf_package_quantizes_to)
{
    static const struct {
        const char *name;
        enum precision precision;
        enum dtype dtype;
        int (*quantize)(void *blocks, const float *w, size_t K);
    } modes[] = {{"rows.Q8_0", PRECISION_Q8, DTYPE_Q8_0, op_quantize_q8_0},
                 {"rows.Q4_0", PRECISION_Q4, DTYPE_Q4_0, op_quantize_q4_0}};
    struct golden g = golden_open("blocks");
    double row[COLS], engine[COLS];
    unsigned char blocks[COLS / 32 * QUANTIZE_Q8_0_BYTES];
    size_t count;
    const float *numbers = golden_data(&g, "rows", &count);
    struct tensor t = {.dtype = DTYPE_F32, .data = numbers};
    struct matrix w = {.tensor = &t, .rows = (int)count / COLS, .cols = COLS};
    assert_true(w.rows >= 24);
    for (size_t k = 0; k < COUNT(modes); k++) {
        const float *want = golden_data(&g, modes[k].name, &count);
        struct reference_run run = {.row = row, .options.precision = modes[k].precision};
        struct tensor quantized = {.dtype = modes[k].dtype, .data = blocks};
        for (int i = 0; i < w.rows; i++, want += COLS) {
            ref_weights(&run, &w, i);
            assert_int_equal(modes[k].quantize(blocks, numbers + i * COLS, COLS), 0);
            ref_row(&(struct matrix){.tensor = &quantized, .rows = 1, .cols = COLS}, 0, engine);
            for (int j = 0; j < COLS; j++)
                if (row[j] != want[j] || engine[j] != want[j])
                    fail_msg("%s, row %d, number %d: %a, the engine's %a, the golden has %a", modes[k].name, i, j,
                             row[j], engine[j], (double)want[j]);
        }
    }
    golden_close(&g);
}

/* ---- x ----------------------------------------------------------------------------------------------------------- */

static void rounded(double y[32], double m, const double *x, size_t n)
{
    struct reference_run run = {0};
    double group[32] = {m};
    memcpy(group + 1, x, n * sizeof *x);
    ref_round_x(&run, TO_GROUPS, y, group, 32);
}

TEST(x_becomes_whole_steps_of_its_groups_largest_over_127)
{
    static const double x[] = {2.5, 3.5, -2.5, -3.5, 0.5, 0.50001, 126.4}, codes[] = {2, 4, -2, -4, 0, 1, 126};
    double y[32], scaled[COUNT(x)];
    for (int e = -99; e < 100; e += 33)
        for (int sign = -1; sign < 2; sign += 2) {
            for (size_t i = 0; i < COUNT(x); i++)
                scaled[i] = ldexp(x[i], e);
            rounded(y, ldexp(127 * sign, e), scaled, COUNT(x));
            assert_true(y[0] == ldexp(127 * sign, e) && y[COUNT(x) + 1] == 0);
            for (size_t i = 0; i < COUNT(x); i++)
                if (y[i + 1] != ldexp(codes[i], e))
                    fail_msg("%g becomes %g, a step is 2^%d", scaled[i], y[i + 1], e);
        }
}

TEST(groups_that_are_tiny_or_not_finite_are_all_zero_or_nan)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY, 1e39 /* not finite in f32 */};
    double y[32];
    rounded(y, 0x1.fffffep-101, (double[]){-0x1p-101}, 1);
    for (int i = 0; i < 32; i++)
        assert_true(y[i] == 0);
    rounded(y, 0x1p-100, (double[]){-0x1p-100}, 1);
    assert_true(y[0] > 0 && y[1] == -y[0]);
    for (size_t k = 0; k < COUNT(bad); k++) {
        rounded(y, 1, &bad[k], 1);
        for (int i = 0; i < 32; i++)
            assert_true(isnan(y[i]));
    }
}

/* A perturbed run turns the rounding of numbers that lie within 2^-18 of the group's largest of a tie, and of no
 * others. */
TEST(a_perturbed_run_moves_a_number_near_a_tie_by_one_step)
{
    static const double x[] = {10.5, 64.5 + 127 * 0x1p-22, 3, 99.49, -7.5 - 127 * 0x1p-21};
    double y[32], exact[32], group[32] = {127};
    int turned[32] = {0};
    memcpy(group + 1, x, sizeof x);
    rounded(exact, 127, x, COUNT(x));
    for (uint64_t seed = 1; seed <= 64; seed++) {
        struct reference_run run = {.options.perturb = seed, .random = seed};
        ref_round_x(&run, TO_GROUPS, y, group, 32);
        for (int i = 0; i < 32; i++) {
            assert_true(fabs(y[i] - exact[i]) <= 1);
            turned[i] += y[i] != exact[i];
        }
    }
    for (int i = 0; i < 32; i++) {
        int tie = i == 1 || i == 2 || i == 5;
        if (tie ? turned[i] < 16 || turned[i] > 48 : turned[i] > 0)
            fail_msg("%g was turned in %d of 64 runs", group[i], turned[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_quantized_type_decodes_to_the_numbers_of_the_gguf_package),
        cmocka_unit_test(every_row_of_every_grid_is_that_of_the_gguf_package),
        cmocka_unit_test(the_grids_of_the_reference_are_those_of_the_engine),
        cmocka_unit_test(packed_codes_decode_to_the_numbers_of_the_compressed_tensors_package),
        cmocka_unit_test(int8_codes_decode_to_the_numbers_of_the_compressed_tensors_package),
        cmocka_unit_test(int8_codes_decode_to_the_numbers_that_numpy_computes_for_modelslim),
        cmocka_unit_test(weights_of_q8_and_q4_are_those_that_the_gguf_package_quantizes_to),
        cmocka_unit_test(x_becomes_whole_steps_of_its_groups_largest_over_127),
        cmocka_unit_test(groups_that_are_tiny_or_not_finite_are_all_zero_or_nan),
        cmocka_unit_test(a_perturbed_run_moves_a_number_near_a_tie_by_one_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
