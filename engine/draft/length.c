/* engine/draft/length.c -- acceptance that fades, times by rows, and where their quotient is largest. */
#include "engine/draft/length.h"

#define FEWEST_BETWEEN_DETOURS 16 /* twice as many after each that changed nothing */
#define MOST_BETWEEN_DETOURS 64
#define FORGOTTEN 160             /* rounds after which a K counts as one that was never tried */
#define FIRST_ROUNDS 2            /* without drafts */
#define ROUNDS_OF_A_DETOUR 2      /* a round that follows one of another K pays for that one's rows: the second is
                                     measured */
#define ROUNDS_OF_A_STEP 4        /* after the step from K = 0 to drafts, before another K may be chosen */
#define ROUNDS_OF_A_TRIAL 8       /* of a detour from K = 0, at most */
#define FADE_STOOD 0.98           /* fifty sequences' rounds: the text changes its mind more slowly than that costs */
#define PRIOR 4.0                 /* rounds that earlier acceptance counts for in a detour from K = 0 */
#define AS_BEFORE 4.0             /* how many drafts of the depth before count as drafts of this depth */
#define PART_LOST 0.01
#define FADE_LOST 0.999           /* a thousand rounds */
#define OUTLIER 2.0               /* times what a pass was expected to take: a busy neighbour, no loss by the detour */
#define BETTER 1.02               /* times as fast as the chosen K: less is noise */
#define DEFERRED_ROWS 256         /* of all sequences together */
#define FEWEST_DEFERRED 4         /* of one; with so few, tale's module drafts nearly as well as with 200 */

void draft_length_begin(struct draft_length *l, int most, size_t layers)
{
    *l = (struct draft_length){.most = most, .layers = (double)layers, .limit = most, .home = -1, .before = -1,
                               .left = FIRST_ROUNDS, .stay = FEWEST_BETWEEN_DETOURS, .drafting = 1.0};
}

size_t draft_length_deferred(const struct draft_length *l)
{
    double rows = DEFERRED_ROWS / (l->drafting + l->others);
    rows = rows < l->layers ? rows : l->layers; /* so many rows of a module take as long as one row of a prompt */
    return l->home > 0 ? 0 : rows > FEWEST_DEFERRED ? (size_t)rows : FEWEST_DEFERRED;
}

/* ---- estimates --------------------------------------------------------------------------------------------------- */

/* E(K), as if of `more` further first drafts `good` had been accepted. A later draft is taken to be accepted as often
 * as the one before it, until many have been tried. */
static double tokens(const struct draft_length *l, int K, double more, double good)
{
    double all = 1.0, product = 1.0, a = l->tried[0] > 0.0 ? (l->stood[0] + good) / (l->tried[0] + more) : 0.0;
    for (int k = 0; k < K; k++) {
        if (k > 0)
            a = (l->stood[k] + AS_BEFORE * a) / (l->tried[k] + AS_BEFORE);
        product *= a;
        all += product;
    }
    return all;
}

/* T(K) in length.h */
static double seconds_of(const struct draft_length *l, int K)
{
    double part = l->asked > 0.0 ? l->made / l->asked : 1.0;
    return cost_of(&l->pass, l->drafting + l->others + l->drafting * (double)K * part) +
           (double)K * cost_of(&l->step, l->drafting);
}

/* Tokens of a round, when a sequence with drafts gets E. */
static double of_round(const struct draft_length *l, double E) { return l->others + l->drafting * E; }

/* Tokens per second, as if half of `more` further first drafts had been accepted. */
static double rate(const struct draft_length *l, int K, double more)
{
    double seconds = seconds_of(l, K);
    return seconds > 0.0 ? of_round(l, tokens(l, K, more, 0.5 * more)) / seconds : 0.0;
}

static int is_recent(const struct draft_length *l, int K) { return l->newest[K] && l->now - l->newest[K] <= FORGOTTEN; }

/* A line through noise may point anywhere: at most twice as far as was looked. The few rounds of a detour from K = 0
 * say little about acceptance. */
static int best(const struct draft_length *l)
{
    int home = l->home > 0 ? l->home : 0, K = home, farthest = 0;
    double more = home ? 0.0 : 2.0, fastest = BETTER * rate(l, home, more);
    for (int k = 1; k <= l->limit; k++)
        farthest = is_recent(l, k) ? 2 * k + 1 : farthest;
    for (int k = 0; k <= l->limit && k <= farthest; k++)
        if (k != home && rate(l, k, more) > fastest) {
            fastest = rate(l, k, more);
            K = k;
        }
    return K;
}

/* ---- decisions --------------------------------------------------------------------------------------------------- */

static void settle(struct draft_length *l, int K)
{
    int longer = 2 * l->stay < MOST_BETWEEN_DETOURS ? 2 * l->stay : MOST_BETWEEN_DETOURS;
    l->stay = K == l->home ? longer : FEWEST_BETWEEN_DETOURS;
    /* a guess is looked at soon */
    l->left = K && !is_recent(l, K) ? ROUNDS_OF_A_DETOUR : K && l->home <= 0 ? ROUNDS_OF_A_STEP : l->stay;
    l->wanted = l->home = K;
    l->sequences = l->drafting + l->others;
}

static void leave(struct draft_length *l)
{
    int home = l->home > 0 ? l->home : 0, K = l->detours++ % 2 ? home + 1 : home - 1;
    l->wanted = K < 0 ? 1 : K > l->limit ? l->limit - 1 : K;
    l->left = home ? ROUNDS_OF_A_DETOUR : ROUNDS_OF_A_TRIAL;
    if (!home && l->tried[0] > PRIOR) { /* an old text says little about a new one */
        l->stood[0] *= PRIOR / l->tried[0];
        l->tried[0] = PRIOR;
    }
}

/* Whether a detour from K = 0 has shown enough, although it may go on. */
static int is_clear(const struct draft_length *l)
{
    double plain = rate(l, 0, 0.0), seconds = seconds_of(l, 1);
    if (l->left > ROUNDS_OF_A_TRIAL - ROUNDS_OF_A_DETOUR || l->tried[0] <= 0.0)
        return 0;
    return of_round(l, tokens(l, 1, 1.0, 1.0)) < plain * seconds ||
           of_round(l, tokens(l, 1, 1.0, 0.0)) > BETTER * plain * seconds;
}

/* Some rounds without drafts, then a detour. If drafts look faster, some rounds without drafts follow: the first ones
 * were slow, because the caches were cold. */
static void decide_first(struct draft_length *l)
{
    int K = l->detours ? best(l) : 0;
    if (!l->detours) {
        leave(l);
    } else if (K && l->wanted) {
        l->wanted = 0;
        l->left = FIRST_ROUNDS;
    } else {
        settle(l, K);
    }
}

static void decide(struct draft_length *l)
{
    int at_home = l->wanted == l->home, K = l->wanted || l->home > 0 ? best(l) : 0;
    if (!l->limit)
        settle(l, 0);
    else if (l->home < 0)
        decide_first(l);
    else if (!at_home || K != l->home)
        settle(l, K);
    else if (l->lost <= PART_LOST * l->spent)
        leave(l);
    else
        l->left = l->stay;
}

void draft_length_next(struct draft_length *l, int drafting, int others, int limit, int mixed)
{
    double n = (double)(drafting + others);
    l->drafting = (double)drafting;
    l->others = (double)others;
    l->limit = limit < l->most ? limit : l->most;
    if (l->home > l->limit || l->wanted > l->limit)
        settle(l, l->home > l->limit ? l->limit : l->home > 0 ? l->home : 0);
    if (l->home >= 0 && l->wanted == l->home && (1.5 * n < l->sequences || n > 1.5 * l->sequences)) {
        int K = l->home ? best(l) : 0;
        l->stay = FEWEST_BETWEEN_DETOURS;
        l->left = l->left > l->stay ? l->stay : l->left;
        l->sequences = n;
        if (K != l->home)
            settle(l, K);
    }
    l->K = !mixed ? l->wanted : l->home > 0 ? l->home : 0;
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

void draft_length_accepted(struct draft_length *l, int made, int stood)
{
    for (int k = 0; k < l->K && k <= stood; k++) {
        l->stood[k] = FADE_STOOD * l->stood[k] + (k < stood ? 1.0 : 0.0);
        l->tried[k] = FADE_STOOD * l->tried[k] + 1.0;
    }
    l->made = FADE_STOOD * l->made + (double)made;
    l->asked = FADE_STOOD * l->asked + (double)l->K;
}

/* How much longer a round of a detour took than its tokens would have taken with the chosen K. The first drafts of all
 * are not counted: they may have waited for weights from the disk, which later ones do not. */
static double loss(const struct draft_length *l, const struct draft_round *r)
{
    double usual = rate(l, l->home > 0 ? l->home : 0, 0.0), most = OUTLIER * cost_of(&l->pass, (double)r->rows);
    double pass = r->pass < most ? r->pass : most,
           proposing = cost_of(&l->step, (double)r->drafting) > 0.0 ? r->proposing : 0.0;
    return l->wanted == l->home || usual <= 0.0 ? 0.0 : pass + proposing - (double)r->tokens / usual;
}

void draft_length_saw(struct draft_length *l, const struct draft_round *r)
{
    if (r->mixed || l->K != l->wanted) {
        l->before = -1;
        return;
    }
    int first = l->before != l->K;
    l->now++;
    l->newest[l->K] = l->now;
    l->before = l->K;
    l->spent = FADE_LOST * l->spent + r->pass + r->proposing;
    cost_saw(&l->pass, l->now, (double)r->rows, r->pass);
    if (l->K && !first)
        cost_saw(&l->step, l->now, (double)r->drafting, r->proposing / (double)l->K);
    l->lost = FADE_LOST * l->lost + loss(l, r);
    l->lost = l->lost > 0.0 ? l->lost : 0.0;
    if (--l->left <= 0 || (l->wanted == 1 && l->home <= 0 && is_clear(l)))
        decide(l);
}
