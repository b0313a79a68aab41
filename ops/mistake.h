/* ops/mistake.h -- named mistakes, each one that some implementation has made or could make, to try the tests with.
 *
 * In a normal build MISTAKE(name) is the constant 0 and leaves nothing behind. In the build of `make mistakes` it asks
 * a variable that belongs to the test program; tests/mistakes/mistakes.txt says which test must notice, and tests/mistakes/mistakes.sh
 * sees that it does. A site is the wrong variant of one line, short enough to be read past. */
#ifndef VB_MISTAKE_H
#define VB_MISTAKE_H

#define MISTAKES(_)                                                                                                    \
    _(mscale_not_squared)          /* attention's scale under YaRN: m, not m^2 */                                      \
    _(scale_without_rope_dims)     /* n^-1/2 instead of (n+r)^-1/2 */                                                  \
    _(rope_in_halves)              /* dimension i turns with i + r/2, not 2i with 2i+1 */                              \
    _(yarn_without_ramp)           /* every wave stretched, the fast ones too */                                       \
    _(latent_eps_of_config)        /* rms_norm_eps in the two norms inside attention */                                \
    _(values_before_keys)          /* kv_b_proj read as [V; K] in each head */                                         \
    _(next_token_seen)             /* the causal mask one too far */                                                   \
    _(dense_layer_too_many)        /* first_k_dense_replace off by one */                                              \
    _(bias_in_weights)             /* experts weighed by what elected them */                                          \
    _(bias_before_sigmoid)         /* experts elected by sigmoid(logit + bias) */                                      \
    _(groups_ignored)              /* experts elected from all groups */                                               \
    _(group_mask_zero)             /* closed groups at 0.0 instead of out */                                           \
    _(group_best_not_two)          /* a group scores its best choice under noaux_tc */                                 \
    _(expert_order)                /* experts added by rank, not by index */                                           \
    _(norm_topk_prob_dropped)      /* weights not divided by their sum */                                              \
    _(routed_scaling_dropped)      /* weights not scaled */                                                            \
    _(shared_expert_dropped)                                                                                           \
    _(one_row_in_another_order)    /* a row alone begins its sum with the shared expert */                             \
    _(enorm_hnorm_swapped)         /* the two norms in front of eh_proj */                                             \
    _(concat_swapped)              /* eh_proj [hidden; embedding] */                                                   \
    _(shared_head_norm_dropped)                                                                                        \
    _(hidden_before_final_norm)    /* modules take the target's row before model.norm */                               \
    _(hidden_off_by_one)           /* row i takes h_{i-1} */                                                           \
    _(embedding_off_by_one)        /* row i takes Emb(tok[i+k]) */                                                     \
    _(draft_position_off_by_one)   /* RoPE of row i at i+1 */                                                          \
    _(draft_row_kept)              /* a module's row computed from a draft taken for final */                          \
    _(cut_row_kept)                /* a cut leaves one row of the cache where it was */                                \
    _(one_draft_too_many)          /* the row behind a wrong draft chooses a token */                                  \
    _(bonus_token_dropped)         /* nothing chosen behind the last draft */                                          \
    _(node_sees_its_siblings)      /* in a tree, drafts in the order of their rows and not the ancestors */            \
    _(node_position_by_row)        /* RoPE of a tree's draft turns with its row, not with its depth */                 \
    _(path_rows_left_behind)       /* the cache keeps a tree's first rows, not those of the drafts that stood */       \
    _(path_hidden_left_behind)     /* a drafter is told the hidden rows of a tree's first drafts */                    \
    _(first_child_alone)           /* of the drafts that follow one token only the first can stand */                  \
    _(drafter_sees_siblings)       /* the module's rows of a level see each other */                                   \
    _(random_number_by_round)      /* every row of a round draws the same number */                                    \
    _(penalties_miss_drafts)       /* accepted drafts are not counted as output */                                     \
    _(accepted_as_if_undrawn)      /* rejection: a drawn draft stands with p(d), as one that was not drawn */          \
    _(rest_with_q_of_one)          /* rejection: max(p - 1, 0) in place of a draft that was not drawn */               \
    _(rest_not_reduced)            /* rejection: another token from p itself, not from what q leaves of it */          \
    _(streams_shared)              /* rejection: that token with the number that turned the draft down */              \
    _(draws_miss_drafts)           /* a draft is drawn as if those before it had not been said */                      \
    _(relaxed_everywhere)          /* relaxed acceptance outside of the thinking tokens too */                         \
    _(stop_misses_drafts)          /* stop strings are not looked for in accepted drafts */                            \
    _(row_of_zeros_kept)           /* loaded without hidden rows: the row made of zeros has no dummy slot */            \
    _(loaded_output_forgotten)     /* a loaded session counts its output as prompt */                                  \
    _(section_not_checked)         /* of a session file only the header's checksum is compared */                      \
    _(query_not_rounded)           /* precision bf16: W_uk meets the query as it is */                                 \
    _(router_rounded)              /* the router's gate reads what the experts read */                                 \
    _(weights_truncated)           /* F32, F16, FP8 to BF16 by leaving bits out */                                     \
    _(tiny_weight_forgotten)       /* a matrix with one is taken for an ordinary one the next time */                  \
    _(minimum_added)               /* quantised weights: d q + m where it is d q - m */                                \
    _(offset_forgotten)            /* codes as they are stored, without the 8 or 128 that they are too high */         \
    _(codes_to_even)               /* Q8_0: halves to even, not away from 0 */                                         \
    _(scale_without_sign)          /* Q4_0: d of the largest magnitude, not of the number that has it */               \
    _(keys_left_out)               /* q8, q4: W_uk as it is stored */                                                  \
    _(embedding_quantised)         /* q8, q4: the embedding too */                                                     \
    _(router_quantised)            /* q8, q4: the router's gate too */

#define MISTAKE_NUMBER(name) MISTAKE_##name,
enum mistake { NO_MISTAKE, MISTAKES(MISTAKE_NUMBER) };
#undef MISTAKE_NUMBER

#ifdef VB_MISTAKES
extern enum mistake the_mistake; /* tests/mistakes/mistakes.c */
#define MISTAKE(name) (the_mistake == MISTAKE_##name)
#else
#define MISTAKE(name) (MISTAKE_##name == NO_MISTAKE) /* 0, and the name must exist here too */
#endif

#endif
