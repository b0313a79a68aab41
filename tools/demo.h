/* tools/demo.h -- declarations shared by the source files of `verbatim demo`. */
#ifndef VB_DEMO_H
#define VB_DEMO_H

#include <jansson.h>

#define DEMO_ROUNDS 64

struct cli;

/* The median, minimum and maximum of some measured numbers. */
struct demo_spread {
    double median, least, most;
};
struct demo_spread demo_spread(const double *numbers, int count); /* count: at most DEMO_ROUNDS */
json_t *demo_numbers(const double *numbers, int count);           /* the numbers as a JSON array */

/* --- demo_large.c --- */
/* Implements --large: generates a checkpoint that is larger than the CPU caches, opens it, deletes its files, measures
 * drafting with it, and prints a table. With --json, *out receives the table instead. Reports errors. */
int demo_large(struct cli *c, int rounds, json_t **out);

/* --- demo_checkpoint.c --- */
/* A directory with a generated model: the architecture of DeepSeek-V3, random weights. */
struct demo_checkpoint {
    char dir[4096];
    double bytes; /* total size of its tensors */
    int layers;   /* number of layers without the MTP layers */
};
/* Generates the checkpoint in $TMPDIR, or in /tmp if TMPDIR is not set. First checks that the disk has room for it. The
 * caller removes the checkpoint after use. If an error or a signal stops the generation, this function reports it and
 * removes the files itself. The caller must have called cli_listen_to_signals. */
int demo_checkpoint_make(struct cli *c, struct demo_checkpoint *out);
void demo_checkpoint_remove(const struct demo_checkpoint *made);
/* If a signal that ends the program has come, reports it and returns an error code. Otherwise returns EXIT_DONE. */
int demo_go_on(const struct cli *c);

#endif
