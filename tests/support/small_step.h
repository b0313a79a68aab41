/* tests/support/small_step.h -- a training step of a small checkpoint (small_checkpoint.h) whose weights can be
 * changed, and a comparison of its gradients with finite differences. */
#ifndef VB_TEST_SMALL_STEP_H
#define VB_TEST_SMALL_STEP_H

#include "reference/backward.h"
#include "reference/weights.h"
#include "tests/support/small_checkpoint.h"

enum { SMALL_SEQUENCES = 4 };
extern const int32_t small_text[14];
extern const struct reference_sequence small_sequences[SMALL_SEQUENCES]; /* 8, 3, 2 and 1 tokens of small_text */
extern const struct reference_sequence small_masked[SMALL_SEQUENCES];    /* the same; some tokens are no labels. Depth 1
                                                                            has labels, depth 2 has none */

struct small {
    char dir[64];
    struct reference *r, *heads; /* heads: parallel heads; NULL: the checkpoint has none */
    struct reference_loss_options options;
    const struct reference_sequence *list; /* the step: initially small_sequences */
    int count;
    double error;   /* of a loss, by rounding */
    float *weights; /* the tensor that the test changes, and the same numbers as doubles */
    double *x;
    size_t n;
};

void small_open(struct small *m, const struct small_checkpoint *c);
void small_close(struct small *m);

struct reference_losses small_losses(const struct small *m, struct reference_gradients *g); /* g may be NULL */

double small_perturbed(const struct small *m, uint64_t perturb); /* the total loss of a perturbed run */
/* Bounds the rounding error of the total loss, which is `exact`. total: computes that of a perturbed run. */
double small_rounding_error(const struct small *m, double (*total)(const struct small *m, uint64_t perturb),
                            double exact);

void small_gradients_open(const struct small *m, struct reference_gradients *g);

/* Compares the gradients of all tensors whose names begin with `start` with differences of the total loss. The caller
 * sets m->error. */
void small_check_tensors(struct small *m, const struct reference_gradients *g, const char *start, const char *name);

#endif
