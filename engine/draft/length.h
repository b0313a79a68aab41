/* engine/draft/length.h -- chooses the length of the next drafts (`--draft-tokens auto`).
 *
 * Sequences that share passes have the same K. In a round, a sequence with K drafts gets E(K) = 1 + a_1 + a_1 a_2 + ..
 * + a_1 .. a_K tokens on average. Here a_k is the probability that the k-th draft is made and accepted, given that all
 * drafts before it were accepted. A round of n sequences, m of which make K drafts, takes
 *
 *     T(K) = (time of a pass of the target with n + m K f rows) + K (time of a drafting step for m sequences)
 *
 * seconds, where f is the fraction of the wanted drafts that is really made. So decoding produces (n - m + m E(K)) /
 * T(K) tokens per second, and the K with the largest quotient is chosen. The measured times of passes are kept by the
 * number of their rows, so they remain useful when n changes.
 *
 * Decoding begins with two rounds without drafts. After them, and later from time to time, a few rounds use another K
 * than the chosen one. Such rounds are called a detour. If K = 0 is the chosen K, a detour uses K = 1; it ends as soon
 * as it is clear enough whether drafts make decoding faster. If drafts look faster in the first detour, two more rounds
 * without drafts follow before K is chosen: the first two may have been slow only because the CPU's caches were cold.
 * If another K than 0 is the chosen K, a detour uses a K that is larger or smaller by 1. A detour costs time. No detour
 * begins while all detours together have cost more than one hundredth of the whole time.
 *
 * While K = 0 is the chosen K, drafters whose type has `defer` compute nothing, except in detours (drafter_type.defer).
 *
 * Measured times differ from run to run, but nothing except the lengths of drafts depends on them. */
#ifndef VB_DRAFT_LENGTH_H
#define VB_DRAFT_LENGTH_H

#include "engine/verbatim.h"
#include "engine/draft/cost.h"

struct draft_length {
    int most;              /* largest allowed K */
    double layers;         /* number of layers of the target */
    int K;                 /* K of the next round */
    int limit;             /* as draft_length_next: the largest K for which there is room, at most `most` */
    int wanted, home;      /* the K that shall be measured now; the chosen K, or -1 if there is none yet */
    int before;            /* K of the last round that was measured, or -1 */
    int left, stay;        /* rounds until K is chosen again; rounds between two detours */
    unsigned now, detours; /* number of rounds so far; number of detours so far */
    double sequences;      /* number of sequences when K was chosen */
    double drafting, others; /* number of sequences that make drafts, and of those that do not, in the next round */
    double lost, spent;    /* seconds that detours have cost; seconds of all rounds; old rounds count less in both */
    double stood[VB_MAX_DRAFT], tried[VB_MAX_DRAFT]; /* [k - 1]: how many k-th drafts were accepted; how many were
                                                        wanted after accepted drafts; old rounds count less in both */
    double made, asked;    /* how many drafts were made; how many were wanted; old rounds count less in both */
    struct cost pass;      /* seconds of a pass of the target, depending on its number of rows */
    struct cost step;      /* seconds of one step of drafting, depending on the number of sequences that make drafts */
    unsigned newest[VB_MAX_DRAFT + 1]; /* [K]: number of the newest round with K drafts, counted from 1; 0: there was
                                          none */
};

/* A round in which some sequences asked for l->K drafts. */
struct draft_round {
    int drafting;             /* number of sequences that asked for l->K drafts */
    size_t rows, tokens;      /* rows of the target's pass; tokens chosen for all sequences */
    double pass, proposing;   /* seconds of the target's pass, and of making the drafts of the sequences that share l */
    int mixed;                /* nonzero: the pass also had rows of prompts */
};

/* Begins with K = 0. layers: the number of layers of the target. */
void draft_length_begin(struct draft_length *l, int most, size_t layers);
/* Call this before each round. Sets l->K. `drafting` sequences (at least 1) will make l->K drafts each, `others` will
 * make none or have a length of their own. There is room for `limit` drafts per sequence. If `mixed` is nonzero, the
 * pass will also have rows of prompts; such rounds are not measured. */
void draft_length_next(struct draft_length *l, int drafting, int others, int limit, int mixed);
/* Reports that a sequence asked for l->K drafts, got `made`, and that `stood` of them were accepted. Do not report a
 * sequence that could not have l->K drafts, for example because its context was nearly full. */
void draft_length_accepted(struct draft_length *l, int made, int stood);
/* Call this after each round, and after draft_length_accepted for its sequences. */
void draft_length_saw(struct draft_length *l, const struct draft_round *r);

/* Returns the number of rows for drafter_type.defer: 0 if the chosen K is larger than 0. A detour does not change
 * it. */
size_t draft_length_deferred(const struct draft_length *l);

#endif
