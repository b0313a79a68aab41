/* engine/draft/length.c -- two tables that fade, and where their quotient is largest. */
#include "engine/draft/length.h"

#define FEWEST_BETWEEN_DETOURS 16 /* twice as many after each that changed nothing */
#define MOST_BETWEEN_DETOURS 64
#define FORGOTTEN 160         /* rounds after which a time says nothing any more */
#define ROUNDS_OF_A_DETOUR 2  /* a round that follows one of another K pays for that one's rows: the second is measured */
#define FADE_STOOD 0.98       /* fifty rounds: the text changes its mind more slowly than that costs */
#define FADE_SECONDS 0.9
#define OUTLIER 2.0           /* times what was expected: a busy neighbour, which says nothing about K */

void draft_length_begin(struct draft_length *l, int first, int most)
{
    *l = (struct draft_length){.most = most, .K = first, .home = -1, .before = -1, .left = ROUNDS_OF_A_DETOUR + 1,
                               .stay = FEWEST_BETWEEN_DETOURS};
}

static int is_measured(const struct draft_length *l, int K)
{
    return l->rounds[K] > 0.0 && l->now - l->newest[K] <= FORGOTTEN;
}

double draft_length_tokens(const struct draft_length *l, int K)
{
    double all = 1.0, product = 1.0, share = 0.0;
    for (int k = 0; k < K; k++) {
        if (l->tried[k] > 0.0)
            share = l->stood[k] / l->tried[k]; /* else as often as the one before it */
        product *= share;
        all += product;
    }
    return all;
}

double draft_length_seconds(const struct draft_length *l, int K)
{
    int a = -1, b = -1; /* those around K; else the two that are nearest to it */
    for (int k = 0; k <= l->most; k++) {
        if (!is_measured(l, k))
            continue;
        if (k == K)
            return l->seconds[k];
        if (a < 0 || b < K) { /* the newest two, until the second is beyond K */
            a = b;
            b = k;
        }
    }
    if (b < 0)
        return 0.0; /* nothing is known */
    if (a < 0)
        return l->seconds[b];
    double slope = (l->seconds[b] - l->seconds[a]) / (double)(b - a), least = 0.01 * l->seconds[a];
    double drawn = l->seconds[a] + (slope > least ? slope : least) * (double)(K - a);
    return drawn > 0.25 * l->seconds[a] ? drawn : 0.25 * l->seconds[a];
}

/* A line through noise may point anywhere: at most twice as far as was looked. */
static int best(const struct draft_length *l)
{
    int K = 0, farthest = 0;
    for (int k = 1; k <= l->most; k++)
        farthest = is_measured(l, k) ? 2 * k + 1 : farthest;
    for (int k = 1; k <= l->most && k <= farthest; k++)
        if (draft_length_tokens(l, k) * draft_length_seconds(l, K) > draft_length_tokens(l, K) * draft_length_seconds(l, k))
            K = k;
    return K;
}

/* First without drafts, to know what they cost; then the best, and now and then one longer or one shorter. */
static void decide(struct draft_length *l)
{
    int K = best(l), aside = l->detours % 2 ? K + 1 : K - 1;
    if (l->rounds[0] == 0.0 && l->K) {
        l->K = 0;
        l->left = ROUNDS_OF_A_DETOUR;
    } else if (l->K == K && K == l->home) {
        l->detours++;
        l->K = aside < 0 ? 1 : aside > l->most ? l->most - 1 : aside;
        l->left = ROUNDS_OF_A_DETOUR;
    } else {
        int longer = 2 * l->stay < MOST_BETWEEN_DETOURS ? 2 * l->stay : MOST_BETWEEN_DETOURS;
        l->stay = K == l->home ? longer : FEWEST_BETWEEN_DETOURS;
        l->left = is_measured(l, K) ? l->stay : ROUNDS_OF_A_DETOUR; /* a guess is looked at soon */
        l->K = l->home = K;
    }
}

void draft_length_saw(struct draft_length *l, int stood, double seconds)
{
    for (int k = 0; k < l->K && k <= stood; k++) {
        l->stood[k] = FADE_STOOD * l->stood[k] + (k < stood ? 1.0 : 0.0);
        l->tried[k] = FADE_STOOD * l->tried[k] + 1.0;
    }
    l->now++;
    if (l->before == l->K) {
        double *mean = &l->seconds[l->K], *weight = &l->rounds[l->K], most = OUTLIER * draft_length_seconds(l, l->K);
        seconds = most > 0.0 && seconds > most ? most : seconds;
        if (!is_measured(l, l->K))
            *weight = 0.0;
        l->newest[l->K] = l->now;
        *weight = FADE_SECONDS * *weight + 1.0;
        *mean += (seconds - *mean) / *weight;
    }
    l->before = l->K;
    if (--l->left <= 0)
        decide(l);
}
