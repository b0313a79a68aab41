/* tests/cuda/checkcuda_attention.c -- attention over the latent cache on an emulated device. */
#include "ops/attention.h"
#include "tests/cuda/checkcuda.h"

#define LAYERS 2
#define LAYER 1
#define LONGEST 598
#define SLOTS 1500
#define MOST_QUERIES 9

struct shape {
    size_t heads, row_heads, nope, rope, value, latent;
};

/* The cache of three sequences: two in the first pool, one in the second. */
struct caches {
    char *pool[2];
    int32_t *slots[3];
    struct timeline *seen;     /* [MOST_QUERIES] */
    struct row_place *rows;   /* the same, for the device */
};

static size_t pool_bytes(const struct kv_layout *l) { return LAYERS * SLOTS * kv_row_bytes(l); }

/* Makes a row have numbers of all kinds. */
static void make_special(float *row, size_t width, uint64_t *seed)
{
    static const float numbers[] = {INFINITY, -INFINITY, NAN, 0x1.8p127f, -0x1.8p127f, 0x1p-140f, -0.0f};
    size_t kind = random_below(seed, 20);
    for (size_t i = 0; i < width && kind == 0; i++)
        row[i] = i % 2 ? 0.0f : -0.0f;
    if (kind >= 1 && kind <= COUNT(numbers))
        row[random_below(seed, width)] = numbers[kind - 1];
}

static struct caches make_caches(struct device *d, const struct kv_layout *l, const size_t *lengths, size_t S,
                                 unsigned how, uint64_t *seed)
{
    struct caches c = {.seen = guarded(S * sizeof *c.seen), .rows = guarded(S * sizeof *c.rows)};
    size_t row = kv_row_bytes(l), width = l->latent + l->rope, layer = SLOTS * row;
    float *x = guarded_floats(width);
    int32_t free_slots[SLOTS];
    for (int i = 0; i < 2; i++)
        c.pool[i] = guarded(pool_bytes(l)); /* what no query may see is NaN */
    for (int32_t i = 0; i < SLOTS; i++)
        free_slots[i] = i;
    for (size_t i = SLOTS; i > 1; i--) {
        size_t j = random_below(seed, i);
        int32_t kept = free_slots[i - 1];
        free_slots[i - 1] = free_slots[j];
        free_slots[j] = kept;
    }
    for (size_t i = 0; i < 3; i++) {
        c.slots[i] = guarded(LONGEST * sizeof **c.slots);
        for (size_t j = 0; j < LONGEST; j++) {
            /* the second sequence has its rows in a row */
            c.slots[i][j] = i == 1 ? (int32_t)(SLOTS - LONGEST + j) : free_slots[(i ? 0 : 700) + j];
            for (size_t k = 0; k < width; k++)
                x[k] = random_float(seed) * (how & 4 ? 0x1p-56f : 1.0f);
            if (how & 2 && random_below(seed, 40) == 0)
                make_special(x, width, seed);
            if (i != 0 || c.slots[0][j] < SLOTS - LONGEST)
                kv_row_write(scalar_table(), l, c.pool[i == 2] + LAYER * layer + (size_t)c.slots[i][j] * row, x);
            else
                c.slots[0][j] = c.slots[0][0]; /* the row belongs to the second sequence */
        }
        with_twin(d, c.slots[i], LONGEST * sizeof **c.slots);
    }
    for (int i = 0; i < 2; i++)
        with_twin(d, c.pool[i], pool_bytes(l));
    for (size_t s = 0; s < S; s++) {
        size_t i = s % 3;
        char *pool = c.pool[i == 2];
        c.seen[s] = (struct timeline){pool + LAYER * layer, c.slots[i], lengths[s]};
        c.rows[s] = (struct row_place){.rows = address(d, pool), .layer_bytes = layer,
                                        .slots = address(d, c.slots[i]), .length = (uint32_t)lengths[s], .slot = -1,
                                        .query_scale = NAN /* not used */};
    }
    with_twin(d, c.rows, S * sizeof *c.rows);
    return c;
}

static void forget(struct device *d, const struct caches *c)
{
    for (int i = 0; i < 3; i++)
        drop(d, c->slots[i]);
    drop(d, c->pool[0]), drop(d, c->pool[1]), drop(d, c->rows);
}

static void compare(struct device *d, struct attention *a, const struct caches *c, const float *q, size_t S,
                    size_t context)
{
    size_t ldy = attention_row_heads(a) * a->value, bytes = d ? cuda_attention_scratch(a, S, a->longest)
                                                              : op_attention_scratch(a, S, context, CPU_THREADS);
    struct op_ctx cpu = context_of(scalar_table(), 1, op_attention_scratch(a, S, context, 1)),
                  cx = device_context(d, bytes);
    struct attention there = *a;
    float *want = guarded_floats(S * ldy), *got = with_twin(d, guarded_floats(S * ldy), S * ldy * sizeof *got);
    op_attention(&cpu, want, q, c->seen, a, S, context);
    there.places = c->rows;
    cx.op->attention(&cx, got, q, c->seen, &there, S, context);
    assert_int_equal(cx.scratch_used, 0);
    fetch(d, got, S * ldy * sizeof *got);
    check_same_bits(got, ldy, want, ldy, S, a->heads * a->value);
    check_untouched(got, ldy, S, a->heads * a->value);
    drop(d, got), drop(d, cx.scratch);
}

/* how & 1: weights are aligned; & 2: special numbers; & 4: tiny values; & 8: tiny queries. */
static void check(struct device *d, struct shape h, int type, enum kv_type cache, const size_t *lengths, size_t S,
                  unsigned how, uint64_t *seed)
{
    size_t mark = guard_count, longest = 256, context = 0, unit = h.nope + h.value;
    h.latent = cache == KV_Q8 ? (h.latent + 31) / 32 * 32 : h.latent;
    struct weight_view stored = random_matrix((enum weight_type)type, h.heads * unit, h.latent, seed).view;
    if (weight_is_packed(stored.type))
        stored.rounded = in_bf16;
    struct weight_view kv_b = on_device(d, &stored,
                                        how & 1 && !weight_is_packed(stored.type) ? (size_t)(-stored.stride & 31) : 0,
                                        0);
    struct attention a = {.heads = h.heads, .row_heads = h.row_heads, .nope = h.nope, .rope = h.rope, .value = h.value,
                          .latent = h.latent, .cache = cache,
                          .scale = (float)(2.0 / sqrt((double)(h.nope * h.latent) / 9.0)), .layer = LAYER, .w_uk = kv_b,
                          .w_uv = weight_rows(&kv_b, h.nope, kv_b.rows - h.nope), .uk_stride = unit, .uv_stride = unit};
    struct kv_layout layout = attention_rows(&a);
    size_t nq = S * attention_row_heads(&a) * (h.nope + h.rope);
    for (size_t s = 0; s < S; s++)
        context = lengths[s] > context ? lengths[s] : context;
    while (longest < context)
        longest *= 2;
    a.longest = longest;
    struct caches c = make_caches(d, &layout, lengths, S, how, seed);
    float *q = random_floats(nq, seed);
    if (how & 2)
        q[random_below(seed, nq)] = INFINITY;
    for (size_t i = 0; how & 8 && i < nq; i++)
        q[i] *= 0x1p-56f;
    a.scale *= how & 8 ? 0x1p56f : 1.0f;
    with_twin(d, q, nq * sizeof *q);
    CASE("attention %s%s H=%zu/%zu n=%zu r=%zu v=%zu c=%zu S=%zu context=%zu cache=%d how=%u", type_names[type],
         in_bf16 ? " in bf16" : "", h.heads, attention_row_heads(&a), h.nope, h.rope, h.value, h.latent, S, context,
         (int)cache, how);
    compare(d, &a, &c, q, S, context);
    forget(d, &c);
    drop(d, q);
    without_twin(d, &kv_b, 0);
    release_to(mark);
}

TEST(attention_has_the_bits_of_the_cpu)
{
    static const struct shape shapes[] = {{1, 0, 4, 2, 3, 8}, {5, 7, 11, 8, 13, 40}, {20, 20, 130, 6, 7, 70},
                                          {2, 3, 3, 16, 5, 1030}, {17, 0, 32, 64, 32, 160}};
    static const size_t lengths[] = {257, 1, 598, 255, 256, 33, 2, 512};
    uint64_t seed = 1;
    FOR_EACH_OPERATORS(d)
        for (size_t i = 0; i < COUNT(shapes); i++)
            for (int cache = KV_F32; cache <= KV_Q8; cache++) {
                size_t S = i == 1 ? 8 : 3, first = i == 1 ? 0 : i;
                in_bf16 = (i + (size_t)cache) % 2;
                check(d, shapes[i], WEIGHT_BF16, (enum kv_type)cache, lengths + first, S, (unsigned)i % 2, &seed);
            }
    in_bf16 = 0;
}

TEST(weights_of_every_type_have_the_bits_of_the_cpu)
{
    static const struct shape shapes[] = {{3, 0, 40, 4, 6, 64}, {2, 0, 9, 4, 33, 41}};
    static const size_t lengths[] = {5, 3, 1, 2, 4, 7};
    uint64_t seed = 2;
    FOR_EACH_OPERATORS(d)
        for (int type = 0; type < WEIGHT_TYPES; type++)
            FOR_EACH_PRECISION(type)
                for (unsigned how = 0; how < 2; how++)
                    for (size_t i = 0; i < COUNT(shapes); i++)
                        check(d, shapes[i], type, KV_F32, lengths, 6, how, &seed);
    in_bf16 = 0;
}

TEST(numbers_that_are_not_finite_have_the_bits_of_the_cpu)
{
    static const struct shape shape = {4, 0, 8, 8, 5, 32};
    static const size_t lengths[] = {20, 300, 40, 257, 90, 60};
    uint64_t seed = 3;
    FOR_EACH_OPERATORS(d)
        for (int cache = KV_F32; cache <= KV_Q8; cache++)
            for (int i = 0; i < 3; i++)
                check(d, shape, WEIGHT_F32, (enum kv_type)cache, lengths, COUNT(lengths), 2, &seed);
}

/* Blocks of Q8_0 with scales around 1/128. */
static struct weight_view random_q8_0(struct device *d, size_t rows, size_t cols, uint64_t *seed)
{
    size_t bytes = rows * cols / 32 * 34;
    unsigned char *data = guarded(bytes);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(i % 34 == 1 ? 0x20 + random_below(seed, 2) : random_below(seed, 256));
    return (struct weight_view){.type = WEIGHT_Q8_0, .data = with_twin(d, data, bytes), .rows = rows, .cols = cols,
                                .stride = cols};
}

/* q_abs by rule 2 or by rule 1, y by rule 2 or by rule 1. */
TEST(quantized_weights_have_the_bits_of_the_cpu)
{
    enum { H = 3, N = 64, R = 4, V = 6, C = 96, S = 5 };
    static const size_t lengths[S] = {5, 300, 1, 2, 4};
    uint64_t seed = 6;
    FOR_EACH_OPERATORS(d)
        for (unsigned how = 1; how < 8; how++) {
            if (!(how & 3))
                continue;
            size_t mark = guard_count;
            struct stored_matrix kv_b = random_matrix(WEIGHT_BF16, H * (N + V), C, &seed);
            struct weight_view plain = on_device(d, &kv_b.view, 0, 0), uk = random_q8_0(d, H * C, N, &seed),
                               uv = random_q8_0(d, H * V, C, &seed);
            struct attention a = {.heads = H, .nope = N, .rope = R, .value = V, .latent = C, .scale = 0.05f,
                                  .layer = LAYER, .longest = 512, .cache = how & 1 ? KV_F32 : KV_Q8,
                                  .uk_transposed = how & 1};
            a.w_uk = how & 1 ? uk : plain, a.uk_stride = how & 1 ? C : N + V;
            a.w_uv = how & 2 ? uv : weight_rows(&plain, N, plain.rows - N), a.uv_stride = how & 2 ? V : N + V;
            in_bf16 = how & 4 ? 1 : 0;
            struct kv_layout layout = attention_rows(&a);
            struct caches c = make_caches(d, &layout, lengths, S, 0, &seed);
            float *q = with_twin(d, random_floats(S * H * (N + R), &seed), S * H * (N + R) * sizeof(float));
            CASE("attention with quantized weights, how=%u", how);
            compare(d, &a, &c, q, S, 300);
            forget(d, &c);
            drop(d, q), drop(d, uk.data), drop(d, uv.data);
            without_twin(d, &plain, 0);
            release_to(mark);
        }
    in_bf16 = 0;
}

/* Precision bf16 takes them for 0 where they are inputs of linear layers. */
TEST(tiny_numbers_have_the_bits_of_the_cpu)
{
    static const struct shape shape = {4, 0, 8, 8, 5, 32};
    static const size_t lengths[] = {2, 3, 1};
    uint64_t seed = 4;
    FOR_EACH_OPERATORS(d)
        for (in_bf16 = 0; in_bf16 < 2; in_bf16++)
            for (unsigned how = 4; how <= 8; how += 4)
                check(d, shape, WEIGHT_BF16, KV_F32, lengths, COUNT(lengths), how, &seed);
    in_bf16 = 0;
}

/* One query over more than 128 blocks, and more queries than the scratch holds at once. Many slots are the same. */
TEST(long_timelines_and_many_queries_have_the_bits_of_the_cpu)
{
    enum { LENGTH = 33100, S = 12, ROWS = 5000 };
    uint64_t seed = 5;
    FOR_EACH_OPERATORS(d)
        for (int many = 0; many < (order_ ? 1 : 2); many++) {
            size_t mark = guard_count, H = many ? 20 : 1, count = many ? S : 1;
            struct stored_matrix kv_b = random_matrix(WEIGHT_F32, H * 7, 8, &seed);
            struct weight_view w = on_device(d, &kv_b.view, 0, 0);
            struct attention a = {.heads = H, .nope = 4, .rope = 2, .value = 3, .latent = 8, .scale = 2.0f,
                                  .longest = 65536, .w_uk = w, .w_uv = weight_rows(&w, 4, w.rows - 4), .uk_stride = 7,
                                  .uv_stride = 7};
            struct kv_layout layout = attention_rows(&a);
            size_t row = kv_row_bytes(&layout), slot_bytes = LENGTH * sizeof(int32_t);
            struct caches c = {.seen = guarded(count * sizeof *c.seen), .rows = guarded(count * sizeof *c.rows)};
            char *rows = guarded(ROWS * row);
            int32_t *slots = guarded(slot_bytes);
            const float *numbers = random_floats(ROWS * 10, &seed);
            for (size_t i = 0; i < ROWS; i++)
                kv_row_write(scalar_table(), &layout, rows + i * row, numbers + i * 10);
            for (size_t j = 0; j < LENGTH; j++)
                slots[j] = (int32_t)random_below(&seed, ROWS);
            with_twin(d, rows, ROWS * row), with_twin(d, slots, slot_bytes);
            for (size_t s = 0; s < count; s++) {
                uint32_t length = many ? (uint32_t)s % 3 + 1 : LENGTH;
                c.seen[s] = (struct timeline){rows, slots, length};
                c.rows[s] = (struct row_place){.rows = address(d, rows), .slots = address(d, slots),
                                                .length = length};
            }
            with_twin(d, c.rows, count * sizeof *c.rows);
            float *q = with_twin(d, random_floats(count * H * 6, &seed), count * H * 6 * sizeof(float));
            CASE("attention of %zu queries with %zu heads", count, H);
            compare(d, &a, &c, q, count, LENGTH);
            drop(d, rows), drop(d, slots), drop(d, c.rows), drop(d, q);
            without_twin(d, &w, 0);
            release_to(mark);
        }
}

/* Queries beyond what the scratch holds at once are computed later; scratch for a longer context is enough for a
 * shorter one. */
TEST(scratch_does_not_grow_with_a_long_prefill)
{
    struct attention a = {.heads = 128, .nope = 128, .rope = 64, .value = 128, .latent = 512};
    size_t one = cuda_attention_scratch(&a, 1, 131072), many = cuda_attention_scratch(&a, 4096, 131072);
    assert_true(one < many + 1 && many <= (one > (size_t)64 << 20 ? one : (size_t)64 << 20));
    for (size_t context = 256; context <= 131072; context *= 2)
        for (size_t S = 1; S <= 4096; S *= 4)
            assert_true(cuda_attention_scratch(&a, S, context) <= cuda_attention_scratch(&a, S, 2 * context));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(attention_has_the_bits_of_the_cpu, release_all),
        cmocka_unit_test_teardown(weights_of_every_type_have_the_bits_of_the_cpu, release_all),
        cmocka_unit_test_teardown(numbers_that_are_not_finite_have_the_bits_of_the_cpu, release_all),
        cmocka_unit_test_teardown(quantized_weights_have_the_bits_of_the_cpu, release_all),
        cmocka_unit_test_teardown(tiny_numbers_have_the_bits_of_the_cpu, release_all),
        cmocka_unit_test_teardown(long_timelines_and_many_queries_have_the_bits_of_the_cpu, release_all),
        cmocka_unit_test(scratch_does_not_grow_with_a_long_prefill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
