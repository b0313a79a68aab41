/* tests/support/references.h -- references of golden checkpoints, and their results against golden/truth. */
#ifndef VB_TEST_REFERENCES_H
#define VB_TEST_REFERENCES_H

#include "reference/reference.h"
#include "tests/support/golden.h"

/* Calls a function of the reference whose last argument is &err, and fails with its message. */
#define OK(call)                        \
    do {                                \
        vb_error err = {0};             \
        if (call)                       \
            fail_msg("%s", err.message); \
    } while (0)

struct reference *open_reference(const char *dir);
struct reference *open_tiny_reference(const char *name); /* golden/tiny/NAME */
double *doubles(size_t count);                 /* `count` zeros; the caller frees them */

/* Makes a copy of golden/tiny/NAME in which keys of config.json are replaced: a new directory, its other files are links. */
void variant_make(char dir[64], const char *name, json_t *keys);

/* Compares data with the tensor `of` of a golden: the distance (golden.h) must be at most `bound`. */
void check_distance(const char *what, const char *of, const struct golden *g, const double *data, double bound);
void check_tokens(const char *what, const int32_t *have, json_t *want);

/* Compares logits and, if the golden has them, hidden rows of golden/truth/NAME + SUFFIX with those of the reference. */
void check_target(const char *name, const char *suffix, const struct reference_options *options, double bound);

#endif
