/* tests/engine/test_routes.c -- forced and recorded routes. Forced routes that equal the chosen ones change no bit, and
 * with any forced routes no bit depends on chunks, drafts, threads, batches, shared rows or saved files. Runs in the
 * repository's root. */
#include "tests/support/batch.h"
#include "tests/support/tiny.h"

#include <math.h>

static const char *const checkpoints[] = {TINY_CHECKPOINTS(TINY_NAME)};
static const int modules[] = {TINY_CHECKPOINTS(TINY_MODULES)};

#define PROMPT 19
#define NEW 20
#define TOKENS (PROMPT + NEW)

struct copy {
    vb_routes routes;
    int32_t *experts;
};

static size_t row_size(const vb_routes *r) { return (size_t)r->layers * (size_t)r->top_k; }

static struct copy copy_of(const vb_session *s)
{
    struct copy c;
    assert_true(vb_session_routes(s, &c.routes));
    size_t bytes = c.routes.tokens * row_size(&c.routes) * sizeof *c.experts;
    c.experts = malloc(bytes);
    assert_non_null(c.experts);
    memcpy(c.experts, c.routes.experts, bytes);
    c.routes.experts = c.experts;
    return c;
}

static int32_t num_experts(const vb_model *m) { return m->config.n_routed_experts; }

/* Routes that no router chose: each token takes random experts. */
static struct copy random_routes(const vb_model *m, size_t tokens, uint64_t seed)
{
    struct copy c;
    vb_model_routes(m, &c.routes);
    c.routes.tokens = tokens;
    c.routes.experts = c.experts = calloc(tokens * row_size(&c.routes), sizeof *c.experts);
    assert_non_null(c.experts);
    for (size_t i = 0; i < tokens * (size_t)c.routes.layers; i++)
        for (int32_t k = 0, first = (int32_t)random_below(&seed, (uint64_t)num_experts(m)); k < c.routes.top_k; k++)
            c.experts[i * (size_t)c.routes.top_k + (size_t)k] = (first + 3 * k) % num_experts(m);
    return c;
}

/* Both have the same experts for the first `tokens` tokens in all MoE layers; a's are in ascending order. */
static void check_routes(const char *what, const vb_model *m, const vb_routes *a, const vb_routes *b, size_t tokens)
{
    assert_true(a->tokens >= tokens && b->tokens >= tokens && row_size(a) == row_size(b));
    for (size_t t = 0; t < tokens; t++)
        for (int32_t l = 0; l < a->layers; l++)
            for (int32_t i = 0; i < a->top_k && vb_is_moe_layer(m, l); i++) {
                const int32_t *x = a->experts + t * row_size(a) + l * a->top_k,
                              *y = b->experts + t * row_size(b) + l * b->top_k;
                int found = 0;
                for (int32_t j = 0; j < b->top_k; j++)
                    found |= y[j] == x[i];
                if (!found || (i && x[i] <= x[i - 1]))
                    fail_msg("%s: token %zu, layer %d: expert %d is wrong or at the wrong place", what, t, l, x[i]);
            }
}

static vb_session_options variant(size_t i, int has_modules)
{
    static const char *const methods[] = {"none", "ngram", "mtp-eagle", "mtp-vanilla", "mtp-eagle", "eagle-reroll"};
    vb_session_options o = {.context = TOKENS + 1, .exact_threads = 1, .threads = 1 + (int32_t)(i % 3),
                            .record_routes = 1, .poison_cut_rows = 1};
    o.prefill_chunk = (int32_t[]){0, 1, 4, 7, 19, 3}[i];
    o.drafting.method = has_modules || i < 2 ? methods[i] : methods[i % 2];
    o.drafting.tokens = 3;
    o.isa = i == 1 ? "scalar" : NULL;
    if (has_modules && i == 4)
        o.drafting.tree = (vb_tree_shape){.topk = 3, .nodes = 7};
    return o;
}

static void compare_variants(const vb_model *m, int has_modules, const int32_t *prompt, const struct copy *forced,
                             const struct record *wanted)
{
    static struct record got;
    for (size_t i = 0; i < 6; i++) {
        vb_session_options o = variant(i, has_modules);
        char what[96];
        snprintf(what, sizeof what, "variant %zu, draft %s", i, o.drafting.method);
        o.routes = forced->routes;
        vb_session *s = open_session(m, &o, prompt, PROMPT);
        generate(s, NEW, &got);
        check_same(what, &got, wanted);
        struct copy taken = copy_of(s);
        assert_int_equal(taken.routes.tokens, TOKENS - 1);
        check_routes(what, m, &taken.routes, &forced->routes,
                     TOKENS - 1 < forced->routes.tokens ? TOKENS - 1 : forced->routes.tokens);
        free(taken.experts);
        vb_session_close(s);
    }
}

static void the_routes_that_were_chosen_change_no_bit(void **unused)
{
    (void)unused;
    for (size_t c = 0; c < TINY_COUNT; c++) {
        static struct record plain;
        int32_t prompt[PROMPT];
        vb_model *m = open_tiny(checkpoints[c]);
        vb_session_options o = {.context = TOKENS + 1, .threads = 1, .record_routes = 1};
        random_tokens(m, 7 + c, prompt, PROMPT);
        vb_session *s = open_session(m, &o, prompt, PROMPT);
        generate(s, NEW, &plain);
        struct copy routes = copy_of(s);
        compare_variants(m, modules[c] > 0, prompt, &routes, &plain);
        free(routes.experts);
        vb_session_close(s);
        vb_model_close(m);
    }
}

static void other_routes_change_the_output_and_are_the_same_for_every_setting(void **unused)
{
    (void)unused;
    for (size_t c = 0; c < TINY_COUNT; c++) {
        static struct record plain, forced;
        int32_t prompt[PROMPT];
        vb_model *m = open_tiny(checkpoints[c]);
        struct copy routes = random_routes(m, PROMPT + NEW / 2, c);
        vb_session_options o = {.context = TOKENS + 1, .threads = 1, .routes = routes.routes};
        random_tokens(m, 7 + c, prompt, PROMPT);
        run_plain(m, NULL, prompt, PROMPT, NEW, &plain);
        run(m, &o, prompt, PROMPT, NEW, &forced);
        assert_true(forced.row[0] != plain.row[0]);
        compare_variants(m, modules[c] > 0, prompt, &routes, &forced);
        free(routes.experts);
        vb_model_close(m);
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

struct gate {
    float scores[512], weights[16];
    int32_t experts[16];
    size_t checked, chosen, E;
    double factor;
};

/* DeepSeek-V3: the weights are s / sum of s over the forced experts, times the factor. */
static void see_gate(void *context, const vb_tap *t)
{
    struct gate *g = context;
    const char *end = strrchr(t->name, '.');
    if (strstr(t->name, "mlp.gate.scores"))
        memcpy(g->scores, t->data, t->inner * sizeof(float));
    if (strstr(t->name, "mlp.gate.experts"))
        memcpy(g->experts, t->data, t->inner * sizeof(float));
    if (strcmp(end, ".weights") || t->depth >= 0)
        return;
    double sum = 0;
    for (size_t i = 0; i < t->inner; i++)
        sum += (double)g->scores[g->experts[i]];
    for (size_t i = 0; i < t->inner; i++) {
        double wanted = (double)g->scores[g->experts[i]] / sum * g->factor, got = (double)((const float *)t->data)[i];
        if (fabs(got - wanted) > 1e-6 * fabs(wanted))
            fail_msg("%s: the weight of expert %d is %g, wanted %g", t->name, g->experts[i], got, wanted);
        g->checked++;
    }
}

static void weights_come_from_the_scores_of_the_forced_experts(void **unused)
{
    (void)unused;
    static struct record r;
    vb_model *m = open_tiny("v3");
    struct gate gate = {.factor = m->config.routed_scaling_factor};
    struct copy routes = random_routes(m, PROMPT, 5);
    vb_session_options o = {.context = TOKENS, .tap = see_gate, .tap_context = &gate, .routes = routes.routes};
    int32_t prompt[PROMPT];
    random_tokens(m, 7, prompt, PROMPT);
    run(m, &o, prompt, PROMPT, 1, &r);
    assert_int_equal(gate.checked % (PROMPT * (size_t)routes.routes.top_k), 0);
    assert_true(gate.checked > 0);
    free(routes.experts);
    vb_model_close(m);
}

/* ---- -1, cutting, evaluating ------------------------------------------------------------------------------------- */

static void minus_one_leaves_the_choice_to_the_router(void **unused)
{
    (void)unused;
    static struct record plain, got;
    vb_model *m = open_tiny("v3-mtp3");
    struct copy routes = random_routes(m, PROMPT, 5);
    int32_t prompt[PROMPT];
    random_tokens(m, 7, prompt, PROMPT);
    run_plain(m, NULL, prompt, PROMPT, NEW, &plain);
    memset(routes.experts, 0xff, PROMPT * row_size(&routes.routes) * sizeof *routes.experts);
    vb_session_options o = {.context = TOKENS + 1, .routes = routes.routes};
    run(m, &o, prompt, PROMPT, NEW, &got);
    check_same("all are -1", &got, &plain);
    free(routes.experts);
    vb_model_close(m);
}

static int ignore_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)context, (void)depth, (void)index, (void)logits, (void)hidden;
    return 0;
}

static void evaluating_and_cutting_keep_routes(void **unused)
{
    (void)unused;
    vb_model *m = open_tiny("v3");
    int32_t prompt[PROMPT];
    vb_routes routes;
    vb_session_options o = {.context = TOKENS, .record_routes = 1, .prefill_chunk = 4};
    random_tokens(m, 7, prompt, PROMPT);
    vb_session *s = open_session(m, &o, prompt, PROMPT);
    OK(vb_evaluate(s, 0, ignore_row, NULL, &err));
    struct copy whole = copy_of(s);
    assert_int_equal(whole.routes.tokens, PROMPT);
    OK(vb_truncate(s, 9, &err));
    assert_true(vb_session_routes(s, &routes) && routes.tokens <= 9);
    OK(vb_append(s, prompt + 9, PROMPT - 9, &err));
    OK(vb_evaluate(s, 0, ignore_row, NULL, &err));
    struct copy again = copy_of(s);
    assert_int_equal(again.routes.tokens, PROMPT);
    check_routes("after a cut", m, &again.routes, &whole.routes, PROMPT);
    free(whole.experts);
    free(again.experts);
    vb_session_close(s);
    vb_session_options without = {.context = 4};
    s = open_session(m, &without, prompt, 2);
    assert_false(vb_session_routes(s, &routes));
    assert_true(!routes.experts && !routes.tokens);
    vb_session_close(s);
    vb_model_close(m);
}

/* ---- MTP depths -------------------------------------------------------------------------------------------------- */

struct modules {
    const vb_routes *forced;
    size_t seen;
};

static void see_experts(void *context, const vb_tap *t)
{
    struct modules *m = context;
    const vb_routes *f = m->forced;
    if (t->depth < 0 || !strstr(t->name, ".mlp.gate.experts"))
        return;
    for (size_t i = 0; i < t->rows; i++, m->seen++)
        for (size_t k = 0; k < t->inner; k++) {
            const int32_t *wanted = f->experts +
                                    ((size_t)t->row[i].index * (size_t)f->layers + 3 + (size_t)t->depth) * t->inner;
            int found = 0;
            for (size_t j = 0; j < t->inner; j++)
                found |= wanted[j] == ((const int32_t *)t->data)[i * t->stride + k];
            if (!found)
                fail_msg("depth %d, row %d: expert %zu is wrong", t->depth, t->row[i].index, k);
        }
}

static void layers_after_those_of_the_target_are_mtp_depths(void **unused)
{
    (void)unused;
    vb_model *m = open_tiny("v3-mtp3");
    struct copy routes = random_routes(m, PROMPT, 5);
    assert_int_equal(routes.routes.layers, 3);
    routes.routes.layers += 3;
    routes.routes.tokens = PROMPT / 2; /* the same numbers in twice as many layers */
    struct modules seen = {.forced = &routes.routes};
    int32_t prompt[PROMPT];
    random_tokens(m, 7, prompt, PROMPT);
    vb_session_options o = {.context = PROMPT, .prefill_chunk = 4, .tap = see_experts, .tap_context = &seen,
                            .routes = routes.routes};
    vb_session *s = open_session(m, &o, prompt, PROMPT / 2);
    OK(vb_evaluate(s, 3, ignore_row, NULL, &err));
    assert_int_equal(seen.seen, 3 * (PROMPT / 2) - 1 - 2 - 3);
    vb_session_close(s);
    free(routes.experts);
    vb_model_close(m);
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

struct routed {
    int32_t experts[LONGEST * 64];
    size_t tokens, cached;
    uint64_t fingerprint;
    int code;
};

static void keep_end(void *context, const vb_request_end *e)
{
    struct routed *r = context;
    size_t size = e->routes.tokens * row_size(&e->routes);
    r->code = e->code;
    r->fingerprint = e->result->fingerprint;
    r->cached = e->result->cached_tokens;
    r->tokens = e->routes.tokens;
    assert_true(size <= COUNT(r->experts));
    memcpy(r->experts, e->routes.experts, size * sizeof *r->experts);
}

/* A request with these routes, beside others that are queued. */
static void request(vb_batch *b, const int32_t *prompt, const vb_routes *routes, struct routed *end)
{
    vb_generate_options options = {.max_tokens = NEW, .ignore_eos = 1, .fingerprint = 1};
    vb_request q = {.tokens = prompt, .count = PROMPT, .routes = routes, .done = keep_end, .context = end,
                    .options = &options};
    OK(vb_batch_add(b, &q, NULL, &err));
}

/* Sequences with the same tokens share rows up to the first token with other routes, and get the bits of a session
 * alone. */
static void batches_share_rows_up_to_the_first_other_route(void **unused)
{
    (void)unused;
    static struct record plain, forced, mixed;
    static struct routed end[6];
    vb_model *m = open_tiny("v3-mtp3");
    struct copy routes = random_routes(m, PROMPT + 3, 5), half = random_routes(m, PROMPT + 3, 5);
    int32_t prompt[PROMPT];
    random_tokens(m, 7, prompt, PROMPT);
    half.experts[11 * row_size(&half.routes) + 2 * (size_t)half.routes.top_k] ^= 1; /* the same up to token 10 */
    vb_session_options o = {.context = TOKENS + 1, .threads = 2, .drafting.method = "mtp-eagle", .drafting.tokens = 2};
    run_plain(m, NULL, prompt, PROMPT, NEW, &plain);
    o.routes = routes.routes;
    run(m, &o, prompt, PROMPT, NEW, &forced);
    o.routes = half.routes;
    run(m, &o, prompt, PROMPT, NEW, &mixed);
    o.routes = (vb_routes){0};
    o.record_routes = 1;
    vb_batch_options bo = {.session = &o, .max_sequences = 2, .keep_finished = 4};
    vb_batch *b = open_batch_of(m, &bo);
    request(b, prompt, &routes.routes, &end[0]);
    run_batch_to_its_end(b);
    request(b, prompt, &half.routes, &end[1]);
    request(b, prompt, NULL, &end[2]);
    run_batch_to_its_end(b);
    request(b, prompt, &routes.routes, &end[3]);
    run_batch_to_its_end(b);
    vb_batch_close(b);
    bo.keep_finished = 0;
    bo.cache_tokens = TOKENS + 30; /* one is preempted */
    b = open_batch_of(m, &bo);
    request(b, prompt, &half.routes, &end[4]);
    request(b, prompt, &routes.routes, &end[5]);
    run_batch_to_its_end(b);
    assert_true(look(b).preemptions > 0);
    vb_batch_close(b);
    for (int i = 0; i < 6; i++) {
        const struct record *wanted = i == 1 || i == 4 ? &mixed : i == 2 ? &plain : &forced;
        assert_int_equal(end[i].code, 0);
        if (end[i].fingerprint != wanted->result.fingerprint)
            fail_msg("request %d: another fingerprint than alone", i);
        assert_int_equal(end[i].tokens, TOKENS - 1);
    }
    assert_int_equal(end[0].cached, 0);
    assert_true(end[1].cached > 4 && end[1].cached <= 11);
    assert_int_equal(end[2].cached, 0);
    assert_true(end[3].cached > 11);
    assert_memory_equal(end[0].experts, end[3].experts, (TOKENS - 1) * row_size(&routes.routes) * sizeof(int32_t));
    assert_memory_equal(end[0].experts, end[5].experts, (TOKENS - 1) * row_size(&routes.routes) * sizeof(int32_t));
    free(routes.experts);
    free(half.experts);
    vb_model_close(m);
}

/* The routes with a layer of MTP depth 0 behind the target's, which takes the experts of the last layer. Free the
 * experts. */
static vb_routes with_module(const struct copy *routes)
{
    size_t row = row_size(&routes->routes), layers = (size_t)routes->routes.layers,
           wide_row = row / layers * (layers + 1);
    int32_t *to = calloc(routes->routes.tokens * wide_row, sizeof *to);
    assert_non_null(to);
    for (size_t t = 0; t < routes->routes.tokens; t++) {
        memcpy(to + t * wide_row, routes->experts + t * row, row * sizeof *to);
        memcpy(to + t * wide_row + row, routes->experts + t * row + row / layers * (layers - 1),
               row / layers * sizeof *to);
    }
    return (vb_routes){.experts = to, .tokens = routes->routes.tokens, .layers = (int32_t)layers + 1,
                       .top_k = routes->routes.top_k};
}

/* Routes of MTP depths, which only vb_evaluate reads, do not keep sequences from sharing rows. */
static void batches_share_rows_with_routes_of_more_layers(void **unused)
{
    (void)unused;
    static struct routed end[3];
    vb_model *m = open_tiny("v3-mtp3");
    struct copy routes = random_routes(m, PROMPT, 5);
    vb_routes wide = with_module(&routes);
    int32_t prompt[PROMPT];
    random_tokens(m, 7, prompt, PROMPT);
    vb_session_options o = {.context = TOKENS + 1, .threads = 1, .record_routes = 1};
    vb_batch_options bo = {.session = &o, .max_sequences = 2, .keep_finished = 4};
    vb_batch *b = open_batch_of(m, &bo);
    request(b, prompt, &wide, &end[0]);
    run_batch_to_its_end(b);
    for (int i = 1; i < 3; i++) {
        request(b, prompt, i == 1 ? &routes.routes : &wide, &end[i]);
        run_batch_to_its_end(b);
        assert_int_equal(end[i].cached, PROMPT - 1);
        assert_true(end[i].fingerprint == end[0].fingerprint);
    }
    vb_batch_close(b);
    free((void *)(uintptr_t)wide.experts);
    free(routes.experts);
    vb_model_close(m);
}

/* ---- saved sessions ---------------------------------------------------------------------------------------------- */

static void a_session_is_loaded_with_the_routes_of_its_rows(void **unused)
{
    (void)unused;
    static struct record plain, got;
    char dir[64], file[128];
    vb_session_info info;
    vb_model *m = open_tiny("v3");
    struct copy routes = random_routes(m, TOKENS, 5);
    int32_t prompt[PROMPT];
    vb_session_options o = {.context = TOKENS + 1, .routes = routes.routes, .record_routes = 1};
    vb_session *s = NULL;
    make_dir(dir);
    snprintf(file, sizeof file, "%s/session", dir);
    random_tokens(m, 7, prompt, PROMPT);
    run(m, &o, prompt, PROMPT, NEW, &plain);
    s = open_session(m, &o, prompt, PROMPT);
    generate(s, 5, &got);
    OK(vb_session_save(s, file, NULL, &err));
    vb_session_close(s);
    OK(vb_session_info_read(&info, file, 1, NULL, &err));
    assert_int_equal(strlen(info.routes), 16);
    OK(vb_session_load(&s, m, &o, file, NULL, &err));
    generate(s, NEW - 5, &got);
    drop(&plain, 5);
    check_same_prefix("a loaded session", &got, &plain, NEW - 5);
    vb_session_close(s);
    routes.experts[(PROMPT + 1) * row_size(&routes.routes) + 2 * (size_t)routes.routes.top_k] ^= 1;
    REFUSED(vb_session_load(&s, m, &o, file, NULL, &err), VB_BAD_ARGUMENT,
            "was saved with other forced routes for its 23 computed tokens");
    o.routes.tokens = 0;
    REFUSED(vb_session_load(&s, m, &o, file, NULL, &err), VB_BAD_ARGUMENT, "was saved with other forced routes");
    o.routes = (vb_routes){0};
    s = open_session(m, &o, prompt, PROMPT);
    vb_file_options replace = {.replace = 1};
    OK(vb_session_save(s, file, &replace, &err));
    vb_session_close(s);
    OK(vb_session_info_read(&info, file, 1, NULL, &err));
    assert_string_equal(info.routes, "none");
    remove_dir(dir);
    free(routes.experts);
    vb_model_close(m);
}

/* Only vb_evaluate reads routes of MTP depths, and keeps none of the rows that depend on them. */
static void routes_of_mtp_depths_do_not_matter_for_a_saved_session(void **unused)
{
    (void)unused;
    static struct record wanted, got;
    char dir[64], file[128];
    vb_session_info info[2];
    vb_model *m = open_tiny("v3-mtp3");
    struct copy routes = random_routes(m, PROMPT, 5);
    vb_routes wide = with_module(&routes);
    int32_t prompt[PROMPT];
    vb_file_options replace = {.replace = 1};
    make_dir(dir);
    snprintf(file, sizeof file, "%s/session", dir);
    random_tokens(m, 7, prompt, PROMPT);
    for (int i = 0; i < 2; i++) { /* saved with such routes and loaded without; the other way round */
        vb_session_options saved = {.context = TOKENS + 1, .routes = i ? routes.routes : wide}, loaded = saved;
        loaded.routes = i ? wide : routes.routes;
        vb_session *s = open_session(m, &saved, prompt, PROMPT);
        OK(vb_evaluate(s, 1, ignore_row, NULL, &err));
        OK(vb_session_save(s, file, &replace, &err));
        generate(s, NEW, &wanted);
        vb_session_close(s);
        OK(vb_session_info_read(&info[i], file, 1, NULL, &err));
        OK(vb_session_load(&s, m, &loaded, file, NULL, &err));
        generate(s, NEW, &got);
        check_same_prefix("routes of MTP depths", &got, &wanted, NEW);
        vb_session_close(s);
    }
    assert_string_equal(info[0].routes, info[1].routes);
    remove_dir(dir);
    free((void *)(uintptr_t)wide.experts);
    free(routes.experts);
    vb_model_close(m);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void invalid_routes_are_refused(void **unused)
{
    (void)unused;
    vb_model *m = open_tiny("v3");
    vb_session *s;
    vb_batch *b;
    struct copy routes = random_routes(m, 5, 5);
    vb_session_options o = {.context = TOKENS, .routes = routes.routes};
    vb_batch_options bo = {.session = &o};
    int32_t *at = routes.experts + 3 * row_size(&routes.routes) + 2 * (size_t)routes.routes.top_k, was = at[1];
    o.routes.layers--;
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT, "the routes have the shape [5, ");
    o.routes = routes.routes;
    at[1] = num_experts(m);
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT, "the routes send token 3 in layer 2 to expert ");
    at[1] = -1;
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT, "to expert -1, wanted 0 to ");
    at[1] = at[0];
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT,
            "the routes send token 3 in layer 2 to the same expert twice");
    REFUSED(vb_batch_open(&b, m, &bo, &err), VB_BAD_ARGUMENT, "to the same expert twice");
    bo.session = &(vb_session_options){.context = TOKENS};
    OK(vb_batch_open(&b, m, &bo, &err));
    int32_t prompt[] = {5, 6};
    vb_request q = {.tokens = prompt, .count = 2, .routes = &routes.routes};
    REFUSED(vb_batch_add(b, &q, NULL, &err), VB_BAD_ARGUMENT, "to the same expert twice");
    vb_batch_close(b);
    at[1] = was;
    OK(vb_session_open(&s, m, &o, &err));
    vb_session_close(s);
    free(routes.experts);
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_routes_that_were_chosen_change_no_bit),
        cmocka_unit_test(other_routes_change_the_output_and_are_the_same_for_every_setting),
        cmocka_unit_test(weights_come_from_the_scores_of_the_forced_experts),
        cmocka_unit_test(minus_one_leaves_the_choice_to_the_router),
        cmocka_unit_test(evaluating_and_cutting_keep_routes),
        cmocka_unit_test(layers_after_those_of_the_target_are_mtp_depths),
        cmocka_unit_test(batches_share_rows_up_to_the_first_other_route),
        cmocka_unit_test(batches_share_rows_with_routes_of_more_layers),
        cmocka_unit_test(a_session_is_loaded_with_the_routes_of_its_rows),
        cmocka_unit_test(routes_of_mtp_depths_do_not_matter_for_a_saved_session),
        cmocka_unit_test(invalid_routes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
