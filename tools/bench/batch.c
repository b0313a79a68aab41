/* tools/bench/batch.c -- plain decoding of several sequences that share passes. */
#include "tools/bench/bench.h"

struct batch_run {
    size_t sequences, tokens; /* tokens: chosen by all sequences */
    int code;                 /* of the first request that failed */
    vb_error *err;
};

static int count_token(void *context, const vb_event *event)
{
    struct batch_run *r = context;
    (void)event;
    r->tokens++;
    return 0;
}

static void note_end(void *context, const vb_request_end *end)
{
    struct batch_run *r = context;
    if (end->code && !r->code) {
        r->code = end->code;
        *r->err = *end->error;
    }
}

/* Each sequence has other tokens, so that no two share cache rows. */
static int add_requests(const struct bench *b, vb_batch *batch, struct batch_run *r)
{
    int failed = 0;
    for (size_t k = 0; k < r->sequences && !failed; k++) {
        size_t first = k * b->prompt % (b->text_count - b->prompt + 1);
        vb_generate_options options = {.max_tokens = b->length, .ignore_eos = 1, .callback = count_token, .context = r};
        vb_request request = {.tokens = b->text + first, .count = b->prompt, .options = &options, .done = note_end,
                              .context = r};
        failed = vb_batch_add(batch, &request, NULL, r->err);
    }
    return failed;
}

int bench_run_batch(struct bench *b, struct bench_item *i, vb_error *err)
{
    vb_session_options session = b->c->session;
    vb_batch_options o = {.session = &session, .max_sequences = (int32_t)i->rows, .keep_apart = 1};
    struct batch_run r = {.sequences = i->rows, .err = err};
    vb_batch *batch = NULL;
    size_t left = 1;
    session.context = (int32_t)(b->prompt + b->length);
    int failed = vb_batch_open(&batch, b->c->model, &o, err) || add_requests(b, batch, &r);
    while (!failed && !r.code && left && r.tokens < r.sequences) /* the prompts; the last pass chooses the first
                                                                    tokens */
        failed = vb_batch_step(batch, &left, err);
    size_t before = r.tokens;
    double start = cli_seconds();
    while (!failed && !r.code && left)
        failed = vb_batch_step(batch, &left, err);
    i->seconds[b->rounds] = cli_seconds() - start;
    i->tokens = r.tokens - before;
    vb_batch_close(batch);
    return failed || r.code;
}
