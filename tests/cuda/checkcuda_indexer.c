/* tests/cuda/checkcuda_indexer.c -- the indexer of sparse attention on an emulated device: keys, and the choice of
 * tokens. */
#include "ops/cuda/indexer.h"
#include "tests/cuda/checkcuda.h"

#define S 6
#define LAYERS 2
#define SLOTS 800

/* Index caches of all slots, and rows of a pass that see other numbers of tokens, whose slots are in no order. */
struct cached {
    size_t bytes, layer_bytes;
    char *pool;
    int32_t *slots;
    struct row_place *rows;
};

static const uint32_t lengths[S] = {1, 5, 64, 65, 333, 700}, most_seen = 700;

static struct cached cached_rows(const struct indexer *ix, struct device *d)
{
    struct cached c = {.layer_bytes = SLOTS * index_row_bytes(ix), .bytes = LAYERS * SLOTS * index_row_bytes(ix)};
    c.pool = guarded(c.bytes);
    memset(c.pool, 0x5a, c.bytes);
    c.slots = guarded(most_seen * sizeof *c.slots);
    c.rows = guarded(S * sizeof *c.rows);
    for (uint32_t t = 0; t < most_seen; t++)
        c.slots[t] = (int32_t)(t * 7 % SLOTS); /* 7 and SLOTS have no common factor */
    with_twin(d, c.pool, c.bytes);
    with_twin(d, c.slots, most_seen * sizeof *c.slots);
    for (size_t s = 0; s < S; s++)
        c.rows[s] = (struct row_place){.slots = device_at(d, c.slots), .length = lengths[s], .slot = (int32_t)(s * 11),
                                        .index_rows = device_at(d, c.pool), .index_layer_bytes = c.layer_bytes};
    with_twin(d, c.rows, S * sizeof *c.rows);
    return c;
}

static void forget(struct device *d, const struct cached *c)
{
    device_remove(d, c->pool), device_remove(d, c->slots), device_remove(d, c->rows);
}

/* Vectors that are ordinary, large, tiny, zero, all equal, and with numbers that are not finite. */
static float *some_vectors(size_t count, size_t D, uint64_t *seed)
{
    float *x = random_floats(count * D, seed);
    for (size_t i = 0; i < count * D; i++) {
        static const float factor[] = {1.0f, 0x1p60f, 0x1p-130f, 0.0f, 1.0f};
        x[i] = i / D % 6 == 5 ? 3.0f : x[i] * factor[i / D % 6 % 5];
    }
    if (count > 4)
        x[4 * D + 1] = INFINITY;
    return x;
}

static const size_t dims[][2] = {{32, 2}, {64, 16}, {128, 64}, {128, 128}}; /* D, rope */

TEST(keys_have_the_bytes_of_the_cpu)
{
    uint64_t seed = 1;
    FOR_EACH_ORDER(d)
        for (size_t i = 0; i < COUNT(dims); i++)
            for (int how = 0; how < 8; how++) {
                size_t mark = guard_count, D = dims[i][0];
                struct op_ctx cx = {.k = scalar_table(), .threads = 1, .most_threads = 1, .device = d};
                struct indexer ix = {.heads = 1, .dim = D, .hadamard = how & 1, .codes = how >> 1 & 1};
                static struct rope rope;
                rope_init(&rope, dims[i][1], how >> 2, 10000.0, NULL);
                struct cached c = cached_rows(&ix, d);
                float *k = with_twin(d, some_vectors(S, D, &seed), S * D * sizeof(float)),
                      *w = with_twin(d, random_floats(D, &seed), D * sizeof(float));
                float *b = with_twin(d, random_floats(D, &seed), D * sizeof(float)),
                      *angles = with_twin(d, random_floats(S * rope.dim, &seed), S * rope.dim * 4);
                struct device_index p = {.indexer = &ix, .rope = &rope, .cos_sin = angles, .rows = c.rows, .layer = 1,
                                         .longest = most_seen};
                char *want = guarded(c.bytes);
                memcpy(want, c.pool, c.bytes);
                CASE("index keys D=%zu rope=%zu how=%d order=%d", D, rope.dim, how, order_);
                cuda_index_keys(&cx, k, w, b, &p, S);
                device_read(d, c.pool, c.bytes);
                for (size_t s = 0; s < S; s++) {
                    op_index_norm(cx.k, k + s * D, w, b, D);
                    op_rope(k + s * D, 1, D, angles + s * rope.dim, &rope);
                    op_index_key(&ix, want + c.layer_bytes + (size_t)c.rows[s].slot * index_row_bytes(&ix), k + s * D);
                }
                for (size_t at = 0; at < c.bytes; at += ix.codes ? 1 : sizeof(float)) {
                    float got_number = 0.0f, want_number = 0.0f;
                    if (!ix.codes) {
                        memcpy(&got_number, c.pool + at, sizeof got_number);
                        memcpy(&want_number, want + at, sizeof want_number);
                    }
                    if (ix.codes ? c.pool[at] != want[at] : !same_bits(got_number, want_number))
                        fail_msg("%s: byte %zu of row %zu is not that of the CPU", case_name, at % index_row_bytes(&ix),
                                 at / index_row_bytes(&ix));
                }
                device_remove(d, k), device_remove(d, w), device_remove(d, b), device_remove(d, angles);
                forget(d, &c);
                release_to(mark);
            }
}

/* Keys of all slots: few different ones, so that many scores are equal; some have a scale of NaN, or only zeros. */
static void write_keys(const struct indexer *ix, const struct cached *c, struct device *d, uint64_t *seed)
{
    for (size_t slot = 0; slot < SLOTS; slot++) {
        float k[INDEX_MAX_DIM], *different = random_floats(ix->dim, seed);
        for (size_t i = 0; i < ix->dim; i++)
            k[i] = slot % 5 == 4 ? different[i] : slot % 7 == 6 ? 0.0f : (float)((slot % 3 + i) % 4) - 1.0f;
        if (slot % 97 == 13)
            k[0] = NAN;
        op_index_key(ix, c->pool + c->layer_bytes + slot * index_row_bytes(ix), k);
    }
    with_twin(d, c->pool, c->bytes);
}

/* Compares the choices of all rows. The tokens of row 4 are given, so nothing is written for it. */
static void check_choice(struct device *d, const struct indexer *ix, const struct rope *rope, uint64_t *seed)
{
    size_t H = ix->heads, D = ix->dim, kept = ix->kept, width = H * D, longest = 768;
    struct cached c = cached_rows(ix, d);
    write_keys(ix, &c, d, seed);
    float *q = some_vectors(S * H, D, seed), *w = random_floats(S * H, seed),
          *angles = with_twin(d, random_floats(S * rope->dim, seed), S * rope->dim * 4);
    float *q_device = with_twin(d, copy_of(q, S * width), S * width * 4),
          *w_device = with_twin(d, copy_of(w, S * H), S * H * 4);
    int32_t *want = guarded(S * kept * sizeof *want), *got = guarded(S * kept * sizeof *got);
    struct timeline *seen = guarded(S * sizeof *seen);
    struct device_index p = {.indexer = ix, .rope = rope, .cos_sin = angles, .rows = c.rows, .layer = 1,
                             .longest = longest};
    struct op_ctx cpu = context_of(scalar_table(), 1, op_index_scratch(S, most_seen, 1)),
                  cx = device_context(d, cuda_index_scratch(S, longest));
    memset(want, 0x5a, S * kept * sizeof *want);
    memset(got, 0x5a, S * kept * sizeof *got);
    with_twin(d, got, S * kept * sizeof *got);
    c.rows[4].given = 1;
    with_twin(d, c.rows, S * sizeof *c.rows);
    cuda_index_choose(&cx, got, q_device, w_device, &p, S);
    device_read(d, got, S * kept * sizeof *got);
    device_read(d, q_device, S * width * sizeof *q);
    device_read(d, w_device, S * H * sizeof *w);
    for (size_t s = 0; s < S; s++) {
        op_rope(q + s * width, H, D, angles + s * rope->dim, rope);
        seen[s] = (struct timeline){c.pool + c.layer_bytes, c.slots, s == 4 ? 0 : lengths[s]};
    }
    op_index_queries(&cpu, q, w, ix, S);
    check_same_bits(q_device, width, q, width, S, width);
    check_same_bits(w_device, H, w, H, S, H);
    op_index_choose(&cpu, want, q, w, seen, ix, S, most_seen);
    for (size_t s = 0; s < S; s++)
        for (size_t i = 0; i < kept; i++) {
            int32_t slot = lengths[s] > kept && s != 4 ? c.slots[want[s * kept + i]] : want[s * kept + i];
            if (got[s * kept + i] != slot)
                fail_msg("%s: number %zu of the tokens of row %zu is in slot %d, on the CPU in slot %d", case_name, i,
                         s, (int)got[s * kept + i], (int)slot);
        }
    device_remove(d, angles), device_remove(d, q_device), device_remove(d, w_device), device_remove(d, got),
        device_remove(d, cx.scratch);
    forget(d, &c);
}

TEST(choices_are_those_of_the_cpu)
{
    static const size_t heads[] = {1, 2, 3, 8}, kept[] = {1, 16, 64, 300, 699};
    uint64_t seed = 1;
    FOR_EACH_ORDER(d)
        for (size_t i = 0; i < 20; i++) {
            size_t mark = guard_count;
            struct indexer ix = {.heads = heads[i % 4], .dim = dims[i % COUNT(dims)][0], .kept = kept[i % 5],
                                 .hadamard = i % 3 != 1, .codes = i % 3 != 2, .bf16_weights = i % 7 == 3,
                                 .bf16_scores = i % 5 == 2, .highest = i % 2 == 1};
            static struct rope rope;
            rope_init(&rope, dims[i % COUNT(dims)][1], i % 4 == 3, 10000.0, NULL);
            CASE("index choice H=%zu D=%zu kept=%zu case %zu order=%d", ix.heads, ix.dim, ix.kept, i, order_);
            check_choice(d, &ix, &rope, &seed);
            release_to(mark);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(keys_have_the_bytes_of_the_cpu, release_all),
                                       cmocka_unit_test_teardown(choices_are_those_of_the_cpu, release_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
