/* The element-wise work of training in one pass per operator, BF16 in and out, f32 within: what PyTorch does in many
 * passes over memory. ops.py says the same in plain PyTorch, check_ops.py compares them. One thread.
 *
 *     gcc -O3 -march=native -ffast-math -shared -fPIC fused.c -o fused.so -lmvec -lm
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LARGE 1e30f

typedef uint16_t bf16;

static inline float get(bf16 x)
{
    union { uint32_t u; float f; } v = {.u = (uint32_t)x << 16};
    return v.f;
}

static inline bf16 put(float x) /* round to nearest even; no NaN comes here */
{
    union { float f; uint32_t u; } v = {.f = x};
    return (bf16)((v.u + 0x7fff + (v.u >> 16 & 1)) >> 16);
}

/* y[n,d] = x[n,d] * r[n] * w[d], r = 1 / sqrt(mean x^2 + eps) */
#define NORM(NAME, TYPE, LOAD, STORE)                                                                                 \
    void rms_norm_##NAME(long N, long d, const TYPE *x, const float *w, float eps, bf16 *y, float *r)                 \
    {                                                                                                                 \
        for (long n = 0; n < N; n++, x += d, y += d) {                                                                \
            float s = 0;                                                                                              \
            for (long i = 0; i < d; i++)                                                                              \
                s += LOAD(x[i]) * LOAD(x[i]);                                                                         \
            r[n] = 1 / sqrtf(s / (float)d + eps);                                                                     \
            for (long i = 0; i < d; i++)                                                                              \
                y[i] = put(LOAD(x[i]) * r[n] * w[i]);                                                                 \
        }                                                                                                             \
    }                                                                                                                 \
    void rms_norm_backward_##NAME(long N, long d, const TYPE *x, const float *w, const float *r, const bf16 *dy,      \
                                  TYPE *dx, float *dw)                                                                \
    {                                                                                                                 \
        memset(dw, 0, (size_t)d * sizeof *dw);                                                                        \
        for (long n = 0; n < N; n++, x += d, dy += d, dx += d) {                                                      \
            float s = 0;                                                                                              \
            for (long i = 0; i < d; i++) {                                                                            \
                float g = get(dy[i]) * LOAD(x[i]) * r[n];                                                             \
                dw[i] += g;                                                                                           \
                s += g * w[i];                                                                                        \
            }                                                                                                         \
            s *= r[n] / (float)d;                                                                                     \
            for (long i = 0; i < d; i++)                                                                              \
                dx[i] = STORE((get(dy[i]) * w[i] - LOAD(x[i]) * s) * r[n]);                                           \
        }                                                                                                             \
    }
NORM(f32, float, , )
NORM(bf16, bf16, get, put)

/* h[n,e,i] = silu(a) * u * g[n,e] */
void swiglu(long N, long E, long I, const bf16 *a, const bf16 *u, const float *g, bf16 *h)
{
    for (long n = 0; n < N * E; n++, a += I, u += I, h += I) {
        if (g[n] == 0.0f) {
            memset(h, 0, (size_t)I * sizeof *h);
            continue;
        }
        for (long i = 0; i < I; i++) {
            float x = get(a[i]);
            h[i] = put(x / (1 + expf(-x)) * get(u[i]) * g[n]);
        }
    }
}

/* dh is h's gradient; a and u become theirs */
void swiglu_backward(long N, long E, long I, bf16 *a, bf16 *u, const float *g, const bf16 *dh, float *dg)
{
    for (long n = 0; n < N * E; n++, a += I, u += I, dh += I) {
        float sum = 0;
        if (g[n] == 0.0f) {
            memset(a, 0, (size_t)I * sizeof *a);
            memset(u, 0, (size_t)I * sizeof *u);
            dg[n] = 0;
            continue;
        }
        for (long i = 0; i < I; i++) {
            float x = get(a[i]), up = get(u[i]), d = get(dh[i]), s = 1 / (1 + expf(-x)), silu = x * s;
            sum += d * silu * up;
            a[i] = put(d * g[n] * up * (s + silu * (1 - s)));
            u[i] = put(d * g[n] * silu);
        }
        dg[n] = sum;
    }
}

/* Rows of heads, position-major, to matrices of heads; the rope parts turned by (cos, sin): adjacent pairs. back: the
 * inverse, and k_rope gets the sum over the heads. */
static void turn(long r, const bf16 *in, const float *c, const float *s, float sign, float *out)
{
    for (long i = 0; i < r / 2; i++) {
        float x = get(in[2 * i]), y = get(in[2 * i + 1]);
        out[2 * i] = x * c[i] - sign * y * s[i];
        out[2 * i + 1] = x * s[i] * sign + y * c[i];
    }
}

void heads(long B, long T, long H, long n, long r, long v, const bf16 *q, const bf16 *kv, const bf16 *k_rope, long ld,
           const float *cosine, const float *sine, bf16 *Q, bf16 *K, bf16 *V)
{
    for (long b = 0; b < B; b++)
        for (long t = 0; t < T; t++) {
            long row = b * T + t;
            const float *c = cosine + t * (r / 2), *s = sine + t * (r / 2);
            float key[256], query[256];
            turn(r, k_rope + row * ld, c, s, 1, key);
            for (long h = 0; h < H; h++) {
                const bf16 *qh = q + (row * H + h) * (n + r), *kvh = kv + (row * H + h) * (n + v);
                long at = (b * H + h) * T + t;
                memcpy(Q + at * (n + r), qh, (size_t)n * sizeof *Q);
                memcpy(K + at * (n + r), kvh, (size_t)n * sizeof *K);
                memcpy(V + at * v, kvh + n, (size_t)v * sizeof *V);
                turn(r, qh + n, c, s, 1, query);
                for (long i = 0; i < r; i++) {
                    Q[at * (n + r) + n + i] = put(query[i]);
                    K[at * (n + r) + n + i] = put(key[i]);
                }
            }
        }
}

void heads_backward(long B, long T, long H, long n, long r, long v, const float *cosine, const float *sine,
                    const bf16 *dQ, const bf16 *dK, const bf16 *dV, bf16 *dq, bf16 *dkv, bf16 *dk_rope)
{
    for (long b = 0; b < B; b++)
        for (long t = 0; t < T; t++) {
            long row = b * T + t;
            const float *c = cosine + t * (r / 2), *s = sine + t * (r / 2);
            float key[256], sum[256] = {0}, query[256];
            for (long h = 0; h < H; h++) {
                bf16 *qh = dq + (row * H + h) * (n + r), *kvh = dkv + (row * H + h) * (n + v);
                long at = (b * H + h) * T + t;
                memcpy(qh, dQ + at * (n + r), (size_t)n * sizeof *qh);
                memcpy(kvh, dK + at * (n + r), (size_t)n * sizeof *kvh);
                memcpy(kvh + n, dV + at * v, (size_t)v * sizeof *kvh);
                turn(r, dQ + at * (n + r) + n, c, s, -1, query);
                turn(r, dK + at * (n + r) + n, c, s, -1, key);
                for (long i = 0; i < r; i++) {
                    qh[n + i] = put(query[i]);
                    sum[i] += key[i];
                }
            }
            for (long i = 0; i < r; i++)
                dk_rope[row * r + i] = put(sum[i]);
        }
}

/* Z matrices [T,T] of scores become probabilities of the causal softmax of scale * score */
void causal_softmax(long Z, long T, float scale, bf16 *s)
{
    for (long z = 0; z < Z; z++)
        for (long t = 0; t < T; t++, s += T) {
            float top = -LARGE, sum = 0, e[4096];
            for (long j = 0; j <= t; j++)
                top = fmaxf(top, get(s[j]));
            for (long j = 0; j <= t; j++) {
                e[j] = expf((get(s[j]) - top) * scale);
                sum += e[j];
            }
            sum = 1 / sum;
            for (long j = 0; j <= t; j++)
                s[j] = put(e[j] * sum);
            memset(s + t + 1, 0, (size_t)(T - t - 1) * sizeof *s);
        }
}

/* dp, the probabilities' gradient, becomes the scores' */
void causal_softmax_backward(long Z, long T, float scale, const bf16 *p, bf16 *dp)
{
    for (long z = 0; z < Z; z++)
        for (long t = 0; t < T; t++, p += T, dp += T) {
            float sum = 0;
            for (long j = 0; j <= t; j++)
                sum += get(p[j]) * get(dp[j]);
            for (long j = 0; j <= t; j++)
                dp[j] = put(get(p[j]) * (get(dp[j]) - sum) * scale);
            memset(dp + t + 1, 0, (size_t)(T - t - 1) * sizeof *dp);
        }
}

/* Rows of logits become the gradient of mean over N of the loss; sums[0] is the mean loss, sums[1] the mean plain one.
 * Target of row n: (1 - weight[n]) onehot(token[n]) + weight[n] * soft[n]; soft may be NULL. probs, if not NULL, gets
 * the softmax. */
void cross_entropy(long N, long V, bf16 *z, const int64_t *token, const bf16 *soft, const float *weight, bf16 *probs,
                   double *sums)
{
    sums[0] = sums[1] = 0;
    for (long n = 0; n < N; n++, z += V) {
        float top = -LARGE, total = 0, expected = 0, e[65536], w = soft ? weight[n] : 0, inverse;
        const bf16 *q = soft ? soft + n * V : NULL;
        for (long i = 0; i < V; i++)
            top = fmaxf(top, get(z[i]));
        for (long i = 0; i < V; i++) {
            e[i] = expf(get(z[i]) - top);
            total += e[i];
        }
        float log_total = logf(total) + top, plain = log_total - get(z[token[n]]);
        for (long i = 0; q && i < V; i++)
            expected += get(q[i]) * get(z[i]);
        sums[1] += plain;
        sums[0] += w * (log_total - expected) + (1 - w) * plain;
        inverse = 1 / total;
        for (long i = 0; probs && i < V; i++)
            probs[n * V + i] = put(e[i] * inverse);
        e[token[n]] -= (1 - w) * total;
        if (q)
            for (long i = 0; i < V; i++)
                z[i] = put((e[i] * inverse - w * get(q[i])) / (float)N);
        else
            for (long i = 0; i < V; i++)
                z[i] = put(e[i] * inverse / (float)N);
    }
    sums[0] /= (double)N;
    sums[1] /= (double)N;
}

/* The experts of each row: s = sigmoid(logit); groups by the sum of their two best s + bias, then the best of those;
 * g[n,e] = s / sum of the chosen * scale or 0; load[e] counts */
void route(long N, long E, long G, long topk_group, long K, float scale, const float *logits, const float *bias,
           float *s, float *g, float *load)
{
    long size = E / G;
    for (long n = 0; n < N; n++, logits += E, s += E, g += E) {
        float choice[256], group[256], sum = 0;
        for (long e = 0; e < E; e++) {
            s[e] = 1 / (1 + expf(-logits[e]));
            choice[e] = s[e] + bias[e];
            g[e] = 0;
        }
        for (long i = 0; i < G; i++) {
            float a = -LARGE, b = -LARGE;
            for (long e = i * size; e < (i + 1) * size; e++) {
                float x = choice[e];
                b = x > a ? a : x > b ? x : b;
                a = x > a ? x : a;
            }
            group[i] = a + (size > 1 ? b : 0);
        }
        for (long drop = 0; drop < G - topk_group; drop++) { /* the worst group leaves; of equals the last */
            long worst = -1;
            for (long i = 0; i < G; i++)
                if (group[i] < LARGE && (worst < 0 || group[i] <= group[worst]))
                    worst = i;
            group[worst] = LARGE;
            for (long e = worst * size; e < (worst + 1) * size; e++)
                choice[e] = -LARGE;
        }
        for (long k = 0; k < K; k++) {
            long best = 0;
            for (long e = 1; e < E; e++)
                if (choice[e] > choice[best])
                    best = e;
            choice[best] = -LARGE;
            g[best] = s[best];
            sum += s[best];
            load[best] += 1;
        }
        for (long e = 0; e < E; e++)
            g[e] *= scale / sum;
    }
}

/* dg, the gradient of g, becomes that of the logits */
void route_backward(long N, long E, float scale, const float *s, const float *g, float *dg)
{
    for (long n = 0; n < N; n++, s += E, g += E, dg += E) {
        float sum = 0, mean = 0;
        for (long e = 0; e < E; e++)
            if (g[e] != 0) {
                sum += s[e];
                mean += dg[e] * g[e];
            }
        for (long e = 0; e < E; e++)
            dg[e] = g[e] != 0 ? (dg[e] * scale - mean) / sum * s[e] * (1 - s[e]) : 0;
    }
}
