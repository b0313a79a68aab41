/* tests/support/references.h -- references of golden checkpoints, and their results against golden/truth. */
#ifndef VB_TEST_REFERENCES_H
#define VB_TEST_REFERENCES_H

#include "reference/reference.h"
#include "tests/support/golden.h"

struct reference *open_reference(const char *dir);
struct reference *open_tiny_reference(const char *name); /* golden/tiny/NAME */
double *doubles(size_t count);                 /* `count` zeros; the caller frees them */

/* Makes a copy of golden/tiny/NAME in which keys of config.json are replaced: a new directory, its other files are
 * links. */
void variant_make(char dir[64], const char *name, json_t *keys);

/* Computes S tokens and returns the rows that each of them attends to, as reference_options.sets wants them, for the
 * layers of the target. The caller frees them. NULL: the model has no indexer. */
int32_t *reference_sets(const struct reference *r, const struct reference_options *options, const int32_t *tokens,
                        int S);

/* Compares data with the tensor `of` of a golden: the distance (golden.h) must be at most `bound`. */
void check_distance(const char *what, const char *of, const struct golden *g, const double *data, double bound);
void check_tokens(const char *what, const int32_t *have, json_t *want);

/* Compares logits and, if the golden has them, hidden rows of golden/truth/NAME + SUFFIX with those of the
 * reference. */
void check_target(const char *name, const char *suffix, const struct reference_options *options, double bound);

/* Compares the greedy tokens of the reference with those of golden/truth/NAME.json. */
void check_greedy(const char *name);

#endif
