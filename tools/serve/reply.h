/* tools/serve/reply.h -- what a job said, as OpenAI's JSON: a whole answer, or events of a stream. The job's lock is held. */
#ifndef VB_SERVE_REPLY_H
#define VB_SERVE_REPLY_H

#include "tools/serve/job.h"
#include "tools/serve/writer.h"

/* {"error": {"message", "type", "param", "code"}} */
void reply_failure(struct serve_writer *w, const struct failure *f);

/* The answer of a job that is over and whose choices all have a result. */
void reply_whole(struct serve_writer *w, struct serve_job *job);
/* The first choice that failed, or NULL. */
const struct serve_choice *reply_failed(const struct serve_job *job);

/* The events that are due: what was published and not sent yet, one event for each pass of a sequence. With `end` behind the last one, the
 * stream is over. Stops when w holds more than `most` bytes. */
void reply_events(struct serve_writer *w, struct serve_job *job, size_t most, int *end);

#endif
