/* tools/serve/worker.h -- the engine thread: it owns the batch, takes jobs from a line, and steps while there is something to compute.
 * All functions may be called from any thread. */
#ifndef VB_SERVE_WORKER_H
#define VB_SERVE_WORKER_H

#include "tools/serve/job.h"

#define WORKER_FAR_BEHIND 1024 /* published tokens that a stream's reader has not taken: its sequence is paused */
#define WORKER_CAUGHT_UP 512   /* and goes on */

/* Opens the batch and starts the thread. Reports errors as cli_error does. */
int worker_open(struct worker **out, struct server *server);
/* Gives it a job, which the worker holds until all its choices are over. Or refuses it: 429 when the line is full, 503 when the
 * server stops. Returns 0, or the failure's status. */
int worker_submit(struct worker *w, struct serve_job *job, struct failure *f);
/* Something is to be looked at: a job was cancelled, or its reader caught up. */
void worker_look(struct worker *w);
/* Lets what runs finish. Returns when nothing is left. */
void worker_finish(struct worker *w);
void worker_close(struct worker *w);

#endif
