/* tests/ops/checkops_onednn.c -- ops/onednn: the numbers of a linear layer, though not its bits; rows at any distance,
 * shapes prepared or not, on as many threads as were asked for. Skipped where oneDNN is not.
 *     checkops_onednn [--quick]    --quick: without what takes minutes under an emulator */
#include "ops/linear.h"
#include "ops/onednn.h"

#include <pthread.h>

#include "tests/ops/checkops.h"

static int quick;

static struct onednn *open_or_skip(int threads)
{
    struct onednn *o;
    const char *why = onednn_open(&o, threads);
    if (why) {
        printf("skipped: %s\n", why);
        assert_null(o);
        skip();
    }
    return o;
}

/* How many of the types, F32 and then BF16, oneDNN can multiply here. */
static size_t types_here(struct onednn *o)
{
    const char *why = onednn_lacks(o, ONEDNN_BF16);
    assert_null(onednn_lacks(o, ONEDNN_F32));
    if (why)
        printf("skipped: the cases of this test with BF16 matrices: %s\n", why);
    return why ? 1 : 2;
}

static double bf16_value(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static double value_of(const void *p, enum onednn_type type, size_t i)
{
    return type == ONEDNN_BF16 ? bf16_value(((const uint16_t *)p)[i]) : (double)((const float *)p)[i];
}

static void *random_numbers(size_t n, enum onednn_type type, uint64_t *seed)
{
    float *x = random_floats(n, seed);
    if (type == ONEDNN_F32)
        return x;
    uint16_t *half = guarded(n * sizeof *half);
    for (size_t i = 0; i < n; i++)
        half[i] = (uint16_t)(bits_of(x[i]) >> 16);
    return half;
}

/* A sum of K products in f32 in any order errs by less than K 2^-23 of the sum of their sizes (products included). */
static void check_shape(struct onednn *o, const struct onednn_shape *s)
{
    uint64_t seed = s->S * 1000003 + s->N * 1009 + s->K;
    const void *x = random_numbers(s->S * s->ldx, s->x, &seed), *w = random_numbers(s->N * s->ldw, s->w, &seed);
    float *y = guarded_floats(s->S * s->ldy);
    const char *why = onednn_linear(o, y, x, w, s);
    if (why)
        fail_msg("%s: %s", case_name, why);
    for (size_t i = 0; i < s->S; i++)
        for (size_t n = 0; n < s->ldy; n++) {
            double sum = 0, sizes = 0;
            for (size_t k = 0; k < s->K && n < s->N; k++) {
                double product = value_of(x, s->x, i * s->ldx + k) * value_of(w, s->w, n * s->ldw + k);
                sum += product;
                sizes += fabs(product);
            }
            float got = y[i * s->ldy + n];
            if (n >= s->N ? bits_of(got) != UINT32_MAX : !(fabs((double)got - sum) <= (double)s->K * 0x1p-23 * sizes))
                fail_msg("%s: row %zu, column %zu is %.9g, wanted %.9g", case_name, i, n, (double)got, sum);
        }
}

TEST(numbers_are_those_of_a_linear_layer)
{
    static const size_t shapes[][2] = {{16, 32}, {48, 64}, {37, 100}, {128, 1056}};
    struct onednn *o = open_or_skip(2);
    for (size_t type = 0, types = types_here(o); type < types; type++)
        for (size_t k = 0; k < COUNT(shapes); k++)
            for (size_t r = 0; r < COUNT(some_rows); r++)
                for (size_t apart = 0; apart < 2; apart++) {
                    size_t mark = guard_count, S = some_rows[r], N = shapes[k][0], K = shapes[k][1], gap = 16 * apart;
                    struct onednn_shape s = {S, N, K, K + gap, K + gap, N + gap, (enum onednn_type)type,
                                             (enum onednn_type)type};
                    CASE("%s, %zu rows, [%zu,%zu], %zu apart", type ? "bf16" : "f32", S, N, K, gap);
                    check_shape(o, &s);
                    release_to(mark);
                }
    onednn_close(o);
}

TEST(a_prepared_shape_is_found_again_among_others)
{
    struct onednn *o = open_or_skip(1);
    for (size_t S = 1; S <= 20; S++) {
        struct onednn_shape s = {S, 32, 64, 64, 64, 32, ONEDNN_F32, ONEDNN_F32};
        assert_null(onednn_prepare(o, &s));
    }
    for (size_t S = 20; S >= 1; S--) {
        struct onednn_shape s = {S, 32, 64, 64, 64, 32, ONEDNN_F32, ONEDNN_F32};
        CASE("%zu rows", S);
        check_shape(o, &s);
    }
    onednn_close(o);
}

/* oneDNN's sums may depend on how many rows of W a call has: op_linear gives each call the same ones on any number of
 * threads. */
TEST(a_linear_layer_has_the_same_bits_on_any_number_of_threads)
{
    enum { THREADS = 5, N = 1056, K = 160 };
    struct onednn *lanes[THREADS];
    uint64_t seed = 3;
    static const size_t rows[] = {1, 33, 4, 200};
    for (int i = 0; i < THREADS; i++)
        lanes[i] = open_or_skip(1);
    for (size_t type = 0, types = types_here(lanes[0]); type < types; type++)
        for (size_t r = 0; r < (quick ? 2 : COUNT(rows)); r++) {
            size_t mark = guard_count, S = rows[r];
            float *first = guarded_floats(S * N), *y = guarded_floats(S * N), *x = random_floats(S * K, &seed);
            struct weight_view w = {.type = type ? WEIGHT_BF16 : WEIGHT_F32, .rows = N, .cols = K, .stride = K,
                                    .data = random_numbers(N * K, (enum onednn_type)type, &seed)};
            size_t room = op_linear_scratch(S, K);
            for (int threads = 1; threads <= THREADS; threads++) {
                const struct arithmetic how = {.bf16 = (int)type, .onednn = lanes};
                struct op_ctx cx = {.k = kernels_select("best", NULL), .threads = threads, .thread_cost = 1,
                                    .arithmetic = &how, .scratch_size = room};
                cx.scratch = guarded(room);
                CASE("%s, %zu rows, %d threads", type ? "bf16" : "f32", S, threads);
                op_linear(&cx, threads > 1 ? y : first, x, &w, S);
                for (int i = 0; i < threads; i++)
                    assert_null(onednn_failure(lanes[i]));
                for (size_t i = 0; i < S * N && threads > 1; i++)
                    if (bits_of(y[i]) != bits_of(first[i]))
                        fail_msg("%s: number %zu is %.9g, on one thread %.9g", case_name, i, (double)y[i],
                                 (double)first[i]);
            }
            release_to(mark);
        }
    for (int i = 0; i < THREADS; i++)
        onednn_close(lanes[i]);
}

/* The oldest make room; a shape that is gone is made again. */
TEST(more_shapes_than_are_kept_do_no_harm)
{
    struct onednn *o = open_or_skip(1);
    if (quick) {
        printf("skipped: more shapes than are kept: an emulator makes their kernels in a minute\n");
        skip();
    }
    for (size_t round = 0; round < 2; round++)
        for (size_t S = 1; S <= ONEDNN_MOST_SHAPES + 40; S++) {
            struct onednn_shape s = {S, 16, 32, 32, 32, 16, ONEDNN_F32, ONEDNN_F32};
            if (S % 37 && round) {
                assert_null(onednn_prepare(o, &s));
                continue;
            }
            size_t mark = guard_count;
            CASE("%zu rows, round %zu", S, round);
            check_shape(o, &s);
            release_to(mark);
        }
    onednn_close(o);
}

struct elsewhere {
    struct onednn *o;
    float *y;
    const float *x, *w;
    struct onednn_shape shape;
    const char *why;
};

static void *run_elsewhere(void *arg)
{
    struct elsewhere *e = arg;
    e->why = onednn_linear(e->o, e->y, e->x, e->w, &e->shape);
    return NULL;
}

/* Threads of a crew take turns with one: a primitive may run on another than the one that made it. */
TEST(a_primitive_runs_on_any_thread)
{
    struct onednn *o = open_or_skip(1);
    uint64_t seed = 1;
    for (size_t S = 1; S <= 64; S *= 4) {
        pthread_t thread;
        struct onednn_shape s = {S, 100, 300, 300, 300, 100, ONEDNN_F32, ONEDNN_F32};
        struct elsewhere e = {o, guarded_floats(S * 100), random_floats(S * 300, &seed),
                              random_floats(100 * 300, &seed), s, NULL};
        float *here = guarded_floats(S * 100);
        assert_null(onednn_linear(o, here, e.x, e.w, &s));
        assert_int_equal(pthread_create(&thread, NULL, run_elsewhere, &e), 0);
        pthread_join(thread, NULL);
        assert_null(e.why);
        assert_memory_equal(here, e.y, S * 100 * sizeof *here);
    }
    onednn_close(o);
}

TEST(a_failure_is_kept_until_it_is_asked_for)
{
    struct onednn *o = open_or_skip(1);
    float x = 1, y;
    struct onednn_shape bad = {1, 1, 1, 1, 1, 1, ONEDNN_F32, ONEDNN_BF16},
                        good = {1, 1, 1, 1, 1, 1, ONEDNN_F32, ONEDNN_F32};
    assert_null(onednn_failure(o));
    assert_non_null(onednn_linear(o, &y, &x, &x, &bad));
    assert_null(onednn_linear(o, &y, &x, &x, &good));
    const char *why = onednn_failure(o);
    assert_true(why && strstr(why, "oneDNN cannot multiply"));
    assert_null(onednn_failure(o));
    onednn_close(o);
}

static size_t threads_of_this_process(void)
{
    char line[128];
    size_t n = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        sscanf(line, "Threads: %zu", &n);
    fclose(f);
    return n;
}

/* libgomp keeps its threads; so the counts must only be looked at in ascending order, before any other test */
TEST(runs_on_as_many_threads_as_asked_and_leaves_openmp_as_it_was)
{
    struct onednn_shape s = {64, 512, 512, 512, 512, 512, ONEDNN_F32, ONEDNN_F32};
    int before = omp_get_max_threads();
    size_t none = threads_of_this_process();
    for (int threads = 1; threads <= 5; threads += 2) {
        struct onednn *o = open_or_skip(threads);
        CASE("%d threads", threads);
        check_shape(o, &s);
        assert_int_equal(threads_of_this_process() - none, threads - 1);
        onednn_close(o);
    }
    assert_int_equal(omp_get_max_threads(), before);
}

TEST(what_it_cannot_do_is_said)
{
    struct onednn *o = open_or_skip(1);
    struct onednn_shape s = {4, (size_t)-5, 64, 64, 64, 16, ONEDNN_F32, ONEDNN_F32}; /* oneDNN counts in int64_t */
    const char *why = onednn_prepare(o, &s);
    assert_non_null(why);
    assert_non_null(strstr(why, "oneDNN cannot multiply"));
    onednn_close(o);
}

/* A CPU on which our own kernels use BF16 instructions is one that oneDNN has BF16 for. */
TEST(bf16_is_lacking_only_where_the_cpu_lacks_it)
{
    struct onednn *o = open_or_skip(1);
    const struct kernels *best = kernels_select("best", NULL);
    const char *why = onednn_lacks(o, ONEDNN_BF16);
    if (best->variant && !strcmp(best->variant, "bf16"))
        assert_null(why);
    if (why)
        assert_non_null(strstr(why, "oneDNN cannot multiply BF16 matrices on this CPU"));
    assert_null(onednn_lacks(o, ONEDNN_F32));
    onednn_close(o);
}

int main(int argc, char **argv)
{
    quick = argc > 1 && !strcmp(argv[1], "--quick");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(runs_on_as_many_threads_as_asked_and_leaves_openmp_as_it_was, release_all),
        cmocka_unit_test_teardown(numbers_are_those_of_a_linear_layer, release_all),
        cmocka_unit_test_teardown(a_prepared_shape_is_found_again_among_others, release_all),
        cmocka_unit_test_teardown(a_linear_layer_has_the_same_bits_on_any_number_of_threads, release_all),
        cmocka_unit_test_teardown(more_shapes_than_are_kept_do_no_harm, release_all),
        cmocka_unit_test_teardown(a_primitive_runs_on_any_thread, release_all),
        cmocka_unit_test_teardown(a_failure_is_kept_until_it_is_asked_for, release_all),
        cmocka_unit_test_teardown(what_it_cannot_do_is_said, release_all),
        cmocka_unit_test_teardown(bf16_is_lacking_only_where_the_cpu_lacks_it, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
