/* engine/draft/length.h -- chooses the length of the next draft (`--draft-tokens auto`).
 *
 * A round with K drafts produces E(K) = 1 + a_1 + a_1 a_2 + .. + a_1 .. a_K tokens on average. Here a_k is the
 * probability that the k-th draft is made and accepted, given that all drafts before it were accepted. The round takes
 * T(K) seconds, including the time for drafting. So decoding produces E(K) / T(K) tokens per second, and the K with the
 * largest quotient is chosen.
 *
 * E(K) and T(K) are measured during the run. Newer rounds have a larger weight than older rounds. To measure more than
 * one K, a few rounds use a K that differs by 1 from the chosen K. These rounds are called a detour. At first a detour
 * begins every 16 rounds, and later less often.
 *
 * Measured times differ from run to run, but nothing except the lengths of drafts depends on them. */
#ifndef VB_DRAFT_LENGTH_H
#define VB_DRAFT_LENGTH_H

#include "engine/verbatim.h"

struct draft_length {
    int most, K, before;           /* largest allowed K; K of the next round; K of the previous round, or -1 before the
                                      first round */
    int home;                      /* the chosen K; K has this value again after a detour */
    int left, stay;                /* rounds until K is chosen again; rounds between two detours */
    unsigned now, detours;         /* number of rounds so far; number of detours so far */
    double stood[VB_MAX_DRAFT], tried[VB_MAX_DRAFT];             /* [k - 1]: how many k-th drafts were accepted; how many were made;
                                                                    old rounds count less in both */
    double seconds[VB_MAX_DRAFT + 1], rounds[VB_MAX_DRAFT + 1];  /* [K]: mean duration of the rounds with K drafts; number of these
                                                                    rounds; old rounds count less in both */
    unsigned newest[VB_MAX_DRAFT + 1];                           /* [K]: number of the newest round that asked for K drafts */
};

/* Begins with K = first, which is 1..most. */
void draft_length_begin(struct draft_length *l, int first, int most);
/* Reports a round that asked for l->K drafts: `stood` of the drafts were accepted, and the round took `seconds`
 * seconds. The function then sets l->K for the next round. Do not report a round that could not have l->K drafts, for
 * example because the context was nearly full. */
void draft_length_saw(struct draft_length *l, int stood, double seconds);

/* Return the current estimates of E(K) and T(K). If T(K) was not measured, it is interpolated or extrapolated from the
 * measured values of T. */
double draft_length_tokens(const struct draft_length *l, int K);
double draft_length_seconds(const struct draft_length *l, int K);

#endif
