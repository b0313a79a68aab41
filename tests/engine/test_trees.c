/* tests/engine/test_trees.c -- trees of drafts in the engine: any tree, right or wrong, leaves every bit of the output
 * as it is; what a drafter is told is what plain decoding tells it. Runs in the repository's root. */
#include "tests/support/engine_support.h"

/* ---- an adversary: trees by chance, which know what plain decoding says ------------------------------------------ */

enum { PROMPT = 19, TOKENS = 70, MOST_OBSERVED = 128 };

struct adversary {
    const vb_session *session;
    const int32_t *right;       /* the timeline of plain decoding, by index */
    size_t right_count, V;
    int shape;                  /* 0: any; 1: one chain; 2: all follow the last token; 3: right ones last, behind wrong
                                   ones */
    uint64_t state;
    /* counted by hand */
    size_t drafted, accepted, rounds, drafted_by_depth[VB_MAX_DRAFT], accepted_by_depth[VB_MAX_DRAFT];
    /* what it was told */
    size_t known;
    int32_t tokens[MOST_OBSERVED];
    uint64_t hidden[MOST_OBSERVED];
};

static void observe(struct drafter *d, struct pass *pass, size_t pos, const int32_t *tokens, const float *hidden,
                    size_t n)
{
    struct adversary *a = (struct adversary *)d;
    size_t width = (size_t)vb_hidden_size(a->session->model);
    (void)pass;
    assert_true(n > 0 && pos <= a->known && pos + n <= MOST_OBSERVED);
    for (size_t j = 0; j < n; j++) {
        a->tokens[pos + j] = tokens[j];
        if (pos + j > 0)
            a->hidden[pos + j - 1] = vb_fingerprint(VB_FINGERPRINT_START, hidden + j * width, width);
    }
    a->known = pos + n;
}

static int propose_nothing(struct drafter *d, struct pass *pass, int32_t *draft, int max, size_t *failed)
{
    (void)d, (void)pass, (void)draft, (void)max, (void)failed;
    return 0;
}

/* How far the tree is right: the first child with the right token, then the first of its children, ... */
static void count_by_hand(struct adversary *a, const struct draft_tree *t)
{
    size_t count = a->session->count;
    int at = -1;
    for (int i = 0; i < t->count; i++)
        a->drafted_by_depth[t->depth[i] - 1]++;
    for (size_t depth = 0;; depth++) {
        int next = -1;
        for (int i = t->count - 1; i >= 0; i--)
            if (t->parent[i] == at && t->token[i] == a->right[count + depth])
                next = i;
        if (next < 0)
            break;
        at = next;
        a->accepted++;
        a->accepted_by_depth[depth]++;
    }
    a->drafted += (size_t)t->count;
    a->rounds++;
}

static void propose_tree(struct drafter *d, struct pass *pass, struct draft_tree *t, int depth, size_t *failed)
{
    struct adversary *a = (struct adversary *)d;
    size_t count = a->session->count;
    int n = (int)random_below(&a->state, (size_t)a->session->max_drafts + 1), right = -1;
    (void)pass, (void)failed;
    assert_true(depth >= 1 && depth <= a->session->max_draft && count + (size_t)depth < a->right_count + 1);
    assert_int_equal(a->known, count);
    t->count = 0;
    for (int i = 0; i < n; i++) {
        int parent = a->shape == 1 ? t->count - 1
                     : a->shape == 2 ? -1
                     : (int)random_below(&a->state, (size_t)t->count + 1) - 1;
        if (a->shape == 3 && random_below(&a->state, 3))
            parent = right; /* many children of what is right so far */
        int level = parent < 0 ? 1 : t->depth[parent] + 1;
        if (level > depth)
            continue;
        int32_t token = a->right[count + (size_t)level - 1];
        int is_right = random_below(&a->state, 4) > (a->shape == 3 ? 2 : 0);
        t->token[t->count] = is_right ? token : (token + 1 + (int32_t)random_below(&a->state, 3)) % (int32_t)a->V;
        t->parent[t->count] = parent;
        t->depth[t->count] = level;
        if (is_right && (right < 0 ? parent < 0 : parent == right))
            right = t->count;
        t->count++;
    }
    count_by_hand(a, t);
}

static const struct drafter_type adversary_type = {.name = "adversary", .observe = observe, .propose = propose_nothing,
                                                   .propose_tree = propose_tree, .rewind = no_rewind,
                                                   .close = close_nothing};

/* ---- a plain run and its twins ----------------------------------------------------------------------------------- */

struct twin {
    vb_model *model;
    vb_sampling sampling;
    int32_t timeline[PROMPT + TOKENS + VB_MAX_DRAFT];
    struct record plain;
    struct adversary silent; /* which proposes nothing: what a drafter is told then */
};

static void twin_open(struct twin *t, const char *name, const vb_sampling *sampling)
{
    t->model = open_tiny(name);
    t->sampling = sampling ? *sampling : (vb_sampling){0};
    random_tokens(t->model, 177, t->timeline, PROMPT);
    run_plain(t->model, &t->sampling, t->timeline, PROMPT, TOKENS, &t->plain);
    memcpy(t->timeline + PROMPT, t->plain.token, TOKENS * sizeof *t->timeline);
    vb_session_options o = {.context = PROMPT + TOKENS, .threads = 1, .sampling = t->sampling};
    static struct record r;
    vb_session *s = open_session(t->model, &o, t->timeline, PROMPT);
    t->silent = (struct adversary){.session = s};
    give_drafter(s, &adversary_type, &t->silent, 1);
    generate(s, TOKENS, &r);
    vb_session_close(s);
    check_same("a drafter that says nothing", &t->plain, &r);
}

/* The session is opened for trees of mtp-eagle, and then is the adversary's. */
struct borrowed {
    vb_session *s;
    const struct drafter_type *type;
    struct drafter *drafter;
};

static struct borrowed lend(struct twin *t, struct adversary *a, vb_session_options o)
{
    o.context = PROMPT + TOKENS;
    o.drafting.method = "mtp-eagle";
    o.sampling = t->sampling;
    o.poison_cut_rows = 1;
    struct borrowed b = {.s = open_session(t->model, &o, t->timeline, PROMPT)};
    b.type = b.s->type;
    b.drafter = b.s->drafter;
    b.s->type = &adversary_type;
    b.s->drafter = (struct drafter *)a;
    a->session = b.s;
    a->right = t->timeline;
    a->right_count = PROMPT + TOKENS;
    a->V = (size_t)vb_vocab_size(t->model);
    return b;
}

static void give_back(struct borrowed *b)
{
    b->s->type = b->type;
    b->s->drafter = b->drafter;
    vb_session_close(b->s);
}

static void check_counts(const char *what, const vb_result *r, const struct adversary *a)
{
    if (r->drafted != a->drafted || r->accepted != a->accepted)
        fail_msg("%s: drafted %zu, accepted %zu; by hand %zu and %zu", what, r->drafted, r->accepted, a->drafted,
                 a->accepted);
    for (int k = 0; k < VB_MAX_DRAFT; k++)
        if (r->drafted_by_depth[k] != a->drafted_by_depth[k] || r->accepted_by_depth[k] != a->accepted_by_depth[k])
            fail_msg("%s: depth %d: drafted %zu, accepted %zu; by hand %zu and %zu", what, k + 1,
                     r->drafted_by_depth[k], r->accepted_by_depth[k], a->drafted_by_depth[k], a->accepted_by_depth[k]);
}

static void check_told(const char *what, const struct adversary *a, const struct adversary *silent)
{
    if (a->known != silent->known)
        fail_msg("%s: told %zu tokens, plain decoding tells %zu", what, a->known, silent->known);
    for (size_t i = 0; i < a->known; i++)
        if (a->tokens[i] != silent->tokens[i] || (i + 1 < a->known && a->hidden[i] != silent->hidden[i]))
            fail_msg("%s: told another token or hidden state of index %zu than plain decoding tells", what, i);
}

TEST(any_tree_right_or_wrong_changes_nothing_and_is_counted)
{
    static const char *const names[] = {"v3", "v3-mtp3", "glm"};
    static struct twin t;
    static struct record r;
    size_t drafted = 0, accepted = 0, deep = 0;
    for (size_t i = 0; i < COUNT(names); i++)
        for (int temperature = 0; temperature < 2; temperature++) {
            vb_sampling sampling = {.temperature = (float)temperature, .seed = 7, .top_k = 40,
                                    .repetition_penalty = 1.2f, .frequency_penalty = 0.1f};
            twin_open(&t, names[i], &sampling);
            for (uint64_t trial = 0; trial < 12; trial++) {
                char what[128];
                uint64_t random = trial + 100 * i;
                if (!has_turn(trial + (size_t)temperature, 3))
                    continue;
                struct adversary a = {.shape = (int)(trial % 4), .state = trial};
                vb_session_options o = {.exact_threads = 1, .threads = 1 + (trial == 5),
                                        .drafting.tokens = 1 + (int)random_below(&random, VB_MAX_DRAFT),
                                        .drafting.tree.topk = 2, .prefill_chunk = (int[]){0, 1, 7}[trial / 4 % 3],
                                        .isa = isas_here()[0]};
                o.drafting.tree.nodes = o.drafting.tokens +
                                        (int)random_below(&random, (size_t)(VB_MAX_NODES - o.drafting.tokens + 1));
                struct borrowed b = lend(&t, &a, o);
                generate(b.s, TOKENS, &r);
                snprintf(what, sizeof what, "%s, temperature %d, trial %d, %d deep, %d nodes", names[i], temperature,
                         (int)trial, o.drafting.tokens, o.drafting.tree.nodes);
                check_same(what, &t.plain, &r);
                check_counts(what, &r.result, &a);
                check_told(what, &a, &t.silent);
                drafted += a.drafted;
                accepted += a.accepted;
                deep += a.accepted_by_depth[3];
                give_back(&b);
            }
            vb_model_close(t.model);
        }
    print_message("%zu drafts, %zu accepted, %zu at depth 4\n", drafted, accepted, deep);
    assert_true(accepted > drafted / 50 && deep > 20);
}

TEST(a_round_that_asks_for_no_drafts_accepts_none_of_an_earlier_tree)
{
    static struct twin t;
    static struct record r;
    /* which a plan without drafts holds */
    vb_sampling always_0 = {.bias_tokens = &(int32_t){0}, .bias_values = &(float){1e6f}, .bias_count = 1};
    twin_open(&t, "v3", &always_0);
    for (size_t n = 1; n < 20; n++) {
        struct adversary a = {.shape = 1, .state = n};
        struct borrowed b = lend(&t, &a,
                                 (vb_session_options){.threads = 1, .drafting.tokens = 3, .drafting.tree.topk = 2});
        generate(b.s, n, &r);
        check_counts("the same token again and again", &r.result, &a);
        give_back(&b);
    }
    vb_model_close(t.model);
}

/* Events number the drafts that stood; taps and traces tell parents, positions and slots that fit together. */
struct rows_seen {
    vb_tap_row row[VB_MAX_NODES + 1];
    size_t count;
    int path[VB_MAX_DRAFT + 1], path_count; /* numbers of the accepted drafts */
    size_t accepted;
};

static void see_rows(void *context, const vb_tap *tap)
{
    struct rows_seen *seen = context;
    if (tap->depth >= 0 || strcmp(tap->name, "model.norm.output") || tap->row[0].index + 1 < PROMPT)
        return;
    seen->count = tap->rows;
    memcpy(seen->row, tap->row, tap->rows * sizeof *tap->row);
    seen->path_count = 0;
    for (size_t i = 0; i < tap->rows; i++) {
        const vb_tap_row *row = &tap->row[i];
        if (row->draft == 0)
            continue;
        assert_int_equal(row->draft, i); /* one committed row in front */
        assert_in_range(row->parent, 0, i - 1);
        assert_int_equal(row->index, tap->row[row->parent].index + 1);
        assert_int_equal(row->position, row->index);
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(row->slot, tap->row[j].slot);
    }
}

static int see_event(void *context, const vb_event *e)
{
    struct rows_seen *seen = context;
    if (!e->draft_depth) {
        assert_int_equal(e->draft, 0);
        return 0;
    }
    const vb_tap_row *row = &seen->row[e->draft];
    assert_true((size_t)e->draft < seen->count);
    assert_int_equal(row->draft, e->draft);
    assert_int_equal(row->token, e->token);
    assert_int_equal(row->index, e->index);
    assert_int_equal(row->parent, seen->path_count ? seen->path[seen->path_count - 1] : 0);
    seen->path[seen->path_count++] = e->draft;
    assert_int_equal(seen->path_count, e->draft_depth);
    seen->accepted++;
    return 0;
}

TEST(taps_and_events_number_the_nodes)
{
    static struct twin t;
    static struct rows_seen seen;
    twin_open(&t, "v3", NULL);
    for (uint64_t trial = 0; trial < 12; trial++) {
        struct adversary a = {.shape = (int)(trial % 4), .state = 1000 + trial};
        vb_session_options o = {.threads = 1, .drafting.tokens = 6, .drafting.tree.topk = 2, .drafting.tree.nodes = 40,
                                .tap = see_rows, .tap_context = &seen};
        vb_generate_options g = {.max_tokens = TOKENS, .ignore_eos = 1, .callback = see_event, .context = &seen};
        vb_result result;
        struct borrowed b = lend(&t, &a, o);
        OK(vb_generate(b.s, &g, &result, &err));
        give_back(&b);
    }
    assert_true(seen.accepted > 200);
    vb_model_close(t.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_tree_right_or_wrong_changes_nothing_and_is_counted),
        cmocka_unit_test(a_round_that_asks_for_no_drafts_accepts_none_of_an_earlier_tree),
        cmocka_unit_test(taps_and_events_number_the_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
