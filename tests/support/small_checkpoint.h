/* tests/support/small_checkpoint.h -- generated checkpoints that are small enough to compute them some thousand times:
 * d = 8, a vocabulary of 12 tokens, 2 layers (the first is dense, except in Mistral 4), 4 experts of which each token
 * takes 2. All tensors are F32, and all weights are multiples of 2^-10 with magnitudes below 2, so that differences.h
 * can move them. */
#ifndef VB_TEST_SMALL_CHECKPOINT_H
#define VB_TEST_SMALL_CHECKPOINT_H

struct small_checkpoint {
    const char *name;         /* for messages */
    const char *architecture; /* with the keys of config.json that all kinds share; `keys` has others, each followed by
                                 a comma */
    const char *keys;
    int no_q_lora, tied, bias, all_experts; /* bias: the router has one; all_experts: there is no dense layer */
    int modules;              /* MTP modules; the first has its own embedding and output head */
    int heads;                /* parallel heads, in the same folder; `keys` says n_future_tokens */
};

enum { SMALL_V = 12 };

/* A DeepSeek-V3 with YaRN, groups of experts and two MTP modules; DeepSeek-V2 with tied embeddings and with q_lora; a
 * Mistral 4 that scales queries from position 4 on; and a DeepSeek-V3 whose RoPE rotates halves. The last entry has no
 * name. */
extern const struct small_checkpoint small_checkpoints[];
/* A DeepSeek-V3 with two parallel heads before its last layer, and a DeepSeek-V2 with tied embeddings and one after its
 * last layer. The last entry has no name. */
extern const struct small_checkpoint small_with_heads[];

/* Writes the checkpoint into a new directory, whose path is written to `dir`. */
void small_checkpoint(char dir[64], const struct small_checkpoint *c);

#endif
