/* tools/trace/async.h -- the bookkeeping of asynchronous scheduling (trace --schedule async), simulated beside the
 * passes that the engine ran.
 *
 * An asynchronous scheduler plans a round before it knows the result of the round before. vLLM
 * (vllm/v1/core/sched/scheduler.py at commit 00024d3, async_scheduler.py at 014b235) plans K placeholders (-1) for the
 * drafts, assumes that all drafts in flight are accepted, and later subtracts the rejected ones from
 * num_computed_tokens and from num_output_placeholders. SGLang's overlap schedule
 * (python/sglang/srt/speculative/eagle_info_v2.py at 006b0e3, managers/scheduler_output_processor_mixin.py at 004ec01)
 * reserves cache rows for two rounds after the last length that it knows (kv_committed_len).
 *
 * Round r is planned, then the result of round r - 1 is processed, then round r + 1 is planned. */
#ifndef VB_TOOLS_TRACE_ASYNC_H
#define VB_TOOLS_TRACE_ASYNC_H

#include <jansson.h>
#include <stdio.h>

/* The bookkeeping of one sequence. */
struct async_book {
    long long drafts;       /* K: number of placeholders for drafts in a round */
    long long prompt;       /* number of prompt tokens */
    long long end;          /* prompt and output together have at most this many tokens */
    /* vLLM's counts, with its names: num_tokens, num_computed_tokens, num_output_placeholders; and the rows that
     * allocate_slots has reserved */
    long long tokens, computed, placeholders, reserved;
    long long committed, allocated; /* SGLang's kv_committed_len and kv_allocated_len */
    long long produced;     /* number of output tokens, also those that the scheduler does not know yet */
    json_t *flying;         /* the `async` object of the round whose result is not processed yet; a borrowed
                               reference */
    int flying_decodes;     /* that round does not compute a prompt */
    long long flying_drafts, flying_accepted, flying_tokens;
};

/* Adds the next pass of the target, or the sequence's part of it, to the bookkeeping. Sets its key `async`. */
void async_add(struct async_book *b, json_t *pass);
/* Processes the last result. Says in the newest `async` object whether the scheduler has planned a round in vain. */
void async_end(struct async_book *b);

/* Prints the `async` objects of a trace as a table. */
void async_table(FILE *to, const json_t *passes);

#endif
