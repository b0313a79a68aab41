/* engine/draft/length.h -- how long the next draft should be: `--draft-tokens auto`.
 *
 * A round asked for K drafts gives E(K) = 1 + a_1 + a_1 a_2 + .. + a_1 .. a_K tokens on average, where a_k is how often the k-th
 * draft is made and stands when those before it stood, and takes T(K) seconds, drafting included. Over many rounds
 * E(K) / T(K) tokens come in a second: the K with the largest is chosen. Both are measured as the run goes; what is newer weighs
 * more, and what is old is forgotten. Every 16 rounds, and later less often, a neighbour of that K is asked for, so that there is
 * always more than one length of which something is known.
 *
 * Time is the only thing here that is not the same in every run, and nothing but the lengths of drafts depends on it. */
#ifndef VB_DRAFT_LENGTH_H
#define VB_DRAFT_LENGTH_H

#include "engine/verbatim.h"

struct draft_length {
    int most, K, before;           /* K of the next round; of the round before it, -1: there was none */
    int home;                      /* the K that detours leave and come back to */
    int left, stay;                /* rounds until the next decision; from one detour to the next */
    unsigned now, detours;         /* rounds; detours */
    double stood[VB_MAX_DRAFT], tried[VB_MAX_DRAFT];             /* of the k+1-th drafts; weights fade */
    double seconds[VB_MAX_DRAFT + 1], rounds[VB_MAX_DRAFT + 1];  /* of rounds asked for K; weights fade */
    unsigned newest[VB_MAX_DRAFT + 1];                           /* of them */
};

/* first: the K to begin with, 1..most. */
void draft_length_begin(struct draft_length *l, int first, int most);
/* A round asked for l->K drafts, of which `stood` stood, and took so long. Decides the next K. Rounds that had no room for
 * that many are not to be told. */
void draft_length_saw(struct draft_length *l, int stood, double seconds);

/* What is believed: E(K), and T(K), which for lengths that were not measured is drawn as a line through its neighbours. */
double draft_length_tokens(const struct draft_length *l, int K);
double draft_length_seconds(const struct draft_length *l, int K);

#endif
