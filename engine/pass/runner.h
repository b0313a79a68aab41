/* engine/pass/runner.h -- the parts of a pass that every runner (struct runner, engine/pass/pass.h) puts together. */
#ifndef VB_RUNNER_H
#define VB_RUNNER_H

#include "engine/pass/pass.h"

/* This process computes everything with its CPU. */
extern const struct runner runner_cpu;

/* Before a pass of the target (module NULL, depth -1), or of a module: what each row reads and where its cache rows
 * are. The CPU computes the steps. */
void runner_begin(struct pass *p, const struct row *rows, size_t S, const struct mtp_module *module, int depth);
/* Where operators of the CPU compute (struct side). */
struct side runner_side(const struct pass *p);

/* The target's embedding, its layers, and model.norm. runner_layers calls `layer` for each layer. It returns nonzero if
 * `stop` ended the pass; the caller has asked it before the first layer (runner_is_stopped). */
void runner_embedding(struct pass *p);
int runner_layers(struct pass *p, void (*layer)(struct pass *p));
void runner_norm(struct pass *p);
int runner_is_stopped(struct pass *p);

#endif
