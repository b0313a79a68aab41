/* tests/cuda/checkcuda_cache_rows.c -- queries and cache rows on an emulated device; the residual sum; rounding to
 * BF16; rows that are not finite. */
#include "ops/add.h"
#include "ops/cache_rows.h"
#include "ops/finite.h"
#include "ops/round.h"
#include "tests/cuda/checkcuda.h"

#define S 6
#define LAYERS 3
#define SLOTS 9

/* Two sequences have their rows in one pool, a third has its own. The rows of a pass have scattered slots. */
struct cached {
    struct kv_layout layout;
    char *pool[2];
    struct row_place *rows;
};

static size_t pool_bytes(const struct kv_layout *l) { return LAYERS * SLOTS * kv_row_bytes(l); }

static struct cached cached_rows(const struct kv_layout *l, struct device *d)
{
    static const int32_t slots[S] = {7, 0, 3, 8, 1, 5};
    struct cached c = {.layout = *l, .rows = guarded(S * sizeof *c.rows)};
    for (int i = 0; i < 2; i++) {
        c.pool[i] = guarded(pool_bytes(l));
        memset(c.pool[i], 0x5a, pool_bytes(l));
        if (d)
            with_twin(d, c.pool[i], pool_bytes(l));
    }
    for (size_t s = 0; s < S; s++) {
        char *pool = c.pool[s % 3 == 2];
        c.rows[s] = (struct row_place){.rows = address(d, pool), .layer_bytes = SLOTS * kv_row_bytes(l),
                                        .slot = slots[s], .query_scale = s % 2 ? 1.0f : 1.375f + (float)s};
    }
    if (d)
        with_twin(d, c.rows, S * sizeof *c.rows);
    return c;
}

static void forget(struct cached *c, struct device *d)
{
    drop(d, c->pool[0]), drop(d, c->pool[1]), drop(d, c->rows);
}

/* Rows whose latents are ordinary, large, tiny, all zero, with infinities, and with NaN. */
static float *some_latents(size_t width, uint64_t *seed)
{
    static const float factor[S] = {1.0f, 0x1p100f, 0x1p-130f, 0.0f, 1000.0f, 1.0f};
    float *x = random_floats(S * width, seed);
    for (size_t i = 0; i < S * width; i++)
        x[i] *= factor[i / width] * (i % 7 ? 1.0f : 0.001f);
    x[4 * width + width / 2] = INFINITY;
    x[5 * width] = NAN;
    x[0] = -0.0f;
    x[width / 2] = 448.0f; /* the scale of E4M3 becomes exactly 1 */
    return x;
}

static void check(struct device *d, const struct cache_rows *a, uint64_t *seed)
{
    size_t width = a->layout.latent + a->layout.rope, nq = S * a->ldq;
    struct op_ctx cx = {.k = scalar_table(), .op = &operators_cpu, .threads = 1, .most_threads = 1};
    struct cached want = cached_rows(&a->layout, NULL), got = cached_rows(&a->layout, d);
    float *q = random_floats(nq, seed), *kv = some_latents(width, seed),
          *angles = with_twin(d, random_floats(S * a->layout.rope, seed), S * a->layout.rope * 4);
    float *q_device = with_twin(d, copy_of(q, nq), nq * sizeof *q),
          *kv_device = with_twin(d, copy_of(kv, S * width), S * width * sizeof *kv);
    cx.op->cache_rows(&cx, q, kv, angles, want.rows, a, S);
    cx = device_context(d, 0);
    cx.op->cache_rows(&cx, q_device, kv_device, angles, got.rows, a, S);
    fetch(d, q_device, nq * sizeof *q);
    fetch(d, kv_device, S * width * sizeof *kv);
    check_same_bits(q_device, a->ldq, q, a->ldq, S, a->ldq);
    if (a->read_back)
        check_same_bits(kv_device, width, kv, width, S, width);
    for (int i = 0; i < 2; i++) {
        size_t row = kv_row_bytes(&a->layout);
        fetch(d, got.pool[i], pool_bytes(&a->layout));
        for (size_t slot = 0; slot < LAYERS * SLOTS; slot++) { /* the payload of a NaN is not defined */
            const char *of_device = got.pool[i] + slot * row, *of_cpu = want.pool[i] + slot * row;
            float device_row[2048], cpu_row[2048];
            kv_row_read(&a->layout, device_row, of_device);
            kv_row_read(&a->layout, cpu_row, of_cpu);
            int has_nan = 0;
            for (size_t k = 0; k < width; k++) {
                has_nan |= isnan(cpu_row[k]) != 0;
                if (!same_bits(device_row[k], cpu_row[k]))
                    fail_msg("%s: number %zu of row %zu of pool %d is %a on the device, %a on the CPU", case_name, k,
                             slot, i, (double)device_row[k], (double)cpu_row[k]);
            }
            if (!has_nan && memcmp(of_device, of_cpu, row))
                fail_msg("%s: row %zu of pool %d has other bytes than on the CPU", case_name, slot, i);
        }
    }
    forget(&got, d);
    drop(d, angles), drop(d, q_device), drop(d, kv_device);
}

TEST(cache_rows_and_queries_have_the_bits_of_the_cpu)
{
    static const size_t sizes[][4] = {{1, 0, 2, 1}, {5, 11, 8, 40}, {8, 16, 64, 512}, {20, 3, 6, 160},
                                      {9, 128, 64, 1030}, {0, 4, 8, 32}};
    uint64_t seed = 1;
    FOR_EACH_OPERATORS(d)
        for (size_t i = 0; i < COUNT(sizes); i++)
            for (int how = 0; how < 12; how++) {
                size_t mark = guard_count;
                struct kv_layout layout = {.type = (enum kv_type)(how % 3),
                                           .latent = how % 3 == KV_Q8 ? (sizes[i][3] + 31) / 32 * 32 : sizes[i][3],
                                           .rope = sizes[i][2]};
                static struct rope rope;
                rope_init(&rope, layout.rope, how & 1, 10000.0, NULL);
                struct cache_rows a = {.heads = sizes[i][0], .nope = sizes[i][1],
                                       .ldq = (sizes[i][0] + (size_t)(how % 2)) * (sizes[i][1] + sizes[i][2]),
                                       .rope = &rope, .layout = layout, .layer = (size_t)how % LAYERS,
                                       .round_latent = how / 3 % 2, .read_back = how / 6};
                CASE("cache rows H=%zu n=%zu r=%zu c=%zu how=%d order=%d", a.heads, a.nope, layout.rope, layout.latent,
                     how, order_);
                check(d, &a, &seed);
                release_to(mark);
            }
}

TEST(sums_have_the_bits_of_the_cpu)
{
    static const size_t sizes[] = {0, 1, 255, 256, 257, 1000};
    uint64_t seed = 1;
    FOR_EACH_OPERATORS(d)
        for (size_t i = 0; i < COUNT(sizes); i++) {
            size_t n = sizes[i], bytes = n * sizeof(float);
            struct op_ctx cx = {.k = scalar_table(), .op = &operators_cpu, .threads = 1, .most_threads = 1};
            float *y = random_floats(n, &seed), *x = random_floats(n, &seed);
            if (n > 2)
                y[0] = -0.0f, x[0] = -0.0f, y[1] = INFINITY, x[1] = -INFINITY;
            float *got = with_twin(d, copy_of(y, n), bytes);
            with_twin(d, x, bytes);
            CASE("add n=%zu order=%d", n, order_);
            cx.op->add(&cx, y, x, n);
            cx = device_context(n ? d : NULL, 0);
            cx.op->add(&cx, got, x, n);
            fetch(d, got, bytes);
            check_same_bits(got, n, y, n, 1, n);
            drop(d, got), drop(d, x);
        }
    release_all(NULL);
}

TEST(numbers_rounded_to_bf16_have_the_bits_of_the_cpu)
{
    enum { n = 2000 };
    uint64_t seed = 1;
    FOR_EACH_OPERATORS(d) {
        struct op_ctx cx = {.k = scalar_table(), .op = &operators_cpu, .threads = 1, .most_threads = 1};
        float *x = guarded_floats(n), *want = guarded_floats(n),
              *got = with_twin(d, guarded_floats(n), n * sizeof *got);
        for (size_t i = 0; i < n; i++) { /* any bits; ties */
            uint32_t bits = (uint32_t)next_random(&seed);
            bits = i % 3 ? bits : (bits & 0xffff0000) | 0x8000;
            memcpy(&x[i], &bits, sizeof bits);
        }
        with_twin(d, x, n * sizeof *x);
        CASE("rounding to BF16, order=%d", order_);
        cx.op->round(&cx, want, x, n);
        cx = device_context(d, 0);
        cx.op->round(&cx, got, x, n);
        cx.op->round(&cx, x, x, n);
        fetch(d, got, n * sizeof *got);
        fetch(d, x, n * sizeof *x);
        check_same_bits(got, n, want, n, 1, n);
        check_same_bits(x, n, want, n, 1, n);
        drop(d, got), drop(d, x);
    }
}

TEST(the_first_layer_that_is_not_finite_is_noted_as_on_the_cpu)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    uint64_t seed = 1;
    FOR_EACH_OPERATORS(d)
        for (size_t D = 1; D <= 300; D += 13) {
            size_t mark = guard_count;
            struct op_ctx cx = {.k = scalar_table(), .op = &operators_cpu, .threads = 1, .most_threads = 1};
            float *x = random_floats(S * D, &seed);
            int32_t *want = guarded(S * sizeof *want), *got = guarded(S * sizeof *got);
            for (size_t s = 0; s < S; s++)
                want[s] = got[s] = s == 1 ? 4 : -1; /* row 1 has a bad layer already */
            x[D - 1] = x[0] = 0x1.fffffep127f; /* large, and finite */
            for (size_t s = 1; s < 4; s++)
                x[s * D + random_below(&seed, D)] = bad[s - 1];
            with_twin(d, x, S * D * sizeof *x), with_twin(d, got, S * sizeof *got);
            cx.op->first_not_finite(&cx, want, x, 7, S, D);
            cx = device_context(d, 0);
            cx.op->first_not_finite(&cx, got, x, 7, S, D);
            fetch(d, got, S * sizeof *got);
            for (size_t s = 0; s < S; s++) {
                assert_int_equal(want[s], s == 1 ? 4 : s == 2 || s == 3 ? 7 : -1);
                assert_int_equal(got[s], want[s]);
            }
            drop(d, x), drop(d, got);
            release_to(mark);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(cache_rows_and_queries_have_the_bits_of_the_cpu, release_all),
        cmocka_unit_test_teardown(sums_have_the_bits_of_the_cpu, release_all),
        cmocka_unit_test_teardown(numbers_rounded_to_bf16_have_the_bits_of_the_cpu, release_all),
        cmocka_unit_test_teardown(the_first_layer_that_is_not_finite_is_noted_as_on_the_cpu, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
