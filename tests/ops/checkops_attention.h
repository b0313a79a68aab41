/* tests/ops/checkops_attention.h -- problems for attention over the latent cache: queries, timelines and cache rows. */
#ifndef VB_CHECKOPS_ATTENTION_H
#define VB_CHECKOPS_ATTENTION_H

#include "tests/ops/checkops.h"

#include "ops/expanded.h"
#include "ops/weights.h"

#define LONGEST 520

static int expanded;              /* nonzero: op_expanded is tested */
static enum kv_type cache_type;   /* how the operator's rows are stored */

/* S queries over three timelines of their own caches. What no query may read stays NaN. Rows are in natural order, and
 * not rounded. */
struct problem {
    struct attention a;
    struct stored_matrix kv_b;
    size_t S, context;
    float *q;
    struct timeline *seen; /* [S] */
    const struct timeline *exact; /* in a problem over rounded rows: the timelines over the rows that are not rounded */
};

struct shape {
    size_t heads, nope, rope, value, latent;
};

/* Three shapes: rows that fill no chunk; more heads than a task takes (16); a row of two blocks of a dot. */
static const struct shape shapes[] = {{5, 11, 8, 13, 40}, {19, 8, 6, 7, 32}, {2, 3, 16, 5, 1030}};

static const char *cache_name(void) { return cache_type == KV_BF16 ? "bf16" : cache_type == KV_Q8 ? "q8" : "f32"; }

static size_t width_of(const struct problem *p) { return p->a.latent + p->a.rope; }

enum slots { IN_A_ROW, SCATTERED, MOSTLY_IN_A_ROW };

/* A slot for every token: as they come (from slot 2), permuted, or with one break in the run. */
static const int32_t *slots_of(enum slots how, uint64_t *seed)
{
    int32_t *slots = guarded(LONGEST * sizeof *slots);
    for (int32_t j = 0; j < LONGEST; j++)
        slots[j] = how == MOSTLY_IN_A_ROW && j >= 100 ? j + 5 : j + 2;
    for (size_t j = LONGEST; how == SCATTERED && j-- > 1;) {
        size_t other = random_below(seed, j + 1);
        int32_t kept = slots[j];
        slots[j] = slots[other];
        slots[other] = kept;
    }
    return slots;
}

/* lengths: query s sees lengths[s % count] tokens of one of three timelines. Neighbouring queries see different
 * timelines; in the expanded form, which computes the keys of neighbours together, a third of the queries sees each
 * timeline. */
static struct problem random_problem(struct shape d, enum weight_type type, size_t S, const size_t *lengths,
                                     size_t count, uint64_t *seed)
{
    struct problem p = {.a = {.heads = d.heads, .nope = d.nope, .rope = d.rope, .value = d.value, .latent = d.latent,
                              .scale = 1.0f, .cache = cache_type},
                        .S = S};
    float *cache[3];
    d.latent = p.a.latent = cache_type == KV_Q8 ? (d.latent + 31) / 32 * 32 : d.latent;
    size_t width = d.latent + d.rope;
    p.kv_b = random_matrix(type, d.heads * (d.nope + d.value), d.latent, seed);
    p.a.scale = (float)(2.0 / sqrt((double)(d.nope * d.latent) / 9.0)); /* scores of a few units: e_b matters */
    p.q = random_floats(S * d.heads * (d.nope + d.rope), seed);
    p.seen = guarded(S * sizeof *p.seen);
    const int32_t *slots = slots_of(IN_A_ROW, seed);
    for (size_t i = 0; i < 3; i++) {
        cache[i] = guarded_floats((LONGEST + 8) * width);
        for (size_t j = 0; j < LONGEST * width; j++)
            cache[i][2 * width + j] = random_float(seed);
    }
    for (size_t s = 0; s < S; s++) {
        p.seen[s] = (struct timeline){cache[expanded ? 3 * s / S : s % 3], slots, lengths[s % count]};
        p.context = p.seen[s].length > p.context ? p.seen[s].length : p.context;
    }
    return p;
}

static const float *row_of(const struct timeline *t, size_t j, size_t width)
{
    return (const float *)t->rows + (size_t)t->slots[j] * width;
}

/* Writes `count` rows of `width` numbers, in one form or another. */
typedef void *rows_function(const struct problem *p, const float *rows, size_t count, size_t width);

/* Returns the timelines of p over rows that were changed; queries that share rows go on sharing them. */
static struct timeline *over_rows(const struct problem *p, rows_function *change)
{
    struct timeline *seen = guarded(p->S * sizeof *seen);
    for (size_t s = 0; s < p->S; s++) {
        size_t same = 0;
        while (p->seen[same].rows != p->seen[s].rows)
            same++;
        seen[s] = p->seen[s];
        seen[s].rows = same < s ? seen[same].rows : change(p, p->seen[s].rows, LONGEST + 8, width_of(p));
    }
    return seen;
}

/* Rows as the operator reads them. */
static void *stored_rows(const struct problem *p, const float *rows, size_t count, size_t width)
{
    struct kv_layout layout = attention_rows(&p->a);
    size_t size = kv_row_bytes(&layout);
    char *stored = guarded(count * size);
    for (size_t j = 0; j < count; j++)
        kv_row_write(scalar_table(), &layout, stored + j * size, rows + j * width);
    return stored;
}

static float nearest_bf16(float x)
{
    int exponent;
    float fraction = frexpf(x, &exponent);
    return ldexpf(nearbyintf(fraction * 256.0f), exponent - 8);
}

/* 32 numbers quantized by rule 2. */
struct rounded_group {
    float d;
    int q[32];
};

static struct rounded_group rounded_group(const float *x)
{
    struct rounded_group g;
    float m = 0.0f;
    int finite = 1;
    for (size_t l = 0; l < 32; l++) {
        finite &= isfinite(x[l]) != 0;
        m = fmaxf(m, fabsf(x[l]));
    }
    g.d = !finite ? NAN : m < 0x1p-100f ? 0.0f : m / 127.0f;
    for (size_t l = 0; l < 32; l++)
        g.q[l] = g.d > 0.0f ? (int)nearbyintf(x[l] * (127.0f / m)) : 0;
    return g;
}

/* Rows with the numbers that the cache holds, by docs/ARITHMETIC.md. */
static void *rounded_rows(const struct problem *p, const float *rows, size_t count, size_t width)
{
    float *rounded = copy_of(rows, count * width);
    for (size_t i = 0; cache_type != KV_F32 && i < count * width; i++)
        rounded[i] = nearest_bf16(rows[i]);
    for (size_t j = 0; cache_type == KV_Q8 && j < count; j++)
        for (size_t i = 0; i < p->a.latent; i += 32) {
            struct rounded_group g = rounded_group(rows + j * width + i);
            for (size_t l = 0; l < 32; l++)
                rounded[j * width + i + l] = g.d * (float)g.q[l];
        }
    return rounded;
}

/* The problem over rounded rows. */
static struct problem rounded(const struct problem *p)
{
    struct problem r = *p;
    r.seen = over_rows(p, rounded_rows);
    r.exact = p->seen;
    return r;
}

static float *run(const struct kernels *k, int threads, struct problem *p)
{
    const struct attention *a = &p->a;
    struct timeline *seen = over_rows(p, stored_rows);
    p->a.w_uk = p->kv_b.view;
    p->a.w_uv = weight_rows(&p->kv_b.view, a->nope, p->kv_b.view.rows - a->nope);
    p->a.uk_stride = p->a.uv_stride = a->nope + a->value;
    size_t scratch = (expanded ? op_expanded_scratch : op_attention_scratch)(a, p->S, p->context, threads);
    struct op_ctx cx = context_of(k, threads, scratch);
    float *y = guarded_floats(p->S * a->heads * a->value);
    CASE("%s %s H=%zu n=%zu r=%zu v=%zu c=%zu S=%zu context=%zu threads=%d cache %s %s",
         expanded ? "expanded attention" : "attention", type_names[p->kv_b.view.type], a->heads, a->nope, a->rope,
         a->value, a->latent, p->S, p->context, threads, cache_name(), k->name);
    (expanded ? op_expanded : op_attention)(&cx, y, p->q, seen, a, p->S, p->context);
    assert_int_equal(cx.scratch_used, 0);
    return y;
}

/* Query s alone, over a copy of the rows it sees in slots of its own; every other row of that cache is NaN. */
static struct problem alone(const struct problem *p, size_t s, enum slots how, uint64_t *seed)
{
    struct problem one = *p;
    size_t width = width_of(p), size = p->a.heads * (p->a.nope + p->a.rope);
    const struct timeline *all = &p->seen[s];
    const int32_t *slots = slots_of(how, seed);
    float *cache = guarded_floats((LONGEST + 8) * width);
    for (size_t j = 0; j < all->length; j++)
        memcpy(cache + (size_t)slots[j] * width, row_of(all, j, width), width * sizeof *cache);
    one.S = 1;
    one.context = all->length;
    one.q = copy_of(p->q + s * size, size);
    one.seen = guarded(sizeof *one.seen);
    one.seen[0] = (struct timeline){cache, slots, all->length};
    return one;
}

#endif
