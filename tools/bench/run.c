/* tools/bench/run.c -- one run of an item. */
#include <string.h>

#include "simd/machine.h"
#include "tools/bench/bench.h"

#define MACHINE_STEPS 4000000          /* takes tens of milliseconds */
#define SLOW 0.02                      /* seconds for a 64th of the steps: an emulator, which needs no more of them */
#define READ_AGAIN ((size_t)256 << 20) /* bytes that are read at least, to measure how fast the CPU caches deliver
                                          them */

static int no_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)context, (void)depth, (void)index, (void)logits, (void)hidden;
    return 0;
}

struct share { /* the work of an item that measures the machine: one task for each thread */
    const struct bench *b;
    enum bench_kind kind;
    size_t steps, bytes; /* READ: `bytes` bytes are read `steps` times */
    double done[256];
};

static void one_share(void *arg, size_t task, int thread)
{
    struct share *s = arg;
    const struct bench *b = s->b;
    size_t part = s->bytes / (size_t)b->threads & ~(size_t)255;
    (void)thread;
    s->done[task] = 0;
    for (size_t i = 0; s->kind == BENCH_READ && i < s->steps; i++)
        s->done[task] += machine_read((const char *)b->data + task * part, part) ? (double)part : (double)part + 1e-9;
    if (s->kind != BENCH_READ)
        s->done[task] = s->kind == BENCH_FMA ? machine_fma(b->isa, s->steps)
                        : s->kind == BENCH_BF16 ? machine_bf16(s->steps)
                                                : machine_integers(b->isa, s->kind == BENCH_INT8 ? 8 : 4, s->steps);
}

/* Returns the number of bytes that were read, or of operations that were done. */
static double run_machine(const struct bench *b, enum bench_kind kind, size_t steps, size_t bytes)
{
    struct op_ctx cx = {.threads = b->threads, .thread_cost = 1};
    struct share s = {.b = b, .kind = kind, .steps = steps, .bytes = bytes};
    double done = 0;
    op_parallel(&cx, (size_t)b->threads, 1e9, one_share, &s);
    for (int i = 0; i < b->threads; i++)
        done += s.done[i];
    return done;
}

/* Measures the peak of `kind`. Returns the number of operations that were done in *seconds. */
static double run_peak(const struct bench *b, enum bench_kind kind, size_t steps, double *seconds)
{
    for (size_t n = steps / 64;; n = steps) {
        double start = cli_seconds(), done = run_machine(b, kind, n, 0);
        *seconds = cli_seconds() - start;
        if (n == steps || *seconds > SLOW)
            return done;
    }
}

double bench_pass_bytes(const struct bench_item *i)
{
    return i->work.bytes / (double)(i->kind == BENCH_GENERATE && i->forwards ? i->forwards : 1);
}

/* Reads a block of `bytes` bytes, often enough to measure the time. If the CPU caches can hold the block, it is in them
 * after the first time. */
static double read_bandwidth(const struct bench *b, double bytes)
{
    size_t block = bytes < (double)b->bytes ? (size_t)bytes : b->bytes, least = (size_t)b->threads * 4096;
    block = block > least ? block : least;
    size_t steps = 1 + (block < b->bytes ? READ_AGAIN / block : 0);
    if (block < b->bytes)
        run_machine(b, BENCH_READ, 1, block);
    double start = cli_seconds(), done = run_machine(b, BENCH_READ, steps, block);
    return done / (cli_seconds() - start);
}

/* Returns whether the CPU caches cannot hold the weights. Between two passes of an MTP module, the target's pass reads
 * its weights too. */
static int is_beyond_caches(const struct bench *b, const struct bench_item *i)
{
    double bytes = bench_pass_bytes(i);
    for (size_t k = 0; i->module && k < b->count; k++)
        if (b->item[k].kind == BENCH_PASS && b->item[k].rows == 1 && b->item[k].depth == i->depth && !b->item[k].module)
            bytes += b->item[k].work.bytes;
    return bytes > BENCH_BEYOND_CACHES;
}

/* Measures the speed of the machine just before an item, for the comparison with the item. Measuring the read bandwidth
 * removes other data from the CPU caches. Therefore an item whose weights fit in the caches uses the bandwidth that was
 * measured last. With --plan, it uses the bandwidth for a block as large as its weights, from the caches that hold
 * it. */
static void look_at_machine(struct bench *b, struct bench_item *i)
{
    double seconds, done = run_peak(b, BENCH_FMA, MACHINE_STEPS / 4, &seconds);
    b->fma = done / seconds;
    if (is_beyond_caches(b, i))
        b->read = read_bandwidth(b, (double)b->bytes);
    i->read[b->rounds] = i->times && !is_beyond_caches(b, i) ? read_bandwidth(b, bench_pass_bytes(i)) : b->read;
    i->fma[b->rounds] = b->fma;
    if (b->gpu_copies && i->work.gpu_bytes > 0) {
        done = bench_gpu_copy(b, &seconds);
        i->gpu[b->rounds] = done / seconds;
    }
}

static void run_of_machine(struct bench *b, struct bench_item *i)
{
    if (i->kind == BENCH_GPU) {
        i->work.bytes = bench_gpu_copy(b, &i->seconds[b->rounds]);
        return;
    }
    if (i->kind != BENCH_READ) {
        i->work.bytes = run_peak(b, i->kind, MACHINE_STEPS, &i->seconds[b->rounds]);
        return;
    }
    double start = cli_seconds();
    i->work.bytes = run_machine(b, BENCH_READ, 1, b->bytes);
    i->seconds[b->rounds] = cli_seconds() - start;
    b->read = i->work.bytes / i->seconds[b->rounds];
}

void bench_clock_on(struct bench *b, const struct bench_item *i, struct pass *pass)
{
    if (!i->times)
        return;
    pass->cx.clock = &b->clock;
    op_clock_start(&b->clock, b->threads, PART_OUTSIDE);
}

void bench_clock_off(struct bench *b, struct bench_item *i, struct pass *pass)
{
    if (!i->times)
        return;
    op_clock_next(&b->clock, PART_OUTSIDE);
    memcpy(&i->times[b->rounds], b->clock.part, sizeof *i->times);
    i->seconds[b->rounds] = 0;
    for (int part = 0; part < PASS_PARTS; part++)
        i->seconds[b->rounds] += b->clock.part[part].seconds;
    pass->cx.clock = NULL;
}

static int run_prefill(struct bench *b, struct bench_item *i, vb_error *err)
{
    vb_session_options o = b->c->session;
    vb_session *s = NULL;
    vb_result r;
    vb_generate_options g = {.max_tokens = 1, .ignore_eos = 1};
    o.context = (int32_t)i->rows + 1;
    o.prefill = i->onednn ? "onednn" : i->expanded ? "expanded" : NULL;
    if (vb_session_open(&s, b->c->model, &o, err))
        return 1;
    int failed = vb_append(s, b->text, i->rows, err);
    double start = cli_seconds();
    bench_clock_on(b, i, s->pass);
    failed = failed || vb_generate(s, &g, &r, err);
    i->seconds[b->rounds] = cli_seconds() - start;
    bench_clock_off(b, i, s->pass);
    vb_session_close(s);
    return failed;
}

/* Before the pass, the cache holds `depth` rows. The pass computes `rows` more rows, all with logits. Then these rows
 * are removed from the cache. */
static int run_pass(struct bench *b, struct bench_item *i, vb_error *err)
{
    vb_session_options o = b->c->session;
    int failed = 0;
    if (!i->session) {
        o.context = (int32_t)(i->depth + i->rows + 1);
        failed = vb_session_open(&i->session, b->c->model, &o, err) ||
                 vb_append(i->session, b->text, i->depth + 1, err) || vb_evaluate(i->session, 0, no_row, NULL, err);
    }
    failed = failed || vb_append(i->session, b->text + i->depth + 1, i->rows - 1, err);
    if (failed)
        return 1;
    double start = cli_seconds();
    bench_clock_on(b, i, i->session->pass);
    failed = vb_evaluate(i->session, 0, no_row, NULL, err);
    i->seconds[b->rounds] = cli_seconds() - start;
    bench_clock_off(b, i, i->session->pass);
    return failed || vb_truncate(i->session, i->depth + 1, err);
}

/* Computes the number of bytes that the draft model reads for one draft after the same prompt, including its output
 * head. */
static int draft_pass_bytes(const struct bench *b, double *bytes, vb_error *err)
{
    const vb_model *m = b->c->session.drafting.model;
    struct bench_counter *counter = bench_counter_open(m, NULL, b->prompt);
    vb_session_options o = b->c->session;
    vb_generate_options g = {.max_tokens = 9, .ignore_eos = 1};
    vb_result r = {0};
    vb_session *s = NULL;
    int32_t prompt[64];
    for (size_t i = 0; i < b->prompt && i < 64; i++)
        prompt[i] = b->text[i] % vb_vocab_size(m);
    o.tap = bench_count;
    o.tap_context = counter;
    o.context = (int32_t)b->prompt + 9;
    int failed = vb_session_open(&s, m, &o, err) || vb_append(s, prompt, b->prompt, err) || vb_generate(s, &g, &r, err);
    vb_session_close(s);
    *bytes = bench_counter_close(counter).bytes / (double)(r.forwards ? r.forwards : 1);
    return failed;
}

/* Draft heads are no layers of the model. Their bytes are those that the draft method tells. */
static void count_target(void *counter, const vb_tap *tap)
{
    if (tap->depth < 0)
        bench_count(counter, tap);
}

static int run_generate(struct bench *b, struct bench_item *i, vb_error *err)
{
    vb_session_options o = b->c->session;
    vb_session *s = NULL;
    vb_result r;
    vb_generate_options g = {.max_tokens = b->length, .ignore_eos = 1};
    struct bench_counter *counter = b->warm ? bench_counter_open(b->c->model, b->c->session.drafting.vocab, b->prompt)
                                            : NULL;
    vb_draft_method method;
    vb_draft_method_find(&method, i->draft, NULL);
    if (counter) {
        o.tap = method.needs_head ? count_target : bench_count;
        o.tap_context = counter;
    }
    o.context = (int32_t)(b->prompt + b->length);
    o.drafting.method = i->draft;
    o.drafting.tokens = i->K;
    o.drafting.tree.topk = i->topk;
    o.drafting.tree.nodes = i->topk ? o.drafting.tree.nodes : 0;
    int failed = vb_session_open(&s, b->c->model, &o, err);
    if (counter && s)
        s->pass->arithmetic.tensor_cores = 0; /* the CPU counts */
    if (!failed && i->force >= 0)
        bench_force(s, b->plain, b->prompt + b->length, i->force);
    failed = failed || vb_append(s, b->text, b->prompt, err) || vb_generate(s, &g, &r, err);
    if (!failed) {
        i->seconds[b->rounds] = r.decode_seconds;
        i->tokens = r.tokens - 1; /* the pass over the prompt chooses the first token */
        i->forwards = r.forwards;
        if (!b->plain[b->prompt]) /* the first item is plain decoding; forced drafts use its tokens */
            memcpy(b->plain, vb_tokens(s, &(size_t){0}), (b->prompt + b->length) * sizeof *b->plain);
    }
    double of_head = !failed && s->type && s->type->weight_bytes ? (double)s->type->weight_bytes(s->drafter) : 0.0;
    vb_session_close(s);
    if (counter)
        i->work = bench_counter_close(counter);
    if (counter && of_head > 0.0)
        /* the head computes each level of a tree in one pass */
        i->work.bytes += of_head * (double)(i->topk ? r.forwards * (size_t)i->K : r.drafted);
    if (counter && !failed && i->draft == draft_model.name) { /* the taps do not receive the passes of the draft
                                                                 model */
        double bytes;
        failed = draft_pass_bytes(b, &bytes, err);
        i->work.bytes += bytes * (double)r.drafted;
    }
    return failed;
}

static int run_line(struct bench *b, struct bench_item *i, vb_error *err)
{
    int failed = 0;
    if (i->kind == BENCH_PREFILL)
        return run_prefill(b, i, err);
    if (i->kind == BENCH_PASS)
        return i->module ? bench_run_module(b, i, err) : run_pass(b, i, err);
    if (i->kind == BENCH_GENERATE)
        return run_generate(b, i, err);
    double start = cli_seconds();
    if (i->kind == BENCH_LINEAR)
        failed = bench_run_linear(b, i, err);
    else
        bench_run_attention(b, i);
    i->seconds[b->rounds] = cli_seconds() - start;
    return failed;
}

int bench_run(struct bench *b, struct bench_item *i, vb_error *err)
{
    if (i->kind < BENCH_PREFILL) {
        run_of_machine(b, i);
        return 0;
    }
    if (i->kind == BENCH_BATCH) /* is compared with other decoding, not with the machine */
        return bench_run_batch(b, i, err);
    look_at_machine(b, i);
    /* If the CPU caches can hold the weights, run the item once before it is measured: the items for the machine have
     * read other memory since its last run. */
    if (!b->warm && !is_beyond_caches(b, i) && run_line(b, i, err))
        return 1;
    return run_line(b, i, err);
}
