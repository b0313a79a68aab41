/* tests/ops/checkops_quantize.c -- blocks of Q8_0 and Q4_0 against the rules of ops/quantize.h, said again in double,
 * rounding by rounding. The same bytes as ggml's own functions were seen once, by hand; here the rule stands for
 * them. */
#include "tests/ops/checkops.h"

#include "ops/quantize.h"
#include "simd/decode.h"

#define SIZE QUANTIZE_BLOCK

static float fl32(double x) { return (float)x; }

/* What the scale is stored as: no other f16 number is nearer, and of two as near it is the even one. */
static void check_scale(const unsigned char *block, float d)
{
    uint16_t got;
    memcpy(&got, block, 2);
    double off = fabs((double)f16_to_f32(got) - (double)d);
    for (int step = -1; step <= 1; step += 2) {
        uint16_t other = (uint16_t)(got + step);
        if ((got & 0x7fff) == 0 && step < 0)
            continue;
        double o = (other & 0x7fff) == 0x7c00 ? 65536.0 : fabs((double)f16_to_f32(other)); /* where the next would be */
        double beside = fabs(o - fabs((double)d));
        if (beside < off || (beside == off && got & 1))
            fail_msg("%s: the scale %a is stored as %a (%04x)", case_name, (double)d, (double)f16_to_f32(got), got);
    }
    if (!signbit(d) != !(got & 0x8000))
        fail_msg("%s: the scale %a is stored as %04x", case_name, (double)d, got);
}

static float inverse_of(float d)
{
    float id = d != 0.0f ? fl32(1.0 / (double)d) : 0.0f;
    return isinf(id) ? 0.0f : id;
}

static void check_q8_0(const float *w)
{
    unsigned char block[QUANTIZE_Q8_0_BYTES];
    float m = 0.0f;
    for (int i = 0; i < SIZE; i++)
        m = fmaxf(m, fabsf(w[i]));
    float d = fl32((double)m / 127.0), id = inverse_of(d);
    assert_int_equal(op_quantize_q8_0(block, w, SIZE), 0);
    check_scale(block, d);
    for (int i = 0; i < SIZE; i++) {
        int want = (int)round((double)fl32((double)w[i] * (double)id));
        if ((int8_t)block[2 + i] != want)
            fail_msg("%s: Q8_0 of %a, scale %a, is %d, should be %d", case_name, (double)w[i], (double)d,
                     (int8_t)block[2 + i], want);
    }
}

static void check_q4_0(const float *w)
{
    unsigned char block[QUANTIZE_Q4_0_BYTES];
    float m = 0.0f;
    for (int i = 0; i < SIZE; i++)
        m = fabsf(w[i]) > fabsf(m) ? w[i] : m;
    float d = fl32((double)m / -8.0), id = inverse_of(d);
    assert_int_equal(op_quantize_q4_0(block, w, SIZE), 0);
    check_scale(block, d);
    for (int i = 0; i < SIZE; i++) {
        float shifted = fl32((double)fl32((double)w[i] * (double)id) + 8.5);
        int want = shifted >= 15.0f ? 15 : (int)shifted, got = block[2 + i % 16] >> (i < 16 ? 0 : 4) & 15;
        if (got != want)
            fail_msg("%s: Q4_0 of %a, scale %a, is %d, should be %d", case_name, (double)w[i], (double)d, got, want);
    }
}

/* Numbers of one block, by kind: spread, tiny, on the lattice and between it, equal maxima of both signs, zeros. */
static float number(int kind, int exponent, uint64_t *seed)
{
    float f = random_float(seed);
    int k = (int)random_below(seed, 511) - 255;
    switch (kind) {
    case 0: return f;
    case 1: return ldexpf(f, exponent);
    case 2: return ldexpf((float)k, exponent);
    case 3: return ldexpf((float)k * 0.5f, exponent);
    case 4: return ldexpf((float)(k % 17) * 0.5f, exponent);
    case 5: return ldexpf((float)(k % 9) + 0.49999997f, exponent);
    case 6: return k & 1 ? 0.0f : -0.0f;
    default: return ldexpf(f, -(int)random_below(seed, 150));
    }
}

TEST(blocks_are_those_of_the_rule)
{
    uint64_t seed = 1;
    float w[SIZE];
    for (int n = 0; n < 40000; n++) {
        int kind = n % 8, exponent = (int)random_below(&seed, 150) - 141;
        for (int i = 0; i < SIZE; i++)
            w[i] = number(kind, exponent, &seed);
        CASE("block %d of kind %d", n, kind);
        check_q8_0(w);
        check_q4_0(w);
    }
}

TEST(a_row_is_its_blocks_one_after_the_other_and_ends_where_it_should)
{
    uint64_t seed = 2;
    for (size_t blocks = 0; blocks < 6; blocks++) {
        const float *w = random_floats(blocks * SIZE, &seed);
        unsigned char *q8 = guarded(blocks * QUANTIZE_Q8_0_BYTES), *q4 = guarded(blocks * QUANTIZE_Q4_0_BYTES), one[64];
        assert_int_equal(op_quantize_q8_0(q8, w, blocks * SIZE), 0);
        assert_int_equal(op_quantize_q4_0(q4, w, blocks * SIZE), 0);
        for (size_t b = 0; b < blocks; b++) {
            op_quantize_q8_0(one, w + b * SIZE, SIZE);
            assert_memory_equal(q8 + b * QUANTIZE_Q8_0_BYTES, one, QUANTIZE_Q8_0_BYTES);
            op_quantize_q4_0(one, w + b * SIZE, SIZE);
            assert_memory_equal(q4 + b * QUANTIZE_Q4_0_BYTES, one, QUANTIZE_Q4_0_BYTES);
        }
    }
}

/* The largest scale that f16 holds is just below 65520; the block behind a bad one does not make it good. */
TEST(what_is_not_finite_is_told)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    unsigned char blocks[3 * QUANTIZE_Q8_0_BYTES];
    float w[3 * SIZE] = {0};
    for (size_t i = 0; i < COUNT(bad); i++)
        for (int at = 0; at < 3 * SIZE; at += 19) {
            w[at] = bad[i];
            assert_int_equal(op_quantize_q8_0(blocks, w, 3 * SIZE), -1);
            assert_int_equal(op_quantize_q4_0(blocks, w, 3 * SIZE), -1);
            w[at] = 0.0f;
        }
    w[40] = -65520.0f * 127.0f;
    assert_int_equal(op_quantize_q8_0(blocks, w, 3 * SIZE), -1);
    w[40] = 65504.0f * 127.0f;
    assert_int_equal(op_quantize_q8_0(blocks, w, 3 * SIZE), 0);
    w[40] = 65520.0f * 8.0f;
    assert_int_equal(op_quantize_q4_0(blocks, w, 3 * SIZE), -1);
    w[40] = -65504.0f * 8.0f;
    assert_int_equal(op_quantize_q4_0(blocks, w, 3 * SIZE), 0);
}

/* Scales around 2^-128, where the inverse overflows: numbers that come back as 0, whatever their q. */
TEST(numbers_too_small_for_a_scale_are_zeros)
{
    unsigned char block[QUANTIZE_Q8_0_BYTES];
    for (int exponent = -149; exponent <= -110; exponent++) {
        float w[SIZE] = {ldexpf(1.0f, exponent), ldexpf(-1.0f, exponent - 1), -0.0f};
        CASE("2^%d", exponent);
        check_q8_0(w);
        check_q4_0(w);
        op_quantize_q8_0(block, w, SIZE);
        assert_int_equal(block[0] | block[1], 0);
        op_quantize_q4_0(block, w, SIZE);
        assert_int_equal(block[0], 0);
        assert_int_equal(block[1] & 0x7f, 0);
    }
}

/* Every f16 and bf16 number comes back as it was, and one between two of them as the nearer, or the even one. */
TEST(halves_come_back_and_what_lies_between_goes_to_the_nearest)
{
    for (uint32_t code = 0; code < 0x10000; code++) {
        uint16_t got, half = (uint16_t)code;
        float f16 = f16_to_f32(half), bf16 = bf16_to_f32(half);
        op_store_f16(&got, &f16, 1);
        if (got != half && !(isnan(f16) && isnan(f16_to_f32(got))))
            fail_msg("f16 %04x comes back as %04x", half, got);
        op_store_bf16(&got, &bf16, 1);
        if (got != half && !(isnan(bf16) && isnan(bf16_to_f32(got))))
            fail_msg("bf16 %04x comes back as %04x", half, got);
        if ((code & 0x7fff) >= 0x7bff) /* the next is not finite */
            continue;
        float next = f16_to_f32((uint16_t)(half + 1)), middle = (f16 + next) * 0.5f;
        float between[3] = {nextafterf(middle, f16), middle, nextafterf(middle, next)};
        uint16_t want[3] = {half, (uint16_t)(half + (half & 1)), (uint16_t)(half + 1)}, three[3];
        op_store_f16(three, between, 3);
        for (int i = 0; i < 3; i++)
            if (three[i] != want[i])
                fail_msg("%a as f16 is %04x, should be %04x", (double)between[i], three[i], want[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(blocks_are_those_of_the_rule, release_all),
        cmocka_unit_test_teardown(a_row_is_its_blocks_one_after_the_other_and_ends_where_it_should, release_all),
        cmocka_unit_test_teardown(what_is_not_finite_is_told, release_all),
        cmocka_unit_test_teardown(numbers_too_small_for_a_scale_are_zeros, release_all),
        cmocka_unit_test_teardown(halves_come_back_and_what_lies_between_goes_to_the_nearest, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
