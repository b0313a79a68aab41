/* tools/serve/worker.h -- the worker: a thread that owns the batch. It takes jobs from a queue, and calls vb_batch_step
 * while there is something to compute. Any thread may call these functions. */
#ifndef VB_SERVE_WORKER_H
#define VB_SERVE_WORKER_H

#include "tools/serve/job.h"

#define WORKER_FAR_BEHIND 1024 /* a sequence is paused when the client has not yet received more of its tokens than
                                  this */
#define WORKER_CAUGHT_UP 512   /* a paused sequence is resumed when no more of its tokens than this wait to be sent */

/* Opens the batch and starts the thread. Reports errors (see tools/cli/cli.h). */
int worker_open(struct worker **out, struct server *server);
/* Puts a job into the queue and returns 0. The worker holds a reference to the job until all its choices are over. If
 * the queue is full, or if the server is stopping, fills *f and returns its status (429 or 503). */
int worker_submit(struct worker *w, struct serve_job *job, struct failure *f);
/* Wakes the worker. Call this after a job was cancelled, or after the client of a paused sequence has read enough. */
void worker_look(struct worker *w);
/* Returns when all jobs are over. */
void worker_finish(struct worker *w);
void worker_close(struct worker *w);

#endif
