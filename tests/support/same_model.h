/* tests/support/same_model.h -- checks that two models are equal: a directory in the Hugging Face layout, and a GGUF
 * file that was made from it. `what` names the case in messages. */
#ifndef VB_TEST_SAME_MODEL_H
#define VB_TEST_SAME_MODEL_H

#include "engine/text/tokenizer.h"
#include "tests/support/engine_support.h"

/* Runs both models: twelve tokens after a random prompt, with drafts if there are MTP modules. Both runs must have the
 * same logits. */
void check_same_runs(const char *what, const vb_model *directory, const vb_model *file);

/* Two numbers must have the same bits. */
void check_same_real(const char *what, const char *key, double directory, double file);

/* All values that the engine computes with must be equal, bit by bit. */
void check_same_config(const char *what, const struct config *directory, const struct config *file);

/* Both tokenizers must give the same ids for this text. */
void check_same_ids(const struct vb_tokenizer *a, const struct vb_tokenizer *b, const char *text, int parse_special);

/* Calls check_same_ids for a list of texts, some of which contain special tokens. */
void check_same_texts(const struct vb_tokenizer *a, const struct vb_tokenizer *b);

/* The first `size` tokens, the ids of BOS and EOS, and the ids of the texts that check_same_texts compares must be
 * equal. */
void check_same_tokenizer(const struct vb_tokenizer *a, const struct vb_tokenizer *b, int32_t size);

#endif
