/* engine/choose/sampler.c -- chooses a token from logits. docs/ARITHMETIC.md, rule 8, specifies the order of every step
 * and of every sum. */
#include "engine/choose/sampler.h"

#include <math.h>
#include <string.h>

#include "simd/kernels.h"

struct sampler {
    vb_sampling options;
    size_t V;
    float *bias;           /* [V], NULL without logit bias */
    unsigned char *in_prompt; /* [V] */
    int32_t *in_output;    /* [V]: how often each token occurs in the output */
    unsigned char *mask;   /* [V] */
    int mask_failed;       /* the first code other than VB_OK that the mask returned */
    size_t mask_failed_at; /* the index of the token that it was asked for */
    float *z;              /* [V] */
    double *weight;        /* [V]: the weight of each token */
    int32_t *candidate;    /* [V] */
};

int32_t argmax(const float *z, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (z[i] > z[best])
            best = i;
    return (int32_t)best;
}

int all_finite(const float *z, size_t n)
{
    float zero = 0.0f; /* 0 * inf and 0 * NaN are NaN */
    for (size_t i = 0; i < n; i++)
        zero += z[i] * 0.0f;
    return zero == 0.0f;
}

static int check(const vb_sampling *o, size_t V, vb_error *err)
{
    if (!(o->temperature == 0.0f || (o->temperature >= 1e-5f && isfinite(o->temperature))))
        return vb_fail(err, VB_BAD_ARGUMENT, "temperature is %g, wanted 0 or at least 1e-5", (double)o->temperature);
    if (o->top_k < 0)
        return vb_fail(err, VB_BAD_ARGUMENT, "top-k is %d, wanted 0 (off) or more", o->top_k);
    if (!(o->top_p >= 0.0f && o->top_p <= 1.0f))
        return vb_fail(err, VB_BAD_ARGUMENT, "top-p is %g, wanted a number from 0 to 1", (double)o->top_p);
    if (!(o->min_p >= 0.0f && o->min_p <= 1.0f))
        return vb_fail(err, VB_BAD_ARGUMENT, "min-p is %g, wanted a number from 0 to 1", (double)o->min_p);
    if (!(o->repetition_penalty >= 0.0f && isfinite(o->repetition_penalty)))
        return vb_fail(err, VB_BAD_ARGUMENT, "repetition penalty is %g, wanted a positive number",
                       (double)o->repetition_penalty);
    if (!isfinite(o->presence_penalty) || !isfinite(o->frequency_penalty))
        return vb_fail(err, VB_BAD_ARGUMENT, "presence or frequency penalty is not finite");
    for (int32_t i = 0; i < o->bias_count; i++)
        if (o->bias_tokens[i] < 0 || (size_t)o->bias_tokens[i] >= V || isnan(o->bias_values[i]) ||
            o->bias_values[i] == INFINITY)
            return vb_fail(err, VB_BAD_ARGUMENT,
                           "logit bias %d: token %d, bias %g; wanted a token below %zu and a number", i,
                           o->bias_tokens[i], (double)o->bias_values[i], V);
    return VB_OK;
}

int sampler_open(struct sampler **out, const vb_sampling *options, size_t V, const vb_allocator *a, vb_error *err)
{
    int code = check(options, V, err);
    *out = NULL;
    if (code)
        return code;
    struct sampler *s = vb_alloc(a, 1, sizeof *s);
    if (!s)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the sampler");
    s->options = *options;
    s->V = V;
    s->bias = options->bias_count ? vb_alloc(a, V, sizeof *s->bias) : NULL;
    s->in_prompt = vb_alloc(a, V, sizeof *s->in_prompt);
    s->in_output = vb_alloc(a, V, sizeof *s->in_output);
    s->mask = vb_alloc(a, V, sizeof *s->mask);
    s->z = vb_alloc(a, V, sizeof *s->z);
    s->weight = vb_alloc(a, V, sizeof *s->weight);
    s->candidate = vb_alloc(a, V, sizeof *s->candidate);
    if ((options->bias_count && !s->bias) || !s->in_prompt || !s->in_output || !s->mask || !s->z || !s->weight ||
        !s->candidate) {
        sampler_close(s, a);
        return vb_fail(err, VB_NO_MEMORY, "no memory for a sampler over %zu tokens", V);
    }
    for (int32_t i = 0; i < options->bias_count && !code; i++) {
        int32_t token = options->bias_tokens[i];
        if (s->mask[token]++)
            code = vb_fail(err, VB_BAD_ARGUMENT, "logit bias: token %d is given twice", token);
        s->bias[token] = options->bias_values[i];
    }
    if (code)
        sampler_close(s, a);
    else
        *out = s;
    return code;
}

void sampler_close(struct sampler *s, const vb_allocator *a)
{
    if (!s)
        return;
    void *blocks[] = {s->bias, s->in_prompt, s->in_output, s->mask, s->z, s->weight, s->candidate, s};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        vb_free(a, blocks[i]);
}

void sampler_restart(struct sampler *s)
{
    memset(s->in_prompt, 0, s->V * sizeof *s->in_prompt);
    memset(s->in_output, 0, s->V * sizeof *s->in_output);
}

void sampler_saw_prompt(struct sampler *s, int32_t token) { s->in_prompt[token] = 1; }
void sampler_saw_output(struct sampler *s, int32_t token) { s->in_output[token]++; }
void sampler_forget_output(struct sampler *s, int32_t token) { s->in_output[token]--; }

int sampler_mask_failed(struct sampler *s, size_t *index)
{
    int code = s->mask_failed;
    if (index)
        *index = s->mask_failed_at;
    s->mask_failed = VB_OK;
    return code;
}

int32_t sampler_in_output(const struct sampler *s, int32_t token) { return s->in_output[token]; }

/* Writes the logits with bias, penalties and mask to s->z. */
static void adjust(struct sampler *s, const float *logits, const int32_t *tokens, size_t index)
{
    const vb_sampling *o = &s->options;
    float r = o->repetition_penalty;
    if (o->mask) {
        memset(s->mask, 1, s->V);
        int code = o->mask(o->mask_context, tokens, index, s->mask);
        if (code && !s->mask_failed) {
            s->mask_failed = code;
            s->mask_failed_at = index;
        }
    }
    for (size_t t = 0; t < s->V; t++) {
        float z = s->bias ? logits[t] + s->bias[t] : logits[t];
        if (r != 0.0f && r != 1.0f && (s->in_prompt[t] || s->in_output[t]))
            z = z > 0.0f ? z / r : z * r;
        if (s->in_output[t]) {
            z = z - o->presence_penalty;
            z = z - o->frequency_penalty * (float)s->in_output[t];
        }
        s->z[t] = o->mask && !s->mask[t] ? -INFINITY : z;
    }
}

/* The order of candidates: larger logits first; of equal logits, the lower index first. */
static int before(const float *z, int32_t a, int32_t b) { return z[a] > z[b] || (z[a] == z[b] && a < b); }

/* Heapsort is used because it allocates nothing. It sorts candidate[0..n) in the order of `before`. */
static void sift_down(int32_t *heap, size_t root, size_t n, const float *z)
{
    for (size_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && before(z, heap[child], heap[child + 1]))
            child++;
        if (!before(z, heap[root], heap[child]))
            return;
        int32_t swap = heap[root];
        heap[root] = heap[child];
        heap[child] = swap;
    }
}

static void sort_candidates(int32_t *candidate, size_t n, const float *z)
{
    for (size_t i = n / 2; i-- > 0;)
        sift_down(candidate, i, n, z);
    for (size_t end = n; end-- > 1;) {
        int32_t swap = candidate[0];
        candidate[0] = candidate[end];
        candidate[end] = swap;
        sift_down(candidate, 0, end, z);
    }
}

/* Returns the length of the shortest prefix of the n sorted candidates whose weights sum to at least top_p times the
 * sum of all weights. */
static size_t top_p(const struct sampler *s, size_t n)
{
    double total = 0.0, sum = 0.0;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        total += s->weight[s->candidate[i]];
    do
        sum += s->weight[s->candidate[kept++]];
    while (kept < n && !(sum >= (double)s->options.top_p * total));
    return kept;
}

/* Applies temperature, top-k, top-p and min-p. Sets mask[t] to 1 for each token t that remains, and weight[t] to its
 * weight. */
static void select_candidates(struct sampler *s)
{
    const vb_sampling *o = &s->options;
    size_t n = 0;
    float max = -INFINITY;
    for (size_t t = 0; t < s->V; t++) {
        s->z[t] = s->z[t] / o->temperature;
        if (s->z[t] > -INFINITY)
            s->candidate[n++] = (int32_t)t;
        max = s->z[t] > max ? s->z[t] : max;
    }
    for (size_t i = 0; i < n; i++)
        s->weight[s->candidate[i]] = (double)kernel_expf(s->z[s->candidate[i]] - max);
    int by_p = o->top_p > 0.0f && o->top_p < 1.0f;
    if ((o->top_k && (size_t)o->top_k < n) || by_p)
        sort_candidates(s->candidate, n, s->z);
    if (o->top_k && (size_t)o->top_k < n)
        n = (size_t)o->top_k;
    if (by_p && n)
        n = top_p(s, n);
    memset(s->mask, 0, s->V);
    for (size_t i = 0; i < n; i++) /* the largest weight is exp(0) = 1 */
        s->mask[s->candidate[i]] = s->weight[s->candidate[i]] >= (double)o->min_p;
}

double sampler_distribution(struct sampler *s, const float *logits, const int32_t *tokens, size_t index,
                            const double **weights)
{
    double total = 0.0;
    *weights = s->weight;
    adjust(s, logits, tokens, index);
    if (s->options.temperature == 0.0f) {
        int32_t best = argmax(s->z, s->V);
        memset(s->weight, 0, s->V * sizeof *s->weight);
        return s->weight[best] = s->z[best] > -INFINITY ? 1.0 : 0.0;
    }
    select_candidates(s);
    for (size_t t = 0; t < s->V; t++) {
        s->weight[t] = s->mask[t] ? s->weight[t] : 0.0;
        total += s->weight[t];
    }
    return total;
}

int32_t weighted_choice(const double *weights, size_t V, double total, double u)
{
    double sum = 0.0;
    int32_t last = -1;
    for (size_t t = 0; t < V; t++)
        if (weights[t] > 0.0) {
            last = (int32_t)t;
            if ((sum += weights[t]) > u * total)
                break;
        }
    return last;
}

int32_t sampler_choose(struct sampler *s, const float *logits, const int32_t *tokens, size_t index)
{
    if (s->options.temperature == 0.0f) {
        adjust(s, logits, tokens, index);
        int32_t best = argmax(s->z, s->V);
        return s->z[best] > -INFINITY ? best : -1;
    }
    const double *weights;
    double total = sampler_distribution(s, logits, tokens, index, &weights);
    return weighted_choice(weights, s->V, total, random_at(s->options.seed, index, RANDOM_TARGET));
}

enum vb_reject sampler_excluded(const struct sampler *s, int32_t token, enum vb_reject otherwise)
{
    if (s->z[token] == -INFINITY)
        return VB_REJECT_MASKED;
    if (s->options.temperature != 0.0f && !s->mask[token])
        return VB_REJECT_CUT_OFF;
    return otherwise;
}

struct closeness sampler_closeness(struct sampler *s, const float *logits, const int32_t *tokens, size_t index,
                                   int32_t token)
{
    struct closeness c = {0};
    float max;
    adjust(s, logits, tokens, index);
    max = s->z[argmax(s->z, s->V)];
    for (size_t t = 0; t < s->V; t++) {
        c.rank += (size_t)before(s->z, (int32_t)t, token);
        c.total += (double)kernel_expf(s->z[t] - max);
    }
    c.weight = (double)kernel_expf(s->z[token] - max);
    c.nats = (double)max - (double)s->z[token];
    return c;
}
