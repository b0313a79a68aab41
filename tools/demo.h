/* tools/demo.h -- what the parts of `verbatim demo` share. */
#ifndef VB_DEMO_H
#define VB_DEMO_H

#include <jansson.h>

#define DEMO_ROUNDS 64

struct cli;

/* Of some numbers. */
struct demo_spread {
    double median, least, most;
};
struct demo_spread demo_spread(const double *numbers, int count); /* at most DEMO_ROUNDS */
json_t *demo_numbers(const double *numbers, int count);           /* as a JSON array */

/* --- demo_large.c --- */
/* The second table: drafting on a checkpoint that the caches cannot hold. It is generated, and removed as soon as it is open.
 * With --json the table becomes *out. Reports errors. */
int demo_large(struct cli *c, int rounds, json_t **out);

/* --- demo_checkpoint.c --- */
/* A folder with a model in the shape of DeepSeek-V3, made of random weights. */
struct demo_checkpoint {
    char dir[4096];
    double bytes; /* of its tensors */
    int layers;   /* of the main model */
};
/* Makes it in $TMPDIR, else /tmp; whoever made it removes it. Asks first whether there is room. Reports errors, and leaves nothing
 * behind then; nor when a signal ended it, which the caller listens to. */
int demo_checkpoint_make(struct cli *c, struct demo_checkpoint *out);
void demo_checkpoint_remove(const struct demo_checkpoint *made);
/* EXIT_DONE, or reports the signal that came. */
int demo_go_on(const struct cli *c);

#endif
