/* tests/engine/test_tree_drafters.c -- draft trees of real drafters: they have the bits of plain decoding, whatever
 * their shape; a node's row is that of the same drafts as a chain. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include "engine/draft/mtp.h"

struct method {
    const char *model, *draft, *head;
};
static const struct method methods[] = {
    {"golden/tiny/v3", "mtp-eagle", NULL},
    {"golden/tiny/v3-mtp3", "mtp-eagle", NULL},
    {"golden/tiny/glm5", "mtp-eagle", NULL},
    {"golden/tiny/v3", "eagle", "golden/eagle/eagle1-v3"},
    {"golden/tiny/v3", "eagle3", "golden/eagle/eagle3-v3"},
    {"golden/tiny/v3", "parallel-heads", "golden/heads/parallel-v3"},
    {"golden/tale", "mtp-eagle", NULL},
};

static size_t methods_here(void) { return COUNT(methods) - !have_tale(); }

static vb_session_options options_of(const struct method *m, int K, int topk, int nodes)
{
    return (vb_session_options){.context = 200, .threads = 1, .drafting.method = m->draft, .drafting.head = m->head,
                                .drafting.tokens = K, .drafting.tree.topk = topk, .drafting.tree.nodes = nodes,
                                .poison_cut_rows = 1};
}

TEST(trees_of_every_shape_give_the_bits_of_plain_decoding)
{
    static const int shapes[][3] = {{1, 2, 0}, {1, 16, 0}, {2, 2, 0}, {2, 16, 64}, {3, 3, 0}, {3, 4, 10}, {5, 8, 31},
                                    {7, 2, 7}, {8, 8, 63}, {15, 2, 0}, {15, 16, 64}};
    static struct record plain, r;
    for (size_t i = 0; i < methods_here(); i++) {
        vb_model *m = open_model(methods[i].model);
        int32_t prompt[30];
        size_t n = i == COUNT(methods) - 1 ? 60 : 90, accepted = 0;
        random_tokens(m, 8, prompt, COUNT(prompt));
        for (int temperature = 0; temperature < 2; temperature++) {
            vb_sampling sampling = {.temperature = (float)temperature, .seed = 11};
            run_plain(m, &sampling, prompt, COUNT(prompt), n, &plain);
            for (size_t k = 0; k < COUNT(shapes); k++) {
                char what[128];
                vb_session_options o = options_of(&methods[i], shapes[k][0], shapes[k][1], shapes[k][2]);
                if (!has_turn(k + (size_t)temperature, 3))
                    continue;
                o.sampling = sampling;
                o.threads = 1 + (int)(k % 2);
                o.exact_threads = 1;
                o.prefill_chunk = (int)(k % 3 * 7);
                o.context = (int32_t)(COUNT(prompt) + n + k % 2);
                run(m, &o, prompt, COUNT(prompt), n, &r);
                snprintf(what, sizeof what, "%s of %s, K %d, topk %d, nodes %d, temperature %d", o.drafting.method,
                         methods[i].model, o.drafting.tokens, o.drafting.tree.topk, o.drafting.tree.nodes, temperature);
                check_same(what, &plain, &r);
                assert_int_equal(r.result.draft_failures, 0);
                accepted += r.result.accepted;
            }
        }
        assert_true(accepted > 10);
        vb_model_close(m);
    }
}

/* A node's confidence, bit for bit, by chains: each of its ancestors drafted in turn by mtp_rows, which knows no
 * tree. */
static double confidence_by_chain(struct drafter *d, struct pass *pass, const struct draft_tree *t, int node)
{
    struct mtp_state *s = &mtp_of(d)->state;
    int32_t path[VB_MAX_DRAFT], best[VB_MAX_TOPK], first;
    double p[VB_MAX_TOPK], confidence = 1.0;
    size_t failed = 0, d_of = s->net->width, V = s->net->vocab_size, before = mtp_row_count(s, 0);
    int depth = t->depth[node];
    for (int a = node; a >= 0; a = t->parent[a])
        path[t->depth[a] - 1] = t->token[a];
    assert_int_equal(mtp_round(s, pass, &first, 1, &failed), 1);
    size_t N = mtp_row_count(s, 0), last = N - 1 - (before < N ? before : N - 1);
    for (int level = 0; level < depth; level++) {
        if (level) {
            memcpy(s->h, s->next + last * d_of, d_of * sizeof *s->h);
            mtp_rows(s, pass, 0, 1, 0, FROM_ITSELF, path);
            s->net->type->logits(s->net, pass, 0, s->logits, s->g, 0, 1);
            last = 0;
        }
        int n = drafter_best(&s->options, s->logits, V, s->options.topk, best, p, &failed), found = 0;
        for (int i = 0; i < n; i++)
            if (mtp_token(s, best[i]) == path[level])
                confidence *= p[i], found = 1;
        if (!found)
            fail_msg("node %d: token %d is none of the best at depth %d", node, path[level], level + 1);
    }
    mtp_cut(s, 0, N);
    mtp_round_ends(s);
    return confidence;
}

TEST(a_nodes_row_is_that_of_the_same_drafts_as_a_chain)
{
    static struct record r;
    for (size_t i = 0; i < methods_here(); i++) {
        if (!strcmp(methods[i].draft, "parallel-heads")) continue; /* a node has no row: test_parallel_heads */
        vb_model *m = open_model(methods[i].model);
        int32_t prompt[24];
        random_tokens(m, 3, prompt, COUNT(prompt));
        vb_session_options o = options_of(&methods[i], 6, 4, 40);
        vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
        for (int round = 0; round < 4; round++) {
            struct draft_tree t;
            size_t failed = 0;
            generate(s, 5, &r);
            s->type->propose_tree(s->drafter, s->pass, &t, 6, &failed);
            assert_int_equal(t.count, 40);
            for (int node = 0; node < t.count; node++) {
                if (!has_turn((size_t)(node + round), 3))
                    continue;
                double c = confidence_by_chain(s->drafter, s->pass, &t, node);
                if (c != t.confidence[node])
                    fail_msg("%s of %s, round %d, node %d at depth %d: confidence %.17g, by a chain %.17g",
                             o.drafting.method, methods[i].model, round, node, t.depth[node], t.confidence[node], c);
            }
        }
        vb_session_close(s);
        vb_model_close(m);
    }
}

TEST(topk_1_drafts_the_chain)
{
    static struct record r;
    for (size_t i = 0; i < methods_here(); i++) {
        vb_model *m = open_model(methods[i].model);
        int32_t prompt[24];
        random_tokens(m, 5, prompt, COUNT(prompt));
        vb_session_options o = options_of(&methods[i], 9, 2, 9);
        vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
        mtp_of(s->drafter)->state.tree.builder.topk = 1;
        for (int round = 0; round < 5; round++) {
            struct draft_tree t;
            int32_t drafts[VB_MAX_DRAFT];
            size_t failed = 0;
            generate(s, 4, &r);
            s->type->propose_tree(s->drafter, s->pass, &t, 9, &failed);
            int n = drafter_propose_one(s->type, s->drafter, s->pass, drafts, 9, &failed);
            assert_int_equal(t.count, n);
            assert_memory_equal(t.token, drafts, (size_t)n * sizeof *drafts);
            for (int k = 0; k < n; k++)
                assert_true(t.parent[k] == k - 1 && t.depth[k] == k + 1);
        }
        vb_session_close(s);
        vb_model_close(m);
    }
}

/* A session that has been through rounds and cuts proposes what a new one does. */
TEST(no_history_shows_in_a_tree)
{
    static struct record r;
    for (uint64_t seed = 0; seed < 30; seed++) {
        const struct method *method = &methods[seed % 6];
        if (!has_turn(seed + seed / 6, 3))
            continue;
        vb_model *m = open_model(method->model);
        vb_session_options o = options_of(method, 1 + (int)((seed + seed / 6) % 6), 2 + (int)(seed / 6 % 4), 0);
        int32_t tokens[40], next[2], drafts[2][VB_MAX_NODES], parents[2][VB_MAX_NODES], n[2];
        double confidences[2][VB_MAX_NODES];
        uint64_t random = seed;
        size_t count;
        random_tokens(m, seed, tokens, COUNT(tokens));
        vb_session *s = open_session(m, &o, tokens, 1 + random_below(&random, 30));
        for (int step = 0; step < 4; step++) {
            generate(s, 1 + random_below(&random, 12), &r);
            vb_tokens(s, &count);
            if (step % 2)
                OK(vb_truncate(s, 1 + random_below(&random, count), &err));
            else
                OK(vb_append(s, tokens, random_below(&random, 20), &err));
        }
        OK(vb_draft_tree(s, &next[0], drafts[0], parents[0], confidences[0], &n[0], &err));
        const int32_t *timeline = vb_tokens(s, &count);
        o.sampling = (vb_sampling){.bias_tokens = &next[0], .bias_values = &(float){1e6f}, .bias_count = 1};
        vb_session *fresh = open_session(m, &o, timeline, count - 1);
        OK(vb_draft_tree(fresh, &next[1], drafts[1], parents[1], confidences[1], &n[1], &err));
        assert_int_equal(next[0], next[1]);
        assert_int_equal(n[0], n[1]);
        assert_true(n[0] > 0);
        assert_memory_equal(drafts[0], drafts[1], (size_t)n[0] * sizeof **drafts);
        assert_memory_equal(parents[0], parents[1], (size_t)n[0] * sizeof **parents);
        assert_memory_equal(confidences[0], confidences[1], (size_t)n[0] * sizeof **confidences);
        vb_session_close(fresh);
        vb_session_close(s);
        vb_model_close(m);
    }
}

TEST(trees_and_chains_share_passes)
{
    static struct record plain[5], r[5];
    static const struct method shared[] = {
                                           {"", "mtp-eagle", NULL}, {"", "eagle", "golden/eagle/eagle1-v3"},
                                           {"", "mtp-vanilla", NULL}, {"", "mtp-eagle", NULL}, {"", "none", NULL}};
    static const int shapes[][3] = {{5, 4, 64}, {3, 2, 0}, {2, 0, 0}, {15, 3, 40}, {0, 0, 0}};
    vb_model *m = open_tiny("v3");
    vb_session *s[5], *small;
    vb_generate_options g[5];
    vb_result results[5];
    int32_t prompt[50];
    random_tokens(m, 6, prompt, COUNT(prompt));
    for (size_t i = 0; i < 5; i++) {
        vb_session_options o = options_of(&shared[i], shapes[i][0], shapes[i][1], shapes[i][2]);
        o.prefill_chunk = 9;
        run_plain(m, NULL, prompt, 10 + 10 * i, 50, &plain[i]);
        s[i] = open_session(m, &o, prompt, 10 + 10 * i);
        g[i] = recording(&r[i], s[i], 50);
    }
    small = open_session(m, &(vb_session_options){.context = 200, .threads = 1, .prefill_chunk = 9}, prompt, 10);
    REFUSED(generate_together((vb_session *[]){small, s[0]}, 2, g, results, &err), VB_BAD_ARGUMENT,
            "draft nodes is 64, for which the batch has no room");
    vb_session_close(small);
    OK(generate_together(s, 5, g, results, &err));
    for (size_t i = 0; i < 5; i++) {
        r[i].result = results[i];
        check_same(shared[i].draft, &plain[i], &r[i]);
        vb_session_close(s[i]);
    }
    vb_model_close(m);
}

/* Requests of a batch, which begin alike and have too small a cache for all: rows are shared, given back, computed
 * again. */
struct request {
    int32_t prompt[60];
    size_t count, ended;
    struct record plain;
};

static void check_request(void *context, const vb_request_end *e)
{
    struct request *q = context;
    if (e->code)
        fail_msg("a request with trees: %s", e->error->message);
    assert_int_equal(e->count, q->count + q->plain.n);
    for (size_t i = 0; i < q->plain.n; i++)
        assert_int_equal(e->tokens[q->count + i], q->plain.token[i]);
    assert_true(e->result->drafted > 0);
    q->ended++;
}

TEST(batches_draft_trees)
{
    static struct request q[6];
    vb_model *m = open_tiny("v3");
    for (size_t v = 0; v < 3; v++) {
        const struct method *method = &methods[(size_t[]){0, 3, 4}[v]];
        vb_session_options like = options_of(method, 4, 3, 0);
        vb_batch_options o = {.session = &like, .max_sequences = 4, .cache_tokens = 262};
        vb_batch_state state;
        vb_batch *b;
        like.context = 190;
        like.prefill_chunk = 16;
        OK(vb_batch_open(&b, m, &o, &err));
        for (size_t i = 0; i < COUNT(q); i++) {
            q[i].count = 20 + 7 * i;
            q[i].ended = 0;
            random_tokens(m, 60, q[i].prompt, q[i].count);
            q[i].prompt[q[i].count - 1] = (int32_t)i + 5;
            run_plain(m, NULL, q[i].prompt, q[i].count, 110, &q[i].plain);
            OK(vb_batch_add(b,
                            &(vb_request){.tokens = q[i].prompt, .count = q[i].count,
                                          .options = &(vb_generate_options){.max_tokens = 110, .ignore_eos = 1},
                                          .done = check_request, .context = &q[i]},
                            NULL, &err));
        }
        OK(vb_batch_run(b, &err));
        vb_batch_look(b, &state);
        print_message("%s: %zu tokens shared, %zu sequences set aside, %zu passes\n", method->draft,
                      state.shared_tokens, state.preemptions, state.passes);
        assert_true(state.shared_tokens > 0 && state.preemptions > 0);
        for (size_t i = 0; i < COUNT(q); i++)
            assert_int_equal(q[i].ended, 1);
        vb_batch_close(b);
    }
    vb_model_close(m);
}

TEST(what_does_not_go_with_trees_is_refused_by_name)
{
    static const struct {
        vb_session_options o;
        const char *says;
    } cases[] = {
        {{.drafting.method = "mtp-eagle", .drafting.tree.topk = 17}, "draft topk is 17, wanted 1 to 16"},
        {{.drafting.method = "mtp-eagle", .drafting.tree.topk = -1}, "draft topk is -1"},
        {{.drafting.method = "mtp-eagle", .drafting.tree.nodes = 8}, "draft nodes is 8, but drafts are a chain"},
        {{.drafting.method = "mtp-eagle", .drafting.tree.topk = 1, .drafting.tree.nodes = 8},
         "draft nodes is 8, but drafts are a chain"},
        {{.drafting.method = "mtp-eagle", .drafting.tree.topk = 2, .drafting.tree.nodes = 65},
         "draft nodes is 65, wanted 4"},
        {{.drafting.method = "mtp-eagle", .drafting.tree.topk = 2, .drafting.tree.nodes = 3},
         "draft nodes is 3, wanted 4"},
        {{.drafting.method = "mtp-vanilla", .drafting.tree.topk = 2}, "mtp-vanilla drafts chains"},
        {{.drafting.method = "ngram", .drafting.tree.topk = 2}, "ngram drafts chains"},
        {{.drafting.method = "mtp-eagle", .drafting.tree.topk = 2, .drafting.automatic = 1}, "auto is of chains"},
        {{.drafting.method = "mtp-eagle", .drafting.tree.topk = 2, .padded = 1}, "padded passes are of chains"},
        {{.drafting.method = "mtp-eagle", .drafting.tree.topk = 2, .sampling = {.acceptance = "rejection"}},
         "acceptance rejection is of chains"},
        {{.drafting.method = "mtp-eagle", .drafting.tree.topk = 2, .sampling = {.acceptance = "relaxed"}},
         "acceptance relaxed is of chains"},
    };
    vb_model *m = open_tiny("v3");
    vb_session *s;
    for (size_t i = 0; i < COUNT(cases); i++) {
        vb_session_options o = cases[i].o;
        o.context = 30;
        o.drafting.tokens = 4;
        REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT, cases[i].says);
    }
    int32_t next, drafts[VB_MAX_NODES], n;
    s = open_session(m, &(vb_session_options){.context = 30, .drafting.method = "mtp-eagle", .drafting.tree.topk = 2},
                     (int32_t[]){5, 6}, 2);
    REFUSED(vb_draft(s, &next, drafts, &n, &err), VB_BAD_ARGUMENT, "vb_draft_tree");
    vb_session_close(s);
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_of_every_shape_give_the_bits_of_plain_decoding),
        cmocka_unit_test(a_nodes_row_is_that_of_the_same_drafts_as_a_chain),
        cmocka_unit_test(topk_1_drafts_the_chain),
        cmocka_unit_test(no_history_shows_in_a_tree),
        cmocka_unit_test(trees_and_chains_share_passes),
        cmocka_unit_test(batches_draft_trees),
        cmocka_unit_test(what_does_not_go_with_trees_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
