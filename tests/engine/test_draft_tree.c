/* tests/engine/test_draft_tree.c -- growing and pruning a tree of drafts (engine/draft/tree.h), without a model:
 * against the rules written down naively, against all sequences there are, and as a chain. Probabilities are powers of
 * 1/2, so that ties are everywhere. */
#include "tests/support/engine_support.h"

#include "engine/draft/tree.h"
#include "engine/draft/drafter.h"

#include <math.h>

/* ---- a drafter that is a table: what may follow a sequence of ranks ---------------------------------------------- */

struct world {
    uint64_t seed;
    int V, topk, depth, most;
    int sharp; /* the best token of a row takes most of it, so that trees grow deep */
};

struct path {
    int32_t token[VB_MAX_DRAFT];
    int n;
};

/* The best V tokens after a path, the best first, and their probabilities. */
static void row_after(const struct world *w, const struct path *path, int32_t *tokens, double *p)
{
    uint64_t state = w->seed;
    for (int i = 0; i < path->n; i++)
        state = state * 1000003 + (uint64_t)path->token[i] + 1;
    for (int i = 0; i < w->V; i++) {
        double x = ldexp(1.0, -(int)random_below(&state, 4) - (w->sharp ? 3 * (i > 0) : 1));
        int at = i;
        for (; at > 0 && p[at - 1] < x; at--)
            p[at] = p[at - 1], tokens[at] = tokens[at - 1];
        p[at] = x;
        tokens[at] = i;
    }
}

static void by_engine(const struct world *w, struct draft_tree *t)
{
    struct tree_builder b;
    int32_t tokens[64];
    double p[64];
    int n = w->V < w->topk ? w->V : w->topk;
    OK(tree_open(&b, w->topk, w->most, w->depth, NULL, &err));
    for (int again = 0; again < 2; again++) { /* nothing is left of the tree before */
        tree_begin(&b);
        row_after(w, &(struct path){.n = 0}, tokens, p);
        tree_grow(&b, -1, tokens, p, n);
        for (int level = 1; level < w->depth; level++) {
            int frontier[VB_MAX_TOPK], count = tree_advance(&b);
            memcpy(frontier, b.frontier, sizeof frontier);
            for (int j = 0; j < count; j++) {
                struct path path = {.n = b.node[frontier[j]].depth};
                for (int a = frontier[j], i = path.n; a >= 0; a = b.node[a].parent)
                    path.token[--i] = b.node[a].token;
                row_after(w, &path, tokens, p);
                tree_grow(&b, frontier[j], tokens, p, n);
            }
        }
        tree_prune(&b, t);
    }
    tree_close(&b, NULL);
}

/* ---- the rules, naively ------------------------------------------------------------------------------------------ */

struct naive {
    const struct naive *parent; /* NULL: the last committed token */
    struct path path;
    double confidence;
    int rank; /* among its siblings */
};

static int compare(const struct naive *a, const struct naive *b)
{
    if (a->confidence != b->confidence)
        return a->confidence > b->confidence ? -1 : 1;
    if (a->path.n != b->path.n)
        return a->path.n - b->path.n;
    if (a->parent != b->parent)
        return compare(a->parent, b->parent);
    return a->rank - b->rank;
}

static int compare_pointers(const void *a, const void *b)
{
    return compare(*(const struct naive *const *)a, *(const struct naive *const *)b);
}

#define MOST 200000
static struct naive pool[MOST], *order[MOST];

/* All nodes that are looked at when every level expands its `wide` best, each into `children`; sorted. */
static int by_hand(const struct world *w, int wide, int children)
{
    int count = 0, first = 0, level_size = 0;
    const struct naive *frontier[MOST / 8] = {NULL};
    int frontier_count = 1;
    for (int level = 0; level < w->depth; level++) {
        first = count;
        for (int j = 0; j < frontier_count; j++) {
            int32_t tokens[64];
            double p[64];
            struct path before = frontier[j] ? frontier[j]->path : (struct path){.n = 0};
            row_after(w, &before, tokens, p);
            for (int i = 0; i < children; i++) {
                struct naive *node = &pool[count++];
                assert_true(count < MOST);
                *node = (struct naive){.parent = frontier[j], .path = before, .rank = i,
                                       .confidence = (frontier[j] ? frontier[j]->confidence : 1.0) * p[i]};
                node->path.token[node->path.n++] = tokens[i];
            }
        }
        level_size = count - first;
        for (int i = 0; i < level_size; i++)
            order[i] = &pool[first + i];
        qsort(order, (size_t)level_size, sizeof *order, compare_pointers);
        frontier_count = level_size < wide ? level_size : wide;
        for (int j = 0; j < frontier_count; j++)
            frontier[j] = order[j];
    }
    for (int i = 0; i < count; i++)
        order[i] = &pool[i];
    qsort(order, (size_t)count, sizeof *order, compare_pointers);
    return count;
}

static void check_tree(const char *what, const struct world *w, const struct draft_tree *t, int count)
{
    int n = count < w->most ? count : w->most;
    if (t->count != n)
        fail_msg("%s: %d nodes, wanted %d", what, t->count, n);
    for (int i = 0; i < n; i++) {
        const struct naive *node = order[i];
        int parent = -1;
        for (int k = 0; k < i; k++)
            parent = order[k] == node->parent ? k : parent;
        if (t->confidence[i] != node->confidence || t->depth[i] != node->path.n ||
            t->token[i] != node->path.token[node->path.n - 1] || t->parent[i] != parent)
            fail_msg("%s: node %d is token %d, depth %d, after %d, %g; wanted %d, %d, %d, %g", what, i, t->token[i],
                     t->depth[i], t->parent[i], t->confidence[i], node->path.token[node->path.n - 1], node->path.n,
                     parent, node->confidence);
    }
}

TEST(trees_are_the_rules_ties_and_all)
{
    struct draft_tree t;
    char what[96];
    size_t deepest = 0;
    for (uint64_t seed = 0; seed < 4000; seed++) {
        uint64_t r = seed;
        struct world w = {.seed = next_random(&r), .topk = 1 + (int)random_below(&r, seed % 5 ? 5 : VB_MAX_TOPK),
                          .sharp = seed % 3 == 0};
        w.V = w.topk + (int)random_below(&r, 4);
        w.depth = 1 + (int)random_below(&r, seed % 7 ? 5 : VB_MAX_DRAFT);
        w.most = w.depth + (int)random_below(&r, (size_t)(VB_MAX_NODES - w.depth + 1));
        by_engine(&w, &t);
        snprintf(what, sizeof what, "seed %d: topk %d, depth %d, %d nodes", (int)seed, w.topk, w.depth, w.most);
        check_tree(what, &w, &t, by_hand(&w, w.topk, w.topk));
        for (int i = 0; i < t.count; i++)
            deepest = (size_t)t.depth[i] > deepest ? (size_t)t.depth[i] : deepest;
    }
    assert_int_equal(deepest, VB_MAX_DRAFT);
}

/* As wide as it has nodes, a tree misses nothing: it holds the most probable of all sequences. */
TEST(wide_trees_hold_the_most_probable_sequences_there_are)
{
    struct draft_tree t;
    for (uint64_t seed = 0; seed < 600; seed++) {
        uint64_t r = seed;
        struct world w = {.seed = next_random(&r), .V = 2 + (int)random_below(&r, 3), .topk = VB_MAX_TOPK,
                          .sharp = seed % 2};
        w.depth = 1 + (int)random_below(&r, 5);
        w.most = VB_MAX_TOPK;
        by_engine(&w, &t);
        check_tree("all sequences", &w, &t, by_hand(&w, MOST / 8, w.V));
    }
}

TEST(a_tree_of_topk_1_is_the_chain)
{
    struct draft_tree t;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct world w = {.seed = seed, .V = 5, .topk = 1, .depth = 1 + (int)(seed % VB_MAX_DRAFT),
                          .most = VB_MAX_DRAFT};
        struct path path = {.n = 0};
        by_engine(&w, &t);
        assert_int_equal(t.count, w.depth);
        for (int i = 0; i < w.depth; i++) {
            int32_t tokens[64];
            double p[64];
            row_after(&w, &path, tokens, p);
            assert_int_equal(t.token[i], tokens[0]);
            assert_int_equal(t.parent[i], i - 1);
            assert_int_equal(t.depth[i], i + 1);
            path.token[path.n++] = tokens[0];
        }
    }
}

TEST(children_are_found_in_order)
{
    static const struct draft_tree t = {.count = 6, .parent = {-1, 0, -1, 0, 2, 0}, .depth = {1, 2, 1, 2, 2, 2}};
    static const int expected[][4] = {{0, 2, -1}, {1, 3, 5, -1}, {-1}, {4, -1}, {-1}, {-1}, {-1}};
    for (int node = -1; node < t.count; node++)
        for (int i = 0, at = -1;; i++) {
            at = tree_child(&t, node, at);
            assert_int_equal(at, expected[node + 1][i]);
            if (at < 0)
                break;
        }
}

/* The best tokens of a row and their probabilities, against a sort and a sum. */
TEST(the_best_of_a_row_are_sorted_and_weigh_what_they_should)
{
    int known;
    vb_session_options asked = {.drafting.tree.topk = 2};
    struct drafter_options o = {.asked = &asked, .kernels = kernels_select("best", &known)};
    for (uint64_t seed = 0; seed < 300; seed++) {
        uint64_t r = seed;
        size_t V = 1 + random_below(&r, 700), failed = 0;
        int want = 1 + (int)random_below(&r, VB_MAX_TOPK), n;
        static float z[700];
        int32_t tokens[VB_MAX_TOPK];
        double p[VB_MAX_TOPK], sum = 0;
        for (size_t i = 0; i < V; i++)
            z[i] = (float)random_below(&r, seed % 2 ? 6 : 100000) * (seed % 2 ? 1.0f : 1e-4f) - 3;
        n = drafter_best(&o, z, V, want, tokens, p, &failed);
        assert_int_equal(n, V < (size_t)want ? V : (size_t)want);
        for (size_t i = 0; i < V; i++)
            sum += exp((double)z[i] - (double)z[tokens[0]]);
        for (int i = 0; i < n; i++) {
            size_t before = 0;
            for (size_t v = 0; v < V; v++)
                before += z[v] > z[tokens[i]] || (z[v] == z[tokens[i]] && v < (size_t)tokens[i]);
            assert_int_equal(before, i);
            assert_true(fabs(p[i] * sum / exp((double)z[tokens[i]] - (double)z[tokens[0]]) - 1) < 1e-5);
        }
        asked.drafting.p_min = (float)p[n / 2];
        int kept = drafter_best(&o, z, V, want, tokens, p, &failed);
        for (int i = 0; i < n; i++)
            assert_int_equal(i < kept, p[i] >= (double)asked.drafting.p_min);
        asked.drafting.p_min = 0;
        z[V / 2] = NAN;
        assert_int_equal(drafter_best(&o, z, V, want, tokens, p, &failed), 0);
        assert_int_equal(failed, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_the_rules_ties_and_all),
        cmocka_unit_test(wide_trees_hold_the_most_probable_sequences_there_are),
        cmocka_unit_test(a_tree_of_topk_1_is_the_chain),
        cmocka_unit_test(children_are_found_in_order),
        cmocka_unit_test(the_best_of_a_row_are_sorted_and_weigh_what_they_should),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
