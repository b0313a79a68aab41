/* tools/serve/reply.h -- answers in OpenAI's JSON format: one whole answer, or the events of a stream.
 *
 * If a function has a job as a parameter, its caller holds the job's lock. */
#ifndef VB_SERVE_REPLY_H
#define VB_SERVE_REPLY_H

#include "tools/serve/job.h"
#include "tools/serve/writer.h"

/* Writes {"error": {"message", "type", "param", "code"}}. */
void reply_failure(struct serve_writer *w, const struct failure *f);

/* Writes the whole answer of a job. All its choices must be over, and none may have failed. */
void reply_whole(struct serve_writer *w, struct serve_job *job);
/* Returns the first choice that failed, or NULL if none has. */
const struct serve_choice *reply_failed(const struct serve_job *job);

/* Writes events for all tokens that are published and not sent yet, one event for each pass of a sequence. No event is
 * begun when w already has `most` bytes. Sets *end to 1 if the last event of the stream was written, else to 0. */
void reply_events(struct serve_writer *w, struct serve_job *job, size_t most, int *end);

#endif
