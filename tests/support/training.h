/* tests/support/training.h -- a training step of a few sequences, for tests of the trainer. */
#ifndef VB_TEST_TRAINING_H
#define VB_TEST_TRAINING_H

#include "engine/train/trainer.h"
#include "tests/support/files.h"

enum { TRAINING_SEQUENCES = 5,
       TRAINING_TOKENS = 80 };

/* Its sequences have 30, 9, 1, 3 and 37 random tokens. */
struct training_step {
    int32_t tokens[TRAINING_TOKENS];
    unsigned char mask[TRAINING_TOKENS];
    struct training_sequence list[TRAINING_SEQUENCES];
    struct trainer_options options; /* one thread, AdamW's usual numbers, factor 0.3 */
    const char *conventions;        /* of the model; NULL: the defaults */
    struct trained_heads heads;     /* options.heads, if there are some */
};
void training_step(struct training_step *s, const struct vb_model *m, enum trained_part part, int depths);
/* Gives the sequences a loss mask with 0 and 1; that of the second has no 1. */
void training_mask(struct training_step *s);

/* Trains the parallel heads in `dir`, or new ones if it is NULL. */
void training_heads_open(struct training_step *s, const struct vb_model *m, const char *dir);
void training_heads_close(struct training_step *s);

/* An error fails the test. */
vb_model *training_model(const char *dir, const char *conventions);
struct vb_trainer *training_open(const struct vb_model *m, const struct training_step *s);
struct training_losses training_gradients(struct vb_trainer *t, const struct training_step *s);
struct trained_tensor *training_tensor(struct vb_trainer *t, const char *name);
/* Opens a trainer and computes gradients, while one allocation after the other fails. Each is an error and leaks
 * nothing, and a trainer that was opened can be used after it. counted: that of the model's allocator */
void training_fails_without_memory(const struct vb_model *m, const struct training_step *s, struct counted *counted);
/* A hash of all gradients, weights and moments. */
uint64_t training_bits(struct vb_trainer *t);
static inline size_t training_numbers(const struct trained_tensor *x) { return x->rows * x->cols; }

#endif
