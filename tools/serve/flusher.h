/* tools/serve/flusher.h -- the flusher: a thread that resumes the connections of streams for which the worker has
 * published tokens.
 *
 * To wake another thread takes the worker about 20 microseconds, and a very small model computes a pass in 200.
 * Therefore the worker only puts the job on the flusher's list. The flusher resumes all listed connections, and then
 * waits for some milliseconds before it looks at its list again. So tokens of several fast passes are sent together.
 * Where a pass takes longer than that, the flusher sends the tokens of each pass at once. */
#ifndef VB_SERVE_FLUSHER_H
#define VB_SERVE_FLUSHER_H

#include "tools/serve/job.h"

struct flusher;

/* Starts the thread, which calls resume(job) for each listed job, without job->lock. Returns 0 if memory or a thread is
 * missing. */
int flusher_open(struct flusher **out, void (*resume)(struct serve_job *job));
/* Puts a job on the list, which holds a reference to the job until its connection was resumed. Call this with job->lock
 * held. */
void flusher_add(struct flusher *f, struct serve_job *job);
/* Empties the list and ends the thread. f may be NULL. */
void flusher_close(struct flusher *f);

#endif
