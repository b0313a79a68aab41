/* tests/engine/test_eagle.c -- EAGLE-1 and EAGLE-3 heads: a pass against the numbers of the official code
 * (golden/truth/eagle*.safetensors, golden/scripts/make_eagle.py), features against taps, drafting against plain
 * decoding, heads that do not fit. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include "engine/draft/eagle_net.h"
#include "engine/draft/mtp.h"
#include "tests/support/golden.h"
#include "tests/support/small_eagle.h"

static const char *const heads[] = {"golden/eagle/eagle1-v3", "golden/eagle/eagle3-v3"};
static const char *const methods[] = {"eagle", "eagle3"};
static const int versions[] = {1, 3};

/* ---- a pass against the official code ---------------------------------------------------------------------------- */

#define ROWS 12
#define STEPS 4

struct truth {
    struct golden g;
    const void *hidden, *logits; /* F64: [ROWS, d], [ROWS + STEPS, V] */
    float aligned[ROWS * 192]; /* features [ROWS, d or 3d] */
    int32_t ids[ROWS], steps[STEPS];
};

static void truth_open(struct truth *t, int version)
{
    char name[16];
    size_t n;
    snprintf(name, sizeof name, "eagle%d", version);
    t->g = golden_open(name);
    const void *features = golden_data(&t->g, "features", &n);
    memcpy(t->aligned, features, n * sizeof(float));
    assert_int_equal(n, ROWS * (version == 1 ? 64 : 192));
    memcpy(t->ids, golden_data(&t->g, "tokens", &n), sizeof t->ids);
    memcpy(t->steps, golden_data(&t->g, "chosen", &n), sizeof t->steps);
    t->hidden = golden_data(&t->g, "hidden", &n);
    t->logits = golden_data(&t->g, "logits", &n);
}

/* The official code's own norms, softmax and angles are float32: a few hundred roundings of numbers of about 1. */
static void check_row(const char *what, size_t row, const float *y, const void *truth, size_t n)
{
    double wide[256], d;
    for (size_t i = 0; i < n; i++)
        wide[i] = (double)y[i];
    d = distance(wide, (const char *)truth + row * n * sizeof(double), n);
    if (!(d < 3e-6))
        fail_msg("%s, row %zu: %g of the largest away from the official code", what, row, d);
}

TEST(a_pass_gives_the_official_codes_numbers)
{
    static struct truth t;
    vb_model *m = open_tiny("v3");
    for (size_t v = 0; v < 2; v++)
        for (size_t chunk = 1; chunk <= ROWS; chunk += 3) {
            struct eagle_head *head;
            struct eagle e;
            struct kvcache cache;
            struct row rows[ROWS];
            struct pass pass = {.model = m};
            static float h[ROWS * 64], g[ROWS * 64], logits[160];
            int known, three = versions[v] == 3;
            struct drafter_options o = {.kernels = kernels_select("best", &known), .threads = 1,
                                        .most_observed = chunk};
            truth_open(&t, versions[v]);
            OK(eagle_head_open(&head, heads[v], versions[v], m, &err));
            OK(eagle_open(&e, head, &o, &err));
            OK(kvcache_open(&cache, 1, ROWS + STEPS, e.net.cache, NULL, &err));
            if (three)
                eagle_features(&e, &pass, h, t.aligned, ROWS);
            else
                memcpy(h, t.aligned, sizeof h);
            for (size_t i = 0; i < ROWS; i += chunk) {
                size_t S = ROWS - i < chunk ? ROWS - i : chunk;
                for (size_t j = 0; j < S; j++)
                    rows[j] = (struct row){.cache = &cache, .token = t.ids[i + j], .index = (int32_t)(i + j),
                                           .position = (int32_t)(i + j), .slot = kvcache_append(&cache)};
                eagle_pass(&e, &pass, rows, h + i * 64, g + i * 64, h + i * 64, S);
            }
            for (size_t i = 0; i < ROWS; i++) {
                check_row(methods[v], i, h + i * 64, t.hidden, 64);
                eagle_logits(&e, &pass, logits, g + i * 64, 1);
                check_row("its logits", i, logits, t.logits, head->vocab_size);
            }
            for (int step = 0; step < STEPS; step++) { /* on from its own rows */
                int32_t token = argmax(logits, head->vocab_size), at = ROWS + step;
                token = head->d2t ? head->d2t[token] : token;
                assert_int_equal(token, t.steps[step]);
                rows[0] = (struct row){.cache = &cache, .token = token, .index = at, .position = at,
                                       .slot = kvcache_append(&cache)};
                eagle_pass(&e, &pass, rows, step ? h : h + (ROWS - 1) * 64, g, h, 1);
                eagle_logits(&e, &pass, logits, g, 1);
                check_row("logits of a step", (size_t)at, logits, t.logits, head->vocab_size);
            }
            kvcache_close(&cache, NULL);
            eagle_close(&e);
            golden_close(&t.g);
        }
    vb_model_close(m);
}

/* ---- what a head is given ---------------------------------------------------------------------------------------- */

TEST(features_come_from_before_three_layers_in_the_targets_order)
{
    static const struct {
        int L, known, layer[3];
    } cases[] = {{61, 1, {2, 30, 58}}, {47, 1, {2, 23, 44}}, {3, 1, {0, 1, 2}}, {7, 1, {2, 3, 4}}, {4, 1, {1, 2, 3}},
                 {5, 1, {1, 2, 4}}, {6, 1, {1, 3, 5}}, {2, 0, {0}}, {1, 0, {0}}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        int layer[3];
        assert_int_equal(config_three_layers(cases[i].L, layer), cases[i].known);
        if (cases[i].known)
            assert_memory_equal(layer, cases[i].layer, sizeof layer);
    }
}

/* The rows that go into layers 0, 1 and 2 of the target, as taps tell them, by index. */
static float tapped[100][3 * 64], normed[100][64];

static void see_layer_inputs(void *context, const vb_tap *tap)
{
    int layer = strcmp(tap->name + (tap->layer < 0 ? 0 : strlen("model.layers.0.")),
                       tap->layer < 0 ? "model.norm.output" : "input_layernorm.input")
                    ? -1
                : tap->layer < 0 ? 3
                : tap->layer;
    (void)context;
    for (size_t s = 0; s < tap->rows && layer >= 0 && tap->depth < 0; s++)
        memcpy(layer == 3 ? normed[tap->row[s].index] : tapped[tap->row[s].index] + 64 * layer,
               (const float *)tap->data + s * tap->stride, 64 * sizeof(float));
}

static struct seeing {
    const struct drafter_type *real;
    size_t width, rows;
} seeing;

static void observe_and_compare(struct drafter *d, struct pass *pass, size_t pos, const int32_t *tokens,
                                const float *hidden, size_t n)
{
    for (size_t j = pos == 0; j < n; j++, seeing.rows++)
        assert_memory_equal(hidden + j * seeing.width, seeing.width == 64 ? normed[pos + j - 1] : tapped[pos + j - 1],
                            seeing.width * sizeof *hidden);
    seeing.real->observe(d, pass, pos, tokens, hidden, n);
}

TEST(a_drafter_observes_the_rows_that_it_takes)
{
    static struct record r;
    vb_model *m = NULL;
    int32_t prompt[30];
    /* of MTP modules alone */
    OK(vb_model_open(&m, "golden/tiny/v3", &(vb_model_options){.conventions = "main-hidden=pre-norm"}, &err));
    random_tokens(m, 9, prompt, COUNT(prompt));
    for (size_t v = 0; v < 2; v++)
        for (int chunk = 0; chunk <= 7; chunk += 7) {
            vb_session_options o = {.context = 90, .threads = 1, .prefill_chunk = chunk, .drafting.method = methods[v],
                                    .drafting.head = heads[v], .drafting.tokens = 5, .tap = see_layer_inputs};
            vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
            struct drafter_type type = *s->type;
            seeing = (struct seeing){s->type, v ? 192 : 64, 0};
            type.observe = observe_and_compare;
            s->type = &type;
            generate(s, 40, &r);
            assert_true(seeing.rows >= 30 + 38);
            s->type = seeing.real;
            vb_session_close(s);
        }
    vb_model_close(m);
}

/* ---- drafting ---------------------------------------------------------------------------------------------------- */

TEST(drafts_of_a_head_are_the_official_codes_when_its_features_are)
{
    static struct truth t;
    vb_model *m = open_tiny("v3");
    for (size_t v = 0; v < 2; v++) {
        vb_session_options o = {.context = 64, .threads = 1, .drafting.method = methods[v], .drafting.head = heads[v],
                                .drafting.tokens = STEPS};
        vb_session *s = open_session(m, &o, NULL, 0);
        int32_t drafts[STEPS];
        size_t failed = 0, width = v ? 192 : 64;
        truth_open(&t, versions[v]);
        s->type->observe(s->drafter, s->pass, 0, &(int32_t){7}, NULL, 1); /* token 0 is nobody's embedding */
        for (size_t i = 0; i < ROWS; i += 5) {
            size_t n = ROWS - i < 5 ? ROWS - i : 5;
            s->type->observe(s->drafter, s->pass, i + 1, t.ids + i, t.aligned + i * width, n);
        }
        for (int again = 0; again < 2; again++) {
            assert_int_equal(drafter_propose_one(s->type, s->drafter, s->pass, drafts, STEPS, &failed), STEPS);
            assert_memory_equal(drafts, t.steps, sizeof drafts);
        }
        golden_close(&t.g);
        vb_session_close(s);
    }
    vb_model_close(m);
}

#define TREE_NODES 24 /* of 4 levels, topk 4: TREE of make_eagle.py */

/* The node of our tree that the official code's node i is, by its path; -1: none. */
static int node_of(const struct draft_tree *t, const int32_t *tokens, const int32_t *parents, int i)
{
    int parent = parents[i] < 0 ? -1 : node_of(t, tokens, parents, parents[i]), at = -1;
    if (parents[i] >= 0 && parent < 0)
        return -1;
    while ((at = tree_child(t, parent, at)) >= 0 && t->token[at] != tokens[i])
        continue;
    return at;
}

TEST(trees_of_a_head_are_the_official_codes)
{
    static struct truth t;
    vb_model *m = open_tiny("v3");
    for (size_t v = 0; v < 2; v++) {
        vb_session_options o = {.context = 64, .threads = 1, .drafting.method = methods[v], .drafting.head = heads[v],
                                .drafting.tokens = 4, .drafting.tree.topk = 4, .drafting.tree.nodes = TREE_NODES,
                                .poison_cut_rows = 1};
        vb_session *s = open_session(m, &o, NULL, 0);
        struct draft_tree tree;
        size_t failed = 0, n, found = 0;
        truth_open(&t, versions[v]);
        const int32_t *tokens = golden_data(&t.g, "tree_tokens", &n), *parents = golden_data(&t.g, "tree_parents", &n);
        assert_int_equal(n, TREE_NODES);
        s->type->observe(s->drafter, s->pass, 0, &(int32_t){7}, NULL, 1);
        s->type->observe(s->drafter, s->pass, 1, t.ids, t.aligned, ROWS);
        s->type->propose_tree(s->drafter, s->pass, &tree, 4, &failed);
        assert_int_equal(tree.count, TREE_NODES);
        for (int i = 0; i < TREE_NODES; i++) {
            int node = node_of(&tree, tokens, parents, i);
            if (node < 0)
                fail_msg("%s: the official code's node %d, token %d after node %d, is not in the tree", methods[v], i,
                         tokens[i], parents[i]);
            found |= (size_t)1 << node;
        }
        assert_int_equal(found, ((size_t)1 << TREE_NODES) - 1); /* each once */
        golden_close(&t.g);
        vb_session_close(s);
    }
    vb_model_close(m);
}

TEST(every_head_gives_the_bits_of_plain_decoding)
{
    static struct record plain, r;
    char what[96];
    int32_t prompt[40];
    size_t drafted = 0, accepted = 0;
    vb_model *m = open_tiny("v3");
    random_tokens(m, 4, prompt, COUNT(prompt));
    for (int temperature = 0; temperature < 2; temperature++) {
        vb_sampling sampling = {.temperature = (float)temperature, .seed = 5};
        run_plain(m, &sampling, prompt, COUNT(prompt), 120, &plain);
        for (size_t v = 0; v < 2; v++)
            for (int K = 1; K <= VB_MAX_DRAFT; K++) {
                vb_session_options o = {.context = 160, .exact_threads = 1, .threads = 1 + K % 2,
                                        .drafting.method = methods[v], .drafting.head = heads[v], .drafting.tokens = K,
                                        .prefill_chunk = K % 3 * 7, .padded = K % 4 == 0,
                                        .drafting.automatic = K % 5 == 0, .sampling = sampling, .poison_cut_rows = 1};
                run(m, &o, prompt, COUNT(prompt), 120, &r);
                snprintf(what, sizeof what, "%s, K %d, temperature %d", methods[v], K, temperature);
                check_same(what, &plain, &r);
                assert_int_equal(r.result.draft_failures, 0);
                drafted += r.result.drafted;
                accepted += r.result.accepted;
            }
    }
    print_message("%zu drafts, %zu accepted\n", drafted, accepted);
    assert_true(accepted > 0 && accepted < drafted); /* the heads are random */
    vb_model_close(m);
}

TEST(heads_with_norms_of_speculators_give_the_bits_of_plain_decoding)
{
    static struct record plain, r;
    int32_t prompt[40];
    vb_model *m = open_tiny("v3");
    random_tokens(m, 4, prompt, COUNT(prompt));
    run_plain(m, NULL, prompt, COUNT(prompt), 120, &plain);
    for (size_t v = 0; v < eagle_variant_count; v++) {
        char head[64];
        size_t accepted = 0;
        eagle_variant(head, &eagle_variants[v]);
        for (int K = 1; K <= 7; K += 3) {
            vb_session_options o = {.context = 160, .exact_threads = 1, .threads = 1 + K % 2,
                                    .drafting.method = "eagle3", .drafting.head = head, .drafting.tokens = K,
                                    .prefill_chunk = K, .drafting.tree.topk = K == 4 ? 3 : 0, .poison_cut_rows = 1};
            run(m, &o, prompt, COUNT(prompt), 120, &r);
            check_same(eagle_variants[v].name, &plain, &r);
            assert_int_equal(r.result.draft_failures, 0);
            accepted += r.result.accepted;
        }
        assert_true(accepted > 0);
        remove_dir(head);
    }
    vb_model_close(m);
}

/* A session that has been through rounds, cuts and appended tokens proposes what a new one does. */
TEST(no_history_shows_in_the_drafts_of_a_head)
{
    static struct record r;
    vb_model *m = open_tiny("v3");
    for (uint64_t seed = 0; seed < 60; seed++) {
        vb_session_options o = {.context = 200, .threads = 1, .drafting.method = methods[seed % 2],
                                .drafting.head = heads[seed % 2], .drafting.tokens = 1 + (int)(seed % 7),
                                .prefill_chunk = (int[]){0, 1, 7}[seed % 3], .poison_cut_rows = 1};
        int32_t tokens[40], next[2], drafts[2][VB_MAX_DRAFT], n[2];
        uint64_t random = seed;
        size_t count;
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

static int see_nothing(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)depth, (void)context, (void)index, (void)logits, (void)hidden;
    return 0;
}

TEST(heads_share_passes_and_evaluations_with_the_rest)
{
    static struct record plain[4], r[4];
    vb_model *m = open_tiny("v3");
    vb_session *s[4];
    vb_generate_options g[4];
    vb_result results[4];
    int32_t prompt[50];
    const char *draft[] = {"eagle3", "eagle", "mtp-eagle", "eagle3"};
    random_tokens(m, 6, prompt, COUNT(prompt));
    for (size_t i = 0; i < 4; i++) {
        vb_session_options o = {.context = 120, .threads = 1, .drafting.method = draft[i],
                                .drafting.head = heads[i % 3 == 0], .drafting.tokens = 2 + (int)i,
                                .poison_cut_rows = 1};
        run_plain(m, NULL, prompt, 10 + 10 * i, 50, &plain[i]);
        s[i] = open_session(m, &o, prompt, 10 + 10 * i);
        g[i] = recording(&r[i], s[i], 50);
    }
    OK(vb_evaluate(s[3], 0, see_nothing, NULL, &err));
    vb_session *turned[4] = {s[2], s[0], s[1], s[3]}; /* the first, whose options the batch has, takes no features of
                                                         EAGLE-3 */
    vb_generate_options of_turned[4] = {g[2], g[0], g[1], g[3]};
    OK(generate_together(turned, 4, of_turned, results, &err));
    for (size_t i = 0; i < 4; i++) {
        r[i].result = results[(size_t[]){1, 2, 0, 3}[i]];
        check_same(draft[i], &plain[i], &r[i]);
        vb_session_close(s[i]);
    }
    vb_model_close(m);
}

/* ---- heads that do not fit --------------------------------------------------------------------------------------- */

static char dir[64];

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

/* A head with a changed key; it is opened for `target`. */
static void refuse_config(int version, const char *key, const char *value, int code, const char *says)
{
    struct eagle_head *head;
    vb_model *m = open_tiny("v3");
    copy_checkpoint(dir, heads[version == 3]);
    edit_config(heads[version == 3], key, value);
    REFUSED(eagle_head_open(&head, dir, version, m, &err), code, says);
    assert_null(head);
    remove_dir(dir);
    vb_model_close(m);
}

TEST(a_config_that_asks_for_something_else_is_refused_by_name)
{
    refuse_config(1, "num_hidden_layers", "2", VB_UNSUPPORTED, "num_hidden_layers 2 is not supported, only 1");
    refuse_config(1, "hidden_size", "80", VB_BAD_ARGUMENT,
                  "hidden states of 80 numbers; those of golden/tiny/v3 have 64");
    refuse_config(3, "target_hidden_size", "80", VB_BAD_ARGUMENT, "hidden states of 80");
    refuse_config(1, "vocab_size", "161", VB_BAD_ARGUMENT, "a vocabulary of 161 tokens");
    refuse_config(1, "hidden_act", "\"gelu\"", VB_UNSUPPORTED, "hidden_act \"gelu\"");
    refuse_config(1, "rope_scaling", "{\"type\": \"linear\", \"factor\": 2}", VB_UNSUPPORTED, "linear");
    refuse_config(1, "attention_bias", "true", VB_UNSUPPORTED, "attention_bias");
    refuse_config(1, "norm_before_residual", "true", VB_UNSUPPORTED,
                  "norm_before_residual true is not supported, only false");
    refuse_config(3, "norm_before_residual", "\"yes\"", VB_BAD_CHECKPOINT, "norm_before_residual");
    refuse_config(3, "layer_types", "[\"sliding_attention\"]", VB_UNSUPPORTED,
                  "layer_types [\"sliding_attention\"] is not supported, only full_attention");
    refuse_config(3, "norm_before_fc", "true", VB_BAD_CHECKPOINT, "input_norm.weight is missing");
    refuse_config(3, "eagle_config", "{\"norm_before_fc\": true}", VB_BAD_CHECKPOINT, "input_norm.weight is missing");
    refuse_config(3, "eagle_config", "{\"norm_before_fc\": 2}", VB_BAD_CHECKPOINT, "eagle_config.norm_before_fc is 2");
    refuse_config(3, "eagle_config", "{\"norm_before_fc\": true, \"fc_norm\": true}", VB_BAD_CHECKPOINT,
                  "norm_before_fc and fc_norm are both true");
    refuse_config(3, "fc_norm", "true", VB_BAD_CHECKPOINT, "fc_norm.0.weight is missing");
    refuse_config(3, "num_attention_heads", "0", VB_BAD_CHECKPOINT, "num_attention_heads");
    refuse_config(3, "num_attention_heads", "3", VB_BAD_CHECKPOINT, "heads");
    refuse_config(3, "num_key_value_heads", "3", VB_BAD_CHECKPOINT, "do not share 3 keys");
    refuse_config(3, "intermediate_size", NULL, VB_BAD_CHECKPOINT, "intermediate_size is missing");
    refuse_config(3, "intermediate_size", "97", VB_BAD_CHECKPOINT, "mlp.gate_proj.weight is not [97,64]");
    refuse_config(3, "draft_vocab_size", "95", VB_BAD_CHECKPOINT, "lm_head.weight is not [95,64]");
    refuse_config(3, "eagle_config", "{\"eagle_aux_hidden_state_layer_ids\": [0, 2, 2]}", VB_UNSUPPORTED,
                  "eagle_aux_hidden_state_layer_ids");
}

/* The config.json of vllm-project/speculators: the sizes of the layer are in an object of their own. */
TEST(a_config_of_speculators_is_read)
{
    char path[256], *text;
    struct eagle_head *head;
    vb_model *m = open_tiny("v3");
    copy_checkpoint(dir, heads[1]);
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *layer = json_load_file(path, 0, NULL),
           *config = json_pack("{s:s,s:b}", "speculators_model_type", "eagle3", "norm_before_residual", 1);
    assert_non_null(layer);
    json_object_set(config, "draft_vocab_size", json_object_get(layer, "draft_vocab_size"));
    json_object_del(layer, "draft_vocab_size");
    json_object_set_new(config, "transformer_layer_config", layer);
    text = json_dumps(config, 0);
    write_file(dir, "config.json", text, strlen(text));
    free(text);
    OK(eagle_head_open(&head, dir, 3, m, &err));
    assert_int_equal(head->model.config.dims.G, 2);
    assert_int_equal(head->vocab_size, 96);
    assert_int_equal(head->norms.norm_before_residual, 1);
    assert_int_equal(head->norms.norm_output, 0);
    eagle_head_close(head);
    json_object_set_new(config, "transformer_layer_config", json_integer(7));
    text = json_dumps(config, 0);
    write_file(dir, "config.json", text, strlen(text));
    free(text);
    REFUSED(eagle_head_open(&head, dir, 3, m, &err), VB_BAD_CHECKPOINT, "transformer_layer_config");
    json_decref(config);
    remove_dir(dir);
    vb_model_close(m);
}

/* The safetensors of a head with other names: a list of {from, to}. */
static void refuse_renamed(int version, const char *from, const char *to, int code, const char *says)
{
    struct eagle_head *head;
    vb_model *m = open_tiny("v3");
    char path[256], *data, *at;
    size_t size;
    uint64_t header;
    copy_checkpoint(dir, heads[version == 3]);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    OK(vb_read_file(NULL, path, &data, &size, &err));
    memcpy(&header, data, sizeof header);
    at = memmem(data + 8, header, from, strlen(from));
    assert_true(at && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
    write_file(dir, "model.safetensors", data, size);
    vb_free(NULL, data);
    REFUSED(eagle_head_open(&head, dir, version, m, &err), code, says);
    remove_dir(dir);
    vb_model_close(m);
}

TEST(tensors_that_are_missing_or_unknown_are_named)
{
    refuse_renamed(1, "\"fc.weight\"", "\"fd.weight\"", VB_BAD_CHECKPOINT, "fc.weight is missing");
    refuse_renamed(1, "\"fc.bias\"", "\"fc.vias\"", VB_UNSUPPORTED, "fc.vias is not a tensor of an EAGLE-1 head");
    refuse_renamed(3, "\"d2t\"", "\"d3t\"", VB_BAD_CHECKPOINT, "d2t is missing");
    refuse_renamed(3, "\"t2d\"", "\"t3d\"", VB_UNSUPPORTED, "t3d is not a tensor");
    refuse_renamed(3, "\"norm.weight\"", "\"norn.weight\"", VB_BAD_CHECKPOINT, "norm.weight is missing");
    refuse_renamed(3, "midlayer.hidden_norm", "midlayer.hidden_morm", VB_BAD_CHECKPOINT,
                   "hidden_norm.weight is missing");
    refuse_renamed(3, "\"I64\"", "\"U64\"", VB_UNSUPPORTED, "d2t is U64, wanted I64");

    struct eagle_head *head;
    vb_model *m = open_tiny("v3");
    copy_checkpoint(dir, heads[1]);
    char path[256], *data;
    size_t size, n;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    struct golden g = golden_read(path);
    size_t at = (size_t)((char *)golden_data(&g, "d2t", &n) - g.bytes);
    golden_close(&g);
    OK(vb_read_file(NULL, path, &data, &size, &err));
    memcpy(data + at + 95 * sizeof(int64_t), &(int64_t){65}, sizeof(int64_t)); /* 95 + 65 = 160 */
    write_file(dir, "model.safetensors", data, size);
    vb_free(NULL, data);
    REFUSED(eagle_head_open(&head, dir, 3, m, &err), VB_BAD_CHECKPOINT,
            "d2t[95] leads to a token outside the vocabulary of 160");
    remove_dir(dir);
    REFUSED(eagle_head_open(&head, heads[0], 3, m, &err), VB_BAD_CHECKPOINT, "fc.weight is not [64,192]");
    REFUSED(eagle_head_open(&head, heads[1], 1, m, &err), VB_BAD_CHECKPOINT, "fc.weight is not [64,128]");
    /* a model is no head */
    REFUSED(eagle_head_open(&head, "golden/tiny/glm", 1, m, &err), VB_UNSUPPORTED, "num_hidden_layers 3");
    vb_model_close(m);
}

TEST(targets_that_do_not_fit_are_refused)
{
    struct eagle_head *head;
    vb_session *s;
    vb_model *m = open_tiny("moonlight");
    REFUSED(eagle_head_open(&head, heads[0], 1, m, &err), VB_BAD_ARGUMENT,
            "states of 64 numbers; those of golden/tiny/moonlight have 80");
    REFUSED(vb_session_open(&s, m, &(vb_session_options){.context = 9, .drafting.method = "eagle"}, &err),
            VB_BAD_ARGUMENT, "directory of a draft head");
    REFUSED(vb_session_open(&s, m,
                            &(vb_session_options){.context = 9, .drafting.method = "eagle3",
                                                  .drafting.head = "nowhere"},
                            &err),
            VB_IO, "nowhere");
    for (size_t v = 0; v < 2; v++)
        REFUSED(vb_session_open(&s, m,
                                &(vb_session_options){.context = 9, .drafting.method = methods[v],
                                                      .drafting.head = heads[1 - v]},
                                &err),
                VB_BAD_ARGUMENT,
                v ? "an EAGLE-1 head, draft method eagle3 wants the other kind"
                  : "an EAGLE-3 head, draft method eagle wants the other kind");
    vb_model_close(m);
    m = open_tiny("v3");
    struct config few = m->config, read = {0};
    struct eagle_config e;
    few.num_hidden_layers = 2;
    REFUSED(config_read_eagle(&read, &e, heads[1], 3, &few, "the target", NULL, &err), VB_UNSUPPORTED,
            "before three layers, and the model has 2");
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pass_gives_the_official_codes_numbers),
        cmocka_unit_test(features_come_from_before_three_layers_in_the_targets_order),
        cmocka_unit_test(a_drafter_observes_the_rows_that_it_takes),
        cmocka_unit_test(drafts_of_a_head_are_the_official_codes_when_its_features_are),
        cmocka_unit_test(trees_of_a_head_are_the_official_codes),
        cmocka_unit_test(every_head_gives_the_bits_of_plain_decoding),
        cmocka_unit_test(heads_with_norms_of_speculators_give_the_bits_of_plain_decoding),
        cmocka_unit_test(no_history_shows_in_the_drafts_of_a_head),
        cmocka_unit_test(heads_share_passes_and_evaluations_with_the_rest),
        cmocka_unit_test(a_config_that_asks_for_something_else_is_refused_by_name),
        cmocka_unit_test(a_config_of_speculators_is_read),
        cmocka_unit_test(tensors_that_are_missing_or_unknown_are_named),
        cmocka_unit_test(targets_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
