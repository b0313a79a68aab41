/* tests/engine/test_parallel_heads.c -- parallel heads: their rows against transformers' numbers
 * (golden/truth/heads.safetensors, golden/scripts/make_heads.py) and against the target's own last layer, trees,
 * drafting against plain decoding, heads that do not fit. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include "engine/draft/mtp.h"
#include "reference/reference.h"
#include "tests/support/golden.h"

#define TARGET "golden/tiny/v3"
#define FOLDER "golden/heads/parallel-v3"
#define HEADS 3
#define V 160
#define MOST_TOKENS 128
#define ROWS 12 /* the last ones of the text, in the golden */
#define PERTURBED_RUNS 6
#define TIMES 8.0 /* as test_draft_rows */

static char dir[64];

/* Writes a config.json to `dir`: that of another folder, with one key changed; NULL: removed. */
static void edit_config(const char *from, const char *key, const char *value)
{
    char path[256];
    snprintf(path, sizeof path, "%s/config.json", from);
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    if (value)
        json_object_set_new(config, key, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(config, key);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
}

static vb_session_options options_of(const char *heads, int K)
{
    return (vb_session_options){.context = 200, .threads = 1, .drafting.method = "parallel-heads",
                                .drafting.head = heads, .drafting.tokens = K, .poison_cut_rows = 1};
}

/* ---- rows against the truth -------------------------------------------------------------------------------------- */

/* What taps tell of a proposal. */
static struct {
    size_t heads;
    double logits[HEADS * V];
} seen;

static void see(void *context, const vb_tap *tap)
{
    (void)context;
    if (tap->depth < 0 || !strstr(tap->name, ".shared_head.head.output"))
        return;
    assert_true(tap->rows == 1 && tap->inner == V && tap->depth == (int)seen.heads && seen.heads < HEADS);
    for (size_t v = 0; v < V; v++)
        seen.logits[seen.heads * V + v] = (double)((const float *)tap->data)[v];
    seen.heads++;
}

/* Copies logits of row `row` of all heads from logits [HEADS, rows, V]. */
static void take_row(double *out, const double *logits, size_t row, size_t rows)
{
    for (size_t k = 0; k < HEADS; k++)
        memcpy(out + k * V, logits + (k * rows + row) * V, V * sizeof *out);
}

/* How far perturbed references are from the exact one in the last row, at most. */
static double spread_of(const struct reference *target, const struct reference *heads, const double *exact,
                        const int32_t *tokens, size_t n)
{
    static double other[HEADS * MOST_TOKENS * V], row[HEADS * V];
    double spread = 0;
    for (uint64_t seed = 1; seed <= PERTURBED_RUNS; seed++) {
        struct reference_options o = {.perturb = seed};
        OK(reference_heads(target, heads, &o, tokens, (int)n, other, &err));
        take_row(row, other, n - 1, n);
        spread = fmax(spread, distance(row, exact, HEADS * V));
    }
    return spread;
}

TEST(rows_that_propose_are_as_near_to_transformers_as_f32_allows)
{
    static double logits[HEADS * MOST_TOKENS * V], exact[HEADS * V];
    struct golden g = golden_open("heads");
    struct reference *target, *heads;
    vb_model *m = open_model(TARGET);
    int32_t tokens[MOST_TOKENS], next, drafts[VB_MAX_DRAFT], n;
    size_t count, size;
    int64_t id;
    const char *ids = golden_data(&g, "tokens", &count);
    const double *truth = malloc(2 * HEADS * ROWS * V * sizeof *truth);
    assert_non_null(truth);
    for (size_t i = 0; i < count; i++, tokens[i - 1] = (int32_t)id)
        memcpy(&id, ids + i * sizeof id, sizeof id);
    memcpy((void *)(uintptr_t)truth, golden_data(&g, "logits", &size), 2 * HEADS * ROWS * V * sizeof *truth);
    assert_int_equal(size, 2 * HEADS * ROWS * V);
    OK(reference_open(&target, TARGET, NULL, &err));
    copy_checkpoint(dir, FOLDER);
    for (int after = 0; after < 2; after++) {
        edit_config(FOLDER, "trunk_layers", after ? "3" : "2");
        OK(reference_heads_open(&heads, dir, target, &err));
        OK(reference_heads(target, heads, NULL, tokens, (int)count, logits, &err));
        for (size_t k = 0; k < HEADS; k++) {
            double is = distance(logits + (k * count + count - ROWS) * V,
                                 truth + ((size_t)after * HEADS + k) * ROWS * V, ROWS * V);
            if (!(is < 1e-13))
                fail_msg("head %zu, trunk_layers %d: the reference is %.3g away from transformers", k, 2 + after, is);
        }
        for (size_t row = 0; row < ROWS; row += 5) {
            vb_session_options o = options_of(dir, HEADS);
            o.prefill_chunk = row == 5 ? 7 : 0;
            o.tap = see;
            seen.heads = 0;
            size_t N = count - ROWS + row + 1;
            vb_session *s = open_session(m, &o, tokens, N);
            OK(vb_draft(s, &next, drafts, &n, &err));
            assert_true(n == HEADS && seen.heads == HEADS);
            take_row(exact, logits, N - 1, count);
            double spread = spread_of(target, heads, exact, tokens, N), is;
            take_row(exact, truth + (size_t)after * HEADS * ROWS * V, row, ROWS);
            is = distance(seen.logits, exact, HEADS * V);
            if (!(is <= TIMES * spread))
                fail_msg("row %zu, trunk_layers %d: %.3g away from the truth, perturbed references are %.3g away",
                         N - 1, 2 + after, is, spread);
            vb_session_close(s);
        }
        reference_close(heads);
    }
    remove_dir(dir);
    reference_close(target);
    free((void *)(uintptr_t)truth);
    golden_close(&g);
    vb_model_close(m);
}

/* ---- heads in the model's own folder ----------------------------------------------------------------------------- */

/* A safetensors file to which tensors are added. */
struct enlarged {
    json_t *header;
    char *data;
    size_t size;
};

/* Adds copies of all tensors whose names begin with `from`, with the prefix `to` instead. */
static void repeat_tensors(struct enlarged *e, const char *from, const char *to)
{
    const char *name;
    json_t *tensor, *more = json_object();
    json_object_foreach(e->header, name, tensor) {
        json_t *offsets = json_object_get(tensor, "data_offsets"), *copy;
        char other[256];
        if (strncmp(name, from, strlen(from)))
            continue;
        size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0)),
               size = (size_t)json_integer_value(json_array_get(offsets, 1)) - begin;
        e->data = realloc(e->data, e->size + size);
        assert_non_null(e->data);
        memcpy(e->data + e->size, e->data + begin, size);
        snprintf(other, sizeof other, "%s%s", to, name + strlen(from));
        copy = json_copy(tensor);
        json_object_set_new(copy, "data_offsets",
                            json_pack("[I,I]", (json_int_t)e->size, (json_int_t)(e->size + size)));
        json_object_set_new(more, other, copy);
        e->size += size;
    }
    assert_true(json_object_size(more) > 10);
    json_object_update(e->header, more);
    json_decref(more);
}

/* Writes to `dir` the target with two heads: the first repeats its last layer, the second layer 1. */
static void write_model_with_heads(void)
{
    struct golden g = golden_read(TARGET "/model.safetensors");
    uint64_t header_size;
    memcpy(&header_size, g.bytes, sizeof header_size);
    struct enlarged e = {.header = g.header, .size = g.size - 8 - header_size};
    e.data = malloc(e.size);
    assert_non_null(e.data);
    memcpy(e.data, g.bytes + 8 + header_size, e.size);
    repeat_tensors(&e, "model.layers.2.", "extra_heads.0.");
    repeat_tensors(&e, "model.layers.1.", "extra_heads.1.");
    char *text = json_dumps(g.header, JSON_COMPACT);
    copy_checkpoint(dir, TARGET);
    edit_config(TARGET, "n_future_tokens", "3");
    write_safetensors(dir, "model.safetensors", text, e.data, e.size);
    free(text);
    free(e.data);
    golden_close(&g);
}

static void *target_logits;

static void see_target(void *context, const vb_tap *tap)
{
    if (!strcmp(tap->name, "lm_head.output"))
        memcpy(target_logits, (const float *)tap->data + (tap->rows - 1) * tap->stride, V * sizeof(float));
    see(context, tap);
}

/* Head 0 reads what the target's last layer reads, and computes the same: so it has the logits from which the newest
 * token was chosen, bit for bit. Head 1 differs. */
TEST(a_head_that_repeats_the_last_layer_has_the_bits_of_the_targets_logits)
{
    static float newest[V];
    write_model_with_heads();
    vb_model *m = open_model(dir); /* it does without the heads */
    target_logits = newest;
    int32_t prompt[40], next, drafts[VB_MAX_DRAFT], n;
    random_tokens(m, 3, prompt, COUNT(prompt));
    for (size_t count = 1; count <= COUNT(prompt); count += 13) {
        vb_session_options o = options_of(dir, 0);
        o.tap = see_target;
        seen.heads = 0;
        vb_session *s = open_session(m, &o, prompt, count);
        OK(vb_draft(s, &next, drafts, &n, &err));
        assert_true(n == 2 && seen.heads == 2); /* 0 drafts: all heads */
        for (size_t v = 0; v < V; v++)
            if ((double)newest[v] != seen.logits[v])
                fail_msg("after %zu tokens, logit %zu: %.9g, the target's is %.9g", count, v, seen.logits[v],
                         (double)newest[v]);
        assert_true(drafts[0] == next && memcmp(seen.logits, seen.logits + V, V * sizeof(double)));
        vb_session_close(s);
    }
    vb_model_close(m);
    remove_dir(dir);
}

/* ---- drafting ---------------------------------------------------------------------------------------------------- */

TEST(heads_give_the_bits_of_plain_decoding)
{
    static struct record plain, r;
    char what[96];
    int32_t prompt[40];
    size_t drafted = 0, accepted[HEADS] = {0};
    vb_model *m = open_model(TARGET);
    random_tokens(m, 4, prompt, COUNT(prompt));
    for (int temperature = 0; temperature < 2; temperature++) {
        vb_sampling sampling = {.temperature = (float)temperature, .seed = 5};
        run_plain(m, &sampling, prompt, COUNT(prompt), 120, &plain);
        for (int K = 1; K <= 8; K++) {
            vb_session_options o = options_of(FOLDER, K);
            o.exact_threads = 1;
            o.threads = 1 + K % 2;
            o.prefill_chunk = K % 3 * 7;
            o.padded = K % 4 == 0;
            o.drafting.automatic = K % 5 == 0;
            o.sampling = sampling;
            run(m, &o, prompt, COUNT(prompt), 120, &r);
            snprintf(what, sizeof what, "K %d, temperature %d", K, temperature);
            check_same(what, &plain, &r);
            assert_int_equal(r.result.draft_failures, 0);
            assert_int_equal(r.result.drafted_by_depth[HEADS], 0); /* three heads make three drafts */
            drafted += r.result.drafted;
            for (size_t k = 0; k < HEADS; k++)
                accepted[k] += r.result.accepted_by_depth[k];
        }
    }
    print_message("%zu drafts, accepted %zu, %zu, %zu\n", drafted, accepted[0], accepted[1], accepted[2]);
    assert_true(accepted[HEADS - 1] > 0 && accepted[0] < drafted / HEADS);
    vb_model_close(m);
}

TEST(more_drafts_than_heads_are_all_heads)
{
    static const int asked[] = {0, 1, 2, 3, 4, 15, -1}, made[] = {3, 1, 2, 3, 3, 3, 0};
    vb_model *m = open_model(TARGET);
    for (size_t i = 0; i < COUNT(asked); i++)
        for (int automatic = 0; automatic < 2; automatic++) {
            vb_drafting d = {.method = "parallel-heads", .head = FOLDER, .tokens = asked[i], .automatic = automatic};
            assert_int_equal(vb_draft_tokens(m, &d), made[i]);
        }
    vb_model_close(m);
}

/* A session that has been through rounds, cuts and appended tokens proposes what a new one does. */
TEST(no_history_shows_in_the_drafts_of_heads)
{
    static struct record r;
    vb_model *m = open_model(TARGET);
    for (uint64_t seed = 0; seed < 40; seed++) {
        vb_session_options o = options_of(FOLDER, 1 + (int)(seed % HEADS));
        int32_t tokens[40], next[2], drafts[2][VB_MAX_DRAFT], n[2];
        uint64_t random = seed;
        size_t count;
        o.prefill_chunk = (int[]){0, 1, 7}[seed % 3];
        random_tokens(m, seed, tokens, COUNT(tokens));
        vb_session *s = open_session(m, &o, tokens, 1 + random_below(&random, 30));
        for (int step = 0; step < 4; step++) {
            generate(s, 1 + random_below(&random, 12), &r);
            if (random_below(&random, 2))
                OK(vb_truncate(s, 1 + random_below(&random, s->count), &err));
            if (random_below(&random, 2))
                OK(vb_append(s, tokens, 1 + random_below(&random, 20), &err));
        }
        OK(vb_draft(s, &next[0], drafts[0], &n[0], &err));
        const int32_t *timeline = vb_tokens(s, &count);
        o.sampling = (vb_sampling){.bias_tokens = &next[0], .bias_values = &(float){1e6f}, .bias_count = 1};
        o.prefill_chunk = 0;
        vb_session *fresh = open_session(m, &o, timeline, count - 1);
        OK(vb_draft(fresh, &next[1], drafts[1], &n[1], &err));
        assert_int_equal(next[0], next[1]);
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(drafts[0], drafts[1], (size_t)n[0] * sizeof **drafts);
        vb_session_close(fresh);
        vb_session_close(s);
    }
    vb_model_close(m);
}

/* The newest row is not in the file. Heads have nothing to draft from until the next one, and no row of zeros stays in
 * a cache. */
TEST(without_the_newest_row_heads_draft_one_round_later)
{
    static struct record r;
    vb_model *m = open_model(TARGET);
    int32_t prompt[30], next[2], drafts[2][VB_MAX_DRAFT], n[2];
    char file[96];
    make_dir(dir);
    snprintf(file, sizeof file, "%s/session", dir);
    random_tokens(m, 17, prompt, COUNT(prompt));
    for (size_t count = 2; count <= COUNT(prompt); count += 7)
        for (int before = 0; before < 2; before++) {
            vb_session_options o = options_of(FOLDER, HEADS);
            vb_session *s = open_session(m, &o, prompt, count), *t = NULL;
            vb_file_options how = {.without_hidden = 1, .replace = 1};
            size_t failed = 0;
            generate(s, before ? 5 : 1, &r);
            OK(vb_session_save(s, file, &how, &err));
            OK(vb_session_load(&t, m, &o, file, NULL, &err));
            struct mtp_state *state = &mtp_of(t->drafter)->state;
            assert_int_equal(drafter_propose_one(t->type, t->drafter, t->pass, drafts[0], HEADS, &failed), 0);
            for (int k = 0; k < HEADS; k++)
                assert_int_equal(mtp_row_count(state, k), state->count - 1);
            OK(vb_draft(s, &next[0], drafts[0], &n[0], &err));
            OK(vb_draft(t, &next[1], drafts[1], &n[1], &err));
            assert_true(next[0] == next[1] && n[0] == HEADS && n[1] == HEADS);
            assert_memory_equal(drafts[0], drafts[1], sizeof *drafts[0] * HEADS);
            vb_session_close(s);
            vb_session_close(t);
        }
    remove_dir(dir);
    vb_model_close(m);
}

/* How many tokens have better logits. */
static int rank_in(const double *logits, int32_t token)
{
    int better = 0;
    for (int32_t v = 0; v < V; v++)
        better += logits[v] > logits[token] || (logits[v] == logits[token] && v < token);
    return better;
}

TEST(each_level_of_a_tree_has_the_best_tokens_of_its_head)
{
    vb_model *m = open_model(TARGET);
    int32_t prompt[30], next, drafts[VB_MAX_DRAFT], nodes[VB_MAX_NODES], parents[VB_MAX_NODES], n;
    double confidences[VB_MAX_NODES];
    random_tokens(m, 12, prompt, COUNT(prompt));
    for (size_t count = 5; count <= COUNT(prompt); count += 5) {
        vb_session_options o = options_of(FOLDER, HEADS);
        o.tap = see;
        seen.heads = 0;
        vb_session *chain = open_session(m, &o, prompt, count);
        OK(vb_draft(chain, &next, drafts, &n, &err));
        o.tap = NULL;
        o.drafting.tree = (vb_tree_shape){.topk = 3, .nodes = 20};
        vb_session *s = open_session(m, &o, prompt, count);
        OK(vb_draft_tree(s, &next, nodes, parents, confidences, &n, &err));
        const struct draft_tree *tree = s->tree;
        int levels[HEADS] = {0}, path = -1, level = 0;
        assert_int_equal(tree->count, 20);
        for (int i = 0; i < tree->count; i++) {
            int head = tree->depth[i] - 1, rank = head < HEADS ? rank_in(seen.logits + head * V, tree->token[i]) : V;
            if (rank >= 3)
                fail_msg("after %zu tokens, node %d of level %d: token %d is number %d of its head", count, i, head + 1,
                         tree->token[i], rank + 1);
            levels[head]++;
        }
        assert_true(levels[0] == 3 && levels[1] <= 9 && levels[2] <= 9 && levels[2] > 0); /* three nodes of a level go
                                                                                             on */
        while ((path = tree_child(tree, path, -1)) >= 0) /* the first child of the first child is the chain */
            assert_int_equal(tree->token[path], drafts[level++]);
        assert_true(level >= 2);
        vb_session_close(s);
        vb_session_close(chain);
    }
    vb_model_close(m);
}

/* ---- heads that do not fit --------------------------------------------------------------------------------------- */

static void refuse(const vb_model *m, const char *heads, int code, const char *says)
{
    vb_session *s = NULL;
    vb_session_options o = options_of(heads, 2);
    REFUSED(vb_session_open(&s, m, &o, &err), code, says);
    assert_null(s);
}

static void refuse_config(const vb_model *m, const char *key, const char *value, int code, const char *says)
{
    copy_checkpoint(dir, FOLDER);
    edit_config(FOLDER, key, value);
    refuse(m, dir, code, says);
    remove_dir(dir);
}

TEST(a_config_that_asks_for_something_else_is_refused_by_name)
{
    vb_model *m = open_model(TARGET);
    refuse_config(m, "n_future_tokens", NULL, VB_BAD_CHECKPOINT, "n_future_tokens is missing");
    refuse_config(m, "n_future_tokens", "1", VB_BAD_CHECKPOINT, "n_future_tokens is 1, wanted");
    refuse_config(m, "n_future_tokens", "17", VB_BAD_CHECKPOINT, "n_future_tokens is 17, wanted");
    refuse_config(m, "n_future_tokens", "5", VB_BAD_CHECKPOINT, "extra_heads.3.input_layernorm.weight is missing");
    refuse_config(m, "n_future_tokens", "3", VB_BAD_CHECKPOINT, "has no place in the model of config.json");
    refuse_config(m, "trunk_layers", "1", VB_BAD_CHECKPOINT, "trunk_layers is 1, wanted");
    refuse_config(m, "trunk_layers", "\"last\"", VB_BAD_CHECKPOINT, "trunk_layers is \"last\"");
    refuse_config(m, "num_hidden_layers", "4", VB_BAD_ARGUMENT,
                  "num_hidden_layers of the heads is 4, that of golden/tiny/v3 is 3");
    refuse_config(m, "hidden_size", "80", VB_BAD_ARGUMENT,
                  "hidden_size of the heads is 80, that of golden/tiny/v3 is 64");
    refuse_config(m, "vocab_size", "161", VB_BAD_ARGUMENT, "vocab_size of the heads is 161");
    refuse_config(m, "rms_norm_eps", "1e-5", VB_BAD_ARGUMENT, "rms_norm_eps of the heads is 1e-05");
    refuse_config(m, "qk_nope_head_dim", "24", VB_BAD_CHECKPOINT,
                  "extra_heads.0.self_attn.q_proj.weight is [48,64], config.json says [64,64]");
    refuse_config(m, "hidden_act", "\"gelu\"", VB_UNSUPPORTED, "hidden_act \"gelu\"");
    vb_model_close(m);
}

TEST(folders_without_parallel_heads_are_refused)
{
    vb_model *m = open_model(TARGET), *other = open_tiny("moonlight");
    vb_session *s;
    int kind;
    refuse(m, "golden/eagle/eagle1-v3", VB_BAD_ARGUMENT,
           "is an EAGLE-1 head, draft method parallel-heads wants the other kind");
    refuse(m, "golden/tiny/v3", VB_BAD_CHECKPOINT, "n_future_tokens is missing");
    refuse(m, "nowhere", VB_IO, "nowhere");
    refuse(m, NULL, VB_BAD_ARGUMENT, "parallel-heads wants the directory of a draft head");
    refuse(other, FOLDER, VB_BAD_ARGUMENT, "hidden_size of the heads is 64, that of golden/tiny/moonlight is 80");
    vb_session_options o = {.context = 9, .drafting.method = "eagle", .drafting.head = FOLDER};
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT,
            "has parallel heads, draft method eagle wants another kind of head");
    OK(vb_draft_head(&kind, FOLDER, &err));
    assert_int_equal(kind, VB_PARALLEL_HEADS);
    vb_model_close(other);
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_propose_are_as_near_to_transformers_as_f32_allows),
        cmocka_unit_test(a_head_that_repeats_the_last_layer_has_the_bits_of_the_targets_logits),
        cmocka_unit_test(heads_give_the_bits_of_plain_decoding),
        cmocka_unit_test(more_drafts_than_heads_are_all_heads),
        cmocka_unit_test(no_history_shows_in_the_drafts_of_heads),
        cmocka_unit_test(without_the_newest_row_heads_draft_one_round_later),
        cmocka_unit_test(each_level_of_a_tree_has_the_best_tokens_of_its_head),
        cmocka_unit_test(a_config_that_asks_for_something_else_is_refused_by_name),
        cmocka_unit_test(folders_without_parallel_heads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
