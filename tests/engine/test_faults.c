/* tests/engine/test_faults.c -- memory that runs out: every allocation fails in its turn, and what comes back is one
 * sentence, an error code and no block that nobody owns. And a step of decoding allocates nothing. Runs in the
 * repository's root. */
#include "tests/support/engine_support.h"

#include <malloc.h>

#include "engine/template/template.h"
#include "engine/text/tokenizer.h"

/* The request to fail next. Where there are many, some are left out: all of the first `each`, then so many more. */
static long after(long fail, long each, long total) { return fail + 1 + (fail < each ? 0 : total / each); }

/* Whatever `open` asks for, from memory that runs out at request number `fail` of the counted ones. */
struct opening {
    const char *what;
    int (*open)(const struct opening *o, const vb_allocator *a, vb_error *err); /* and closes again */
    const char *dir, *draft;
    int draft_tokens;
    const char *precision;
};

static void check_failure(const struct opening *o, long fail, int code, const vb_error *err, long alive)
{
    if (code != VB_NO_MEMORY || err->code != code)
        fail_msg("%s, allocation %ld fails: code %d (in err %d), \"%s\"; wanted %d", o->what, fail, code, err->code,
                 err->message, VB_NO_MEMORY);
    if (!*err->message || strchr(err->message, '\n'))
        fail_msg("%s, allocation %ld fails: the message is not a sentence: \"%s\"", o->what, fail, err->message);
    if (alive)
        fail_msg("%s, allocation %ld fails: %ld blocks are left", o->what, fail, alive);
}

static void fail_each(const struct opening *o)
{
    struct counted all = {.fail = -1};
    vb_error err = {0};
    if (o->open(o, &(vb_allocator){counted_alloc, counted_free, &all}, &err))
        fail_msg("%s: %s", o->what, err.message);
    if (all.alive || !all.requests)
        fail_msg("%s: %ld allocations, %ld blocks are left", o->what, all.requests, all.alive);
    for (long fail = 0; fail < all.requests; fail = after(fail, 400, all.requests)) {
        if (!has_turn((size_t)fail, 3))
            continue;
        struct counted c = {.fail = fail};
        err = (vb_error){0};
        int code = o->open(o, &(vb_allocator){counted_alloc, counted_free, &c}, &err);
        check_failure(o, fail, code, &err, c.alive);
    }
    print_message("%s: %ld allocations\n", o->what, all.requests);
}

/* ---- the allocator of the options -------------------------------------------------------------------------------- */

static void see_tap(void *context, const vb_tap *tap) { (void)context, (void)tap; }
static void see_trace(void *context, const vb_trace *trace) { (void)context, (void)trace; }

static int see_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)context, (void)depth, (void)index, (void)logits, (void)hidden;
    return 0;
}

/* With all that takes memory: conventions that round and copy, taps, a trace, an evaluation. */
static int open_model_and_session(const struct opening *o, const vb_allocator *a, vb_error *err)
{
    vb_model *m;
    vb_session *s = NULL;
    int32_t token = 7;
    float bias = 0.5f;
    vb_model_options mo = {.allocator = *a, .precision = o->precision, .numa = "bind",
                           .conventions = "main-hidden=pre-norm,first-row=phantom,module-hidden=target,gate=bf16"};
    vb_session_options so = {.context = 40, .threads = 1, .drafting.method = o->draft,
                             .drafting.tokens = o->draft_tokens, .tap = see_tap, .trace = see_trace, .padded = 1,
                             .sampling = {.bias_tokens = &token, .bias_values = &bias, .bias_count = 1}};
    int code = vb_model_open(&m, o->dir, &mo, err);
    if (code) {
        assert_null(m);
        return code;
    }
    so.drafting.model = m;
    code = vb_session_open(&s, m, &so, err);
    if (code)
        assert_null(s);
    if (!code)
        code = vb_append(s, (const int32_t[]){5, 6, 7}, 3, err);
    if (!code)
        code = vb_evaluate(s, 2, see_row, NULL, err);
    vb_session_close(s);
    vb_model_close(m);
    return code;
}

static const char *const methods[] = {"none", "mtp-eagle", "mtp-vanilla", "eagle-reroll", "eagle-keep", "ngram",
                                      "draft-model"};

TEST(every_allocation_of_a_model_and_a_session_fails_in_turn)
{
    static const char *const dirs[] = {"golden/tiny/v3", "golden/tiny/v3-mtp3", "golden/tiny/glm",
                                       "golden/gguf/quantized.gguf", "golden/gguf/tiny-indexer.gguf", "golden/tale"};
    static const char *const precisions[] = {"f32", "bf16", "q8"}; /* in the others a copy of each matrix that wants
                                                                      one */
    char what[96];
    for (size_t i = 0; i < COUNT(dirs) - !have_tale(); i++)
        for (int k = 0; k < 5; k += i < 5 ? 1 : 2) { /* the first three with a draft method of the model's own each, and
                                                        a precision */
            const char *method = methods[k < 3 ? k : k + 2], *precision = precisions[k < 3 ? k : 0];
            snprintf(what, sizeof what, "%s, %s, %s", dirs[i], method, precision);
            fail_each(&(struct opening){what, open_model_and_session, dirs[i], method, k == 2 ? 15 : 2, precision});
        }
}

/* A head, or module 0, that drafts trees. */
static int draft_a_tree(const struct opening *o, const vb_allocator *a, vb_error *err)
{
    vb_model *m;
    vb_session *s = NULL;
    vb_result result;
    vb_generate_options g = {.max_tokens = 12, .ignore_eos = 1};
    vb_session_options so = {.context = 40, .threads = 1, .drafting.method = o->draft,
                             .drafting.tokens = o->draft_tokens, .drafting.tree.topk = 3,
                             .drafting.head = head_of(o->draft)};
    int code = vb_model_open(&m, o->dir, &(vb_model_options){.allocator = *a}, err);
    if (code)
        return code;
    code = vb_session_open(&s, m, &so, err);
    if (code)
        assert_null(s);
    if (!code)
        code = vb_append(s, (const int32_t[]){5, 6, 7}, 3, err);
    if (!code)
        code = vb_generate(s, &g, &result, err);
    vb_session_close(s);
    vb_model_close(m);
    return code;
}

TEST(every_allocation_of_a_head_and_of_trees_fails_in_turn)
{
    static const char *const drafts[] = {"eagle", "eagle3", "mtp-eagle", "parallel-heads"};
    for (size_t i = 0; i < COUNT(drafts); i++)
        fail_each(&(struct opening){drafts[i], draft_a_tree, "golden/tiny/v3", drafts[i], 3, NULL});
}

/* How the requests of a batch ended: with the first error. */
struct requests_end {
    int code, count;
    vb_error *err;
};

static void see_end(void *context, const vb_request_end *e)
{
    struct requests_end *all = context;
    all->count++;
    if (e->code && !all->code) {
        all->code = e->code;
        *all->err = *e->error;
    }
}

/* Three that begin alike, in a cache that is too small for all of them. */
static int run_batch(const struct opening *o, const vb_allocator *a, vb_error *err)
{
    static const int32_t prompt[] = {5, 6, 7, 8, 9, 10, 11, 12};
    vb_model *m;
    vb_batch *b;
    struct requests_end all = {.err = err};
    vb_generate_options options = {.max_tokens = 40, .ignore_eos = 1};
    vb_request q = {.tokens = prompt, .count = COUNT(prompt), .options = &options, .done = see_end, .context = &all};
    int code = vb_model_open(&m, o->dir, &(vb_model_options){.allocator = *a}, err);
    if (code)
        return code;
    vb_session_options session = {.context = 60, .threads = 1, .drafting.method = o->draft,
                                  .drafting.tokens = o->draft_tokens};
    vb_batch_options bo = {.session = &session, .cache_tokens = 100};
    code = vb_batch_open(&b, m, &bo, err);
    if (code)
        assert_null(b);
    for (int i = 0; i < 3 && !code; i++)
        code = vb_batch_add(b, &q, NULL, err);
    if (!code)
        code = vb_batch_run(b, err);
    if (!code)
        assert_int_equal(all.count, 3);
    vb_batch_close(b);
    vb_model_close(m);
    return code ? code : all.code;
}

TEST(every_allocation_of_a_batch_fails_in_turn)
{
    fail_each(&(struct opening){"a batch", run_batch, "golden/tiny/v3", "mtp-eagle", 2, NULL});
}

/* ---- a batch goes on when memory runs out once ---- */

#define REQUESTS 8

/* How each request ended: a failed one has no fingerprint. */
struct survivors {
    uint64_t fingerprint[REQUESTS];
    size_t failed, ended, rows, cached;
    vb_error err;
};

struct survivor {
    struct survivors *all;
    size_t number;
};

static int count_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct survivor *s = context;
    (void)depth, (void)index, (void)logits, (void)hidden;
    s->all->rows++;
    return 0;
}

static void survivor_ends(void *context, const vb_request_end *e)
{
    struct survivor *s = context;
    s->all->ended++;
    s->all->cached += e->result->cached_tokens;
    s->all->fingerprint[s->number] = e->code ? 0 : e->result->fingerprint;
    if (e->code) {
        s->all->failed++;
        s->all->err = *e->error;
    }
}

/* The request has what asks for memory while it is admitted: drafts, rejection, stop strings. */
static void add_survivor(vb_batch *b, const vb_model *m, struct survivor *s, const vb_tokenizer *t)
{
    static const char *const drafts[] = {"mtp-eagle", "mtp-vanilla", "draft-model", "ngram"},
                             *const stop[] = {"never said"};
    static const vb_sampling sampling = {.temperature = 0.7f, .seed = 3, .acceptance = "rejection"};
    int32_t prompt[] = {5, 6, 7, 8, 9, 10, 11, 12, (int32_t)s->number / 4};
    vb_generate_options options = {.max_tokens = 20, .ignore_eos = 1, .fingerprint = 1, .tokenizer = t, .stop = stop,
                                   .stop_count = 1};
    vb_request q = {.tokens = prompt, .count = COUNT(prompt), .sampling = &sampling,
                    .drafting = &(vb_drafting){.method = drafts[s->number % 4], .tokens = 2, .model = m},
                    .options = &options, .prompt_row = s->number % 3 == 1 ? count_row : NULL, .done = survivor_ends,
                    .context = s};
    vb_error err = {0};
    if (!vb_batch_add(b, &q, NULL, &err))
        return;
    s->all->failed++;
    s->all->ended++;
    s->all->err = err;
}

/* Pauses, sequences that are kept, rows of prompts, and a cache that is too small. */
static void run_survivors(vb_batch *b, const vb_model *m, struct survivor *each, const vb_tokenizer *t)
{
    size_t left;
    for (size_t i = 0; i < REQUESTS / 2; i++)
        add_survivor(b, m, &each[i], t);
    for (int i = 0; i < 3; i++)
        OK(vb_batch_step(b, &left, &err));
    vb_batch_pause(b, 0); /* and its rows are soon another's */
    OK(vb_batch_run(b, &err));
    for (size_t i = REQUESTS / 2; i < REQUESTS; i++)
        add_survivor(b, m, &each[i], t);
    OK(vb_batch_run(b, &err));
    vb_batch_resume(b, 0);
    OK(vb_batch_run(b, &err));
}

static int run_with_survivors(const struct opening *o, const vb_allocator *a, vb_error *err)
{
    static struct survivors wanted; /* of the first call, in which no allocation fails */
    struct survivors all = {.failed = 0};
    struct survivor each[REQUESTS];
    vb_model *m;
    vb_batch *b;
    vb_tokenizer *t;
    int code = vb_tokenizer_open(&t, "golden/tokenizer", NULL, err);
    assert_int_equal(code, VB_OK);
    code = vb_model_open(&m, o->dir, &(vb_model_options){.allocator = *a}, err);
    if (code) {
        vb_tokenizer_close(t);
        return code;
    }
    vb_session_options session = {.context = 60, .threads = 1, .prefill_chunk = 4, .drafting.model = m,
                                  .poison_cut_rows = 1};
    vb_batch_options bo = {.session = &session, .cache_tokens = 70, .keep_finished = 2};
    code = vb_batch_open(&b, m, &bo, err);
    if (!code) {
        for (size_t i = 0; i < REQUESTS; i++)
            each[i] = (struct survivor){&all, i};
        run_survivors(b, m, each, t);
        assert_int_equal(all.ended, REQUESTS);
        code = all.err.code;
        *err = all.err;
        if (!wanted.ended)
            wanted = all;
        assert_true(wanted.failed == 0 && wanted.cached > 0 && wanted.rows == 3 * 8);
    }
    vb_batch_close(b);
    vb_model_close(m);
    vb_tokenizer_close(t);
    if (all.failed > 1)
        fail_msg("one allocation failed, and %zu requests: %s", all.failed, all.err.message);
    for (size_t i = 0; i < REQUESTS && all.ended; i++)
        if (all.fingerprint[i] && all.fingerprint[i] != wanted.fingerprint[i])
            fail_msg("beside a request that failed (%s) request %zu has other bits", all.err.message, i);
    return code;
}

TEST(a_batch_loses_one_request_where_an_allocation_fails)
{
    fail_each(&(struct opening){"a batch of many kinds", run_with_survivors, "golden/tiny/v3", NULL, 0, NULL});
}

static int open_tokenizer(const struct opening *o, const vb_allocator *a, vb_error *err)
{
    struct vb_tokenizer *t;
    int32_t *ids;
    size_t count;
    int code = tokenizer_open(&t, o->dir, a, err);
    if (code) {
        assert_null(t);
        return code;
    }
    static const char text[] = "Once upon a time, 1234 cats\n\n  said \"hello\" \xe2\x80\x94 and that was that.";
    code = tokenizer_encode(t, text, sizeof text - 1, 1, &ids, &count, err);
    if (!code)
        vb_free(a, ids);
    tokenizer_close(t);
    return code;
}

TEST(every_allocation_of_a_tokenizer_fails_in_turn)
{
    fail_each(&(struct opening){.what = "golden/tokenizer", .open = open_tokenizer, .dir = "golden/tokenizer"});
    fail_each(&(struct opening){.what = "golden/tiktoken", .open = open_tokenizer, .dir = "golden/tiktoken"});
    if (have_tale())
        fail_each(&(struct opening){.what = "golden/tale, tokenizer", .open = open_tokenizer, .dir = "golden/tale"});
}

static int open_tensors(const struct opening *o, const vb_allocator *a, vb_error *err)
{
    vb_tensors *t;
    int code = vb_tensors_open(&t, o->dir, a, err);
    if (code)
        assert_null(t);
    vb_tensors_close(t);
    return code;
}

TEST(every_allocation_of_tensors_fails_in_turn)
{
    static const char *const paths[] = {"golden/tiny/v3-mtp3", "golden/tiny/v3/model.safetensors",
                                        "golden/gguf/tiny-quantized.gguf"};
    for (size_t i = 0; i < 3; i++)
        fail_each(&(struct opening){.what = paths[i], .open = open_tensors, .dir = paths[i]});
}

static int open_template(const struct opening *o, const vb_allocator *a, vb_error *err)
{
    struct vb_template *t;
    char *source, *text;
    size_t size;
    json_t *variables = json_pack("{s:[{s:s,s:s},{s:s,s:[{s:{s:s,s:{s:[i,n]}}}]},{s:s,s:s}],s:[s],s:b}", "messages",
                                  "role", "user", "content", "a long enough word", "role", "assistant", "tool_calls",
                                  "function", "name", "f", "arguments", "x", 1, "role", "tool", "content", "said",
                                  "tools", "none", "add_generation_prompt", 1);
    assert_int_equal(vb_read_file(NULL, o->dir, &source, &size, err), 0);
    int code = template_parse(&t, source, size, o->dir, a, err);
    vb_free(NULL, source);
    if (code)
        assert_null(t);
    else if (!(code = template_render(t, variables, &text, &size, err)))
        vb_free(a, text);
    template_close(t);
    json_decref(variables);
    return code;
}

TEST(every_allocation_of_a_chat_template_fails_in_turn)
{
    fail_each(&(struct opening){.what = "golden/chat/chatml.jinja", .open = open_template,
                                .dir = "golden/chat/chatml.jinja"});
}

/* ---- jansson, which takes its functions for the whole process ---------------------------------------------------- */

static struct counted json_memory;

static void *json_alloc(size_t size) { return counted_alloc(&json_memory, size); }
static void json_free(void *block) { counted_free(&json_memory, block); }

/* Weaker than for our own memory: where jansson's lexer runs out, it loses a character and goes on: then the syntax
 * is wrong, or a name. (After a backslash it ends the process by an assert, so no tokenizer here.) */
static void fail_each_of_jansson(const char *dir)
{
    vb_model *m;
    vb_error err = {0};
    long no_memory = 0, total;
    json_set_alloc_funcs(json_alloc, json_free);
    json_memory = (struct counted){.fail = -1};
    vb_model_close(open_model(dir));
    total = json_memory.requests;
    assert_true(total > 0 && json_memory.alive == 0);
    for (long fail = 0; fail < total; fail = after(fail, 200, total)) {
        struct counted c = {.fail = -1};
        json_memory = (struct counted){.fail = fail};
        err = (vb_error){0};
        vb_model_options o = {.allocator = {counted_alloc, counted_free, &c}};
        int code = vb_model_open(&m, dir, &o, &err);
        no_memory += code == VB_NO_MEMORY;
        if (!code)
            vb_model_close(m);
        else if (err.code != code || !*err.message || strchr(err.message, '\n') || m)
            fail_msg("%s, allocation %ld of jansson fails: code %d, \"%s\"", dir, fail, code, err.message);
        if (c.alive || json_memory.alive)
            fail_msg("%s, allocation %ld of jansson fails: %ld blocks of ours and %ld of jansson's are left", dir, fail,
                     c.alive, json_memory.alive);
    }
    json_set_alloc_funcs(malloc, free);
    print_message("%s: %ld allocations of jansson, %ld times no memory\n", dir, total, no_memory);
    assert_true(no_memory > 50);
}

TEST(no_allocation_of_jansson_that_fails_leaves_a_block_or_a_model_behind)
{
    fail_each_of_jansson("golden/tiny/v3");
    fail_each_of_jansson("golden/tiny/v3-mtp3");
    fail_each_of_jansson("golden/tiny/glm");
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

struct watched {
    struct counted *memory;
    long first, last;
    size_t tokens, bytes_first, bytes_last;
};

static size_t bytes_of_malloc(void)
{
#if defined(__GLIBC__)
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
#else
    return 0;
#endif
}

static int watch(void *context, const vb_event *e)
{
    struct watched *w = context;
    (void)e;
    w->last = w->memory->requests;
    w->bytes_last = bytes_of_malloc();
    if (w->tokens++ == 0) {
        w->first = w->last;
        w->bytes_first = w->bytes_last;
    }
    return 0;
}

TEST(a_step_of_decoding_allocates_nothing)
{
    static const char *const dirs[] = {"golden/tiny/v3", "golden/tiny/v3-mtp3", "golden/tiny/glm", "golden/tale"};
    for (size_t i = 0; i < COUNT(dirs) - !have_tale(); i++)
        for (int k = 0; k < 2 * (int)COUNT(methods); k++) {
            struct counted c = {.fail = -1};
            vb_model *m;
            vb_session *s;
            int32_t prompt[40];
            vb_model_options mo = {.allocator = {counted_alloc, counted_free, &c}};
            vb_session_options o = {.context = 100, .threads = 1, .prefill_chunk = 7,
                                    .drafting.method = methods[k % (int)COUNT(methods)],
                                    .drafting.tokens = k < (int)COUNT(methods) ? 2 : 15, .padded = k % 3 == 0,
                                    .sampling = {.temperature = (float)(k % 2), .top_p = 0.9f}};
            OK(vb_model_open(&m, dirs[i], &mo, &err));
            random_tokens(m, 1, prompt, COUNT(prompt));
            o.drafting.model = m;
            s = open_session(m, &o, prompt, COUNT(prompt));
            struct watched w = {.memory = &c};
            vb_generate_options g = {.max_tokens = 50, .ignore_eos = 1, .fingerprint = 1, .callback = watch,
                                     .context = &w};
            vb_result result;
            long before = c.requests, alive = c.alive;
            OK(vb_generate(s, &g, &result, &err));
            assert_int_equal(w.tokens, 50);
            if (w.last != w.first || w.bytes_last != w.bytes_first)
                fail_msg("%s, %s, K %d: %ld allocations between the first token and the last, %zu bytes more", dirs[i],
                         o.drafting.method, o.drafting.tokens, w.last - w.first, w.bytes_last - w.bytes_first);
            if (c.requests != before || c.alive != alive)
                fail_msg("%s, %s: vb_generate made %ld allocations, %ld are left", dirs[i], o.drafting.method,
                         c.requests - before, c.alive - alive);

            c.fail = c.requests; /* so it goes on where there is no memory */
            size_t count = s->count;
            g.max_tokens = 5;
            OK(vb_generate(s, &g, &result, &err));
            assert_int_equal(s->count, count + 5);
            vb_session_close(s);
            vb_model_close(m);
            assert_int_equal(c.alive, 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_of_a_model_and_a_session_fails_in_turn),
        cmocka_unit_test(every_allocation_of_a_head_and_of_trees_fails_in_turn),
        cmocka_unit_test(every_allocation_of_a_batch_fails_in_turn),
        cmocka_unit_test(a_batch_loses_one_request_where_an_allocation_fails),
        cmocka_unit_test(every_allocation_of_a_tokenizer_fails_in_turn),
        cmocka_unit_test(every_allocation_of_tensors_fails_in_turn),
        cmocka_unit_test(every_allocation_of_a_chat_template_fails_in_turn),
        cmocka_unit_test(no_allocation_of_jansson_that_fails_leaves_a_block_or_a_model_behind),
        cmocka_unit_test(a_step_of_decoding_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
