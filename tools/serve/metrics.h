/* tools/serve/metrics.h -- counters and histograms of the server, printed in the text format of Prometheus.
 *
 * Any thread may call these functions: one lock protects all counters. */
#ifndef VB_SERVE_METRICS_H
#define VB_SERVE_METRICS_H

#include "tools/serve/writer.h"
#include "engine/verbatim.h"

struct metrics;

int metrics_open(struct metrics **out); /* returns 0 if memory is missing */
void metrics_close(struct metrics *m);

enum metrics_time { METRICS_FIRST_TOKEN, METRICS_BETWEEN_TOKENS, METRICS_REQUEST, METRICS_TIMES };
void metrics_time(struct metrics *m, enum metrics_time which, double seconds);
void metrics_submitted(struct metrics *m, size_t sequences);
/* Records that a sequence has ended. prompt: number of its prompt tokens. reason: "stop", "length", "abort" or
 * "error". */
void metrics_sequence(struct metrics *m, size_t prompt, const vb_result *result, const char *reason);
void metrics_state(struct metrics *m, const vb_batch_state *state);
/* Prints all metrics. `prefix` is put before each name, such as "verbatim:". model: the value of the label
 * model_name. */
void metrics_print(struct metrics *m, struct serve_writer *w, const char *prefix, const char *model);

#endif
