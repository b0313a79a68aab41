/* tests/ops/checkops_gqa.c -- ops/gqa.c: against the formula in double, and the same bits alone, among any rows, on any
 * threads and with every kernel table. */
#include "tests/ops/checkops.h"

#include "ops/gqa.h"

struct gqa_case {
    struct gqa a;
    size_t S, slots;
    float *cache, *q;
    int32_t *slot_of;      /* [slots]: token j's row, in some order */
    struct timeline *seen;
};

static struct gqa_case random_case(size_t H, size_t G, size_t D, size_t S, size_t longest, uint64_t *seed)
{
    struct gqa_case c = {.a = {H, G, D, 2 * G * D + random_below(seed, 5), (float)(1 / sqrt((double)D))}, .S = S,
                         .slots = longest + 3};
    c.cache = random_floats(c.slots * c.a.row, seed);
    c.q = random_floats(S * H * D, seed);
    c.slot_of = guarded(c.slots * sizeof *c.slot_of);
    c.seen = guarded(S * sizeof *c.seen);
    for (size_t j = 0; j < c.slots; j++)
        c.slot_of[j] = (int32_t)((j + 2) % c.slots);
    for (size_t s = 0; s < S; s++)
        c.seen[s] = (struct timeline){c.cache, c.slot_of, s ? 1 + random_below(seed, longest) : longest};
    return c;
}

static void run(const struct gqa_case *c, const struct kernels *k, int threads, size_t first, size_t count, float *y)
{
    struct op_ctx cx = context_of(k, threads, op_gqa_scratch(&c->a, threads));
    op_gqa(&cx, y, c->q + first * c->a.heads * c->a.dim, c->seen + first, &c->a, count);
    assert_int_equal(cx.scratch_used, 0);
}

/* A score's error d_j is at most scale times that of its dot, and one rounding. All weights exp(s_j) / L then change by
 * a factor within exp(+-2 max d), and by the roundings of exp, of two sums and two products per block, and of the
 * division. */
static void check_head(const struct gqa_case *c, size_t s, size_t h, const float *y)
{
    const struct gqa *a = &c->a;
    const struct timeline *t = &c->seen[s];
    size_t g = h / (a->heads / a->groups), blocks = (t->length + 255) / 256;
    static double score[2048];
    double largest = -INFINITY, L = 0, error = 0;
    for (size_t j = 0; j < t->length; j++) {
        const float *k = (const float *)t->rows + (size_t)t->slots[j] * a->row + g * a->dim,
                    *q = c->q + (s * a->heads + h) * a->dim;
        double dot = 0, size = 0;
        for (size_t i = 0; i < a->dim; i++) {
            dot += (double)q[i] * (double)k[i];
            size += fabs((double)q[i] * (double)k[i]);
        }
        score[j] = dot * (double)a->scale;
        error = fmax(error, (double)a->scale * dot_bound(a->dim, size) * 1.01 + fabs(score[j]) * 0x1p-23);
        largest = fmax(largest, score[j]);
    }
    error += 2 * fabs(largest) * 0x1p-24 * 2; /* s - m is rounded too */
    for (size_t j = 0; j < t->length; j++)
        L += score[j] = exp(score[j] - largest);
    for (size_t i = 0; i < a->dim; i++) {
        double wanted = 0, size = 0;
        for (size_t j = 0; j < t->length; j++) {
            double v = (double)((const float *)t->rows)[(size_t)t->slots[j] * a->row + (a->groups + g) * a->dim + i];
            wanted += score[j] / L * v;
            size += score[j] / L * fabs(v);
        }
        double relative = exp(2 * error) * (1 + rounding_gamma(256 + 20 + 8 * (double)blocks + 8)) - 1;
        check_within(y[i], wanted, size * relative + 0x1p-120, s, h * a->dim + i);
    }
}

TEST(gqa_is_the_formula_and_its_rows_know_of_no_others)
{
    static const size_t shapes[][3] = {{4, 4, 16}, {4, 2, 16}, {6, 1, 24}, {8, 2, 64}, {1, 1, 2}, {3, 3, 33}};
    static const size_t lengths[] = {1, 2, 255, 256, 257, 700};
    uint64_t seed = 5;
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (size_t l = 0; l < COUNT(lengths); l++) {
            size_t H = shapes[i][0], G = shapes[i][1], D = shapes[i][2], S = 1 + l, mark = 0;
            struct gqa_case c = random_case(H, G, D, S, lengths[l], &seed);
            float *y = guarded_floats(S * H * D), *other = guarded_floats(S * H * D);
            CASE("H %zu, G %zu, D %zu, %zu rows over %zu", H, G, D, S, lengths[l]);
            run(&c, scalar_table(), 1, 0, S, y);
            for (size_t s = 0; s < S; s++)
                for (size_t h = 0; h < H; h++)
                    check_head(&c, s, h, y + (s * H + h) * D);
            FOR_EACH_TABLE(k)
                for (int threads = 1; threads <= 3; threads++) {
                    CASE("%s, %d threads, H %zu, G %zu, D %zu, %zu rows over %zu", k->name, threads, H, G, D, S,
                         lengths[l]);
                    run(&c, k, threads, 0, S, other);
                    check_same_bits(other, H * D, y, H * D, S, H * D);
                    for (size_t s = 0; s < S; s++)
                        run(&c, k, threads, s, 1, other + s * H * D);
                    check_same_bits(other, H * D, y, H * D, S, H * D);
                }
            release_to(mark);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(gqa_is_the_formula_and_its_rows_know_of_no_others, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
