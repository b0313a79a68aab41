/* tests/engine/test_slot_lists.c -- the lists of slots of draft trees, of which only new slots are copied, are those
 * that would be copied as a whole, whatever was done to the cache. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include "numbers/numbers.h"
#include "engine/draft/mtp.h"

enum { CAPACITY = 60, LISTS = 5 };

/* ---- a cache and its lists --------------------------------------------------------------------------------------- */

static void append(struct kvcache *c, size_t n)
{
    while (n-- && c->length < c->capacity)
        kvcache_append(c);
}

/* Asks for a list, which may end anywhere in the cache. */
static void check_list(int step, struct slot_lists *l, struct kvcache *c, uint64_t *seed)
{
    size_t i = random_below(seed, LISTS), n = random_below(seed, 4) ? c->length : random_below(seed, c->length + 1);
    int32_t *list = slot_list(l, c, i, n);
    for (size_t j = 0; j < n; j++)
        if (list[j] != c->slots[j])
            fail_msg("step %d: slot %zu of list %zu is %d, not %d", step, j, i, (int)list[j], (int)c->slots[j]);
    for (size_t j = n; j < n + 10; j++)
        list[j] = -1; /* the tree's own */
}

/* A tree of `n` nodes follows, of which a path of some is accepted. */
static void accept_a_path(int step, struct slot_lists *l, struct kvcache *c, uint64_t *seed)
{
    size_t base = c->length, n = random_below(seed, 10), accepted = 0;
    int32_t path[10];
    append(c, n);
    check_list(step, l, c, seed);
    for (size_t i = 0; i < c->length - base; i++)
        if (random_below(seed, 2))
            path[accepted++] = (int32_t)i;
    kvcache_take_path(c, base, path, accepted);
    kvcache_truncate(c, base + accepted);
}

/* The last row is put aside, another one takes its place for a while, and the first comes back. */
static void replace_for_a_while(struct kvcache *c, uint64_t *seed)
{
    if (!c->length)
        return;
    int32_t slot = kvcache_put_aside(c);
    size_t n = c->length;
    append(c, random_below(seed, 4));
    if (random_below(seed, 2))
        kvcache_truncate(c, n);
    if (c->length < c->capacity)
        kvcache_put_back(c, slot);
}

static void operate(int step, struct slot_lists *l, struct kvcache *c, const struct kvcache *other, uint64_t *seed)
{
    switch (random_below(seed, 6)) {
    case 0:
        append(c, random_below(seed, 12));
        break;
    case 1:
        kvcache_truncate(c, random_below(seed, c->length + 1));
        break;
    case 2: case 3:
        accept_a_path(step, l, c, seed);
        break;
    case 4:
        replace_for_a_while(c, seed);
        break;
    case 5: /* as a sequence of a batch that begins like another one */
        if (random_below(seed, 3))
            return;
        kvcache_truncate(c, 0);
        kvcache_begin_as(c, other, random_below(seed, other->length + 1));
    }
}

TEST(a_list_begins_with_the_slots_of_its_cache)
{
    struct kvpool pool;
    struct kvcache caches[2];
    struct slot_lists lists[2];
    uint64_t seed = 1;
    OK(kvpool_open(&pool, 1, 3 * CAPACITY, (struct kv_layout){.latent = 4, .rope = 2}, NULL, &err));
    for (size_t k = 0; k < 2; k++) {
        OK(kvcache_open_in(&caches[k], &pool, CAPACITY, NULL, &err));
        assert_true(slot_lists_open(&lists[k], LISTS, CAPACITY + 10, NULL));
    }
    for (int step = 0; step < 20000; step++) {
        size_t k = random_below(&seed, 2);
        operate(step, &lists[k], &caches[k], &caches[1 - k], &seed);
        if (random_below(&seed, 3)) /* not each round has a tree */
            check_list(step, &lists[k], &caches[k], &seed);
    }
    for (size_t k = 0; k < 2; k++) {
        slot_lists_close(&lists[k], NULL);
        kvcache_close(&caches[k], NULL);
    }
    kvpool_close(&pool, NULL);
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

/* What the next tree will not copy must be right. Returns the number of such slots. */
static size_t check_lists(const char *what, const struct slot_lists *l, const struct kvcache *c)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->count; i++)
        for (size_t j = 0; j < l->copied[i] && j < c->changed_from; j++, kept++)
            if (j >= c->length || l->slots[i * l->width + j] != c->slots[j])
                fail_msg("%s: slot %zu of list %zu is %d; the cache has %zu slots", what, j, i,
                         (int)l->slots[i * l->width + j], c->length);
    return kept;
}

TEST(lists_are_right_after_whatever_is_done_to_a_session)
{
    static const struct {
        const char *model, *conventions;
    } models[] = {{"v3", NULL}, {"v3-mtp3", "first-row=phantom"}, {"v3", "missing-hidden=zeros"}, {"glm5", NULL}};
    static struct record r;
    size_t kept = 0;
    for (uint64_t run = 0; run < 24; run++) {
        char what[64], dir[64];
        int32_t tokens[40], next, drafts[VB_MAX_NODES], parents[VB_MAX_NODES], n;
        double confidences[VB_MAX_NODES];
        uint64_t seed = run;
        size_t count, model = run % COUNT(models);
        vb_model *m = NULL;
        snprintf(dir, sizeof dir, "golden/tiny/%s", models[model].model);
        OK(vb_model_open(&m, dir, &(vb_model_options){.conventions = models[model].conventions}, &err));
        vb_session_options o = {.context = 150, .threads = 1, .drafting.method = "mtp-eagle", .poison_cut_rows = 1,
                                .drafting.tokens = 2 + (int)random_below(&seed, 5),
                                .drafting.tree.topk = 2 + (int)random_below(&seed, 5)};
        random_tokens(m, run, tokens, COUNT(tokens));
        vb_session *s = open_session(m, &o, tokens, 1 + random_below(&seed, COUNT(tokens)));
        for (int step = 0; step < 30; step++) {
            vb_tokens(s, &count);
            switch (count ? random_below(&seed, 5) : 0) {
            case 0:
                OK(vb_append(s, tokens, min_size(150 - count, 1 + random_below(&seed, 10)), &err));
                break;
            case 1:
                OK(vb_truncate(s, count - random_below(&seed, min_size(count + 1, random_below(&seed, 3) ? 5 : 99)),
                               &err));
                break;
            case 2: /* a tree that nothing follows */
                if (count < 150)
                    OK(vb_draft_tree(s, &next, drafts, parents, confidences, &n, &err));
                break;
            default:
                generate(s, min_size(150 - count, random_below(&seed, 9)), &r);
                assert_int_equal(r.result.draft_failures, 0);
            }
            const struct mtp_state *state = &mtp_of(s->drafter)->state;
            snprintf(what, sizeof what, "run %d, step %d", (int)run, step);
            kept += check_lists(what, &s->node_slots, &s->cache);
            kept += check_lists(what, &state->tree.slots, &state->depths[0].cache);
        }
        vb_session_close(s);
        vb_model_close(m);
    }
    assert_true(kept > 10000); /* else nothing was checked */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_begins_with_the_slots_of_its_cache),
        cmocka_unit_test(lists_are_right_after_whatever_is_done_to_a_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
