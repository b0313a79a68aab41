/* tests/engine/test_cache_type.c -- the option cache_type: taps report the rounded rows, session files name the type,
 * and the caches of EAGLE heads are not rounded. tests/ops/checkops_attention.c checks the arithmetic;
 * test_properties.c and test_session_save.c check that nothing else reaches a bit. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include "engine/draft/mtp.h"
#include "engine/pass/pass.h"

#define TOKENS 40

static const struct {
    const char *type, *dir;
} types[] = {{"bf16", "golden/tiny/v3"}, {"q8", "golden/tiny/v3-mtp3"}};

/* ---- taps ---- */

struct told {
    const vb_session *session;
    size_t latent, rope, rows[2]; /* rows: of the target, and of modules */
};

/* A number that BF16 can hold. */
static int is_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return !(bits & 0xffff);
}

static const struct kvcache *cache_of(const struct told *t, const vb_tap *tap)
{
    return tap->depth < 0 ? &t->session->cache : &mtp_of(t->session->drafter)->state.depths[tap->depth].cache;
}

/* Every row that a tap reports is the row in the cache. */
static void look(void *context, const vb_tap *tap)
{
    struct told *t = context;
    int rope = strstr(tap->name, ".self_attn.k_rope") != NULL;
    if (!rope && !strstr(tap->name, ".self_attn.kv_a_layernorm.output"))
        return;
    for (size_t r = 0; r < tap->rows; r++) {
        const struct kvcache *cache = cache_of(t, tap);
        const float *data = (const float *)tap->data + r * tap->stride;
        float row[256];
        assert_int_equal(tap->inner, rope ? t->rope : t->latent);
        kv_row_read(&cache->pool->layout, row,
                    kvcache_row(cache, tap->depth < 0 ? (size_t)tap->layer : 0, tap->row[r].slot));
        assert_memory_equal(data, row + (rope ? t->latent : 0), tap->inner * sizeof *data);
        t->rows[tap->depth >= 0]++;
        for (size_t i = 0; rope && i < t->rope; i++)
            assert_true(is_bf16(data[i]));
    }
}

TEST(taps_report_the_rows_that_the_cache_holds)
{
    static struct record r;
    for (size_t i = 0; i < COUNT(types); i++) {
        vb_model *m = open_cached(types[i].dir, types[i].type);
        struct told t = {.latent = m->config.dims.c, .rope = m->config.dims.r};
        int32_t prompt[TOKENS];
        vb_session_options o = {.context = 2 * TOKENS, .threads = 1, .tap = look, .tap_context = &t,
                                .drafting.method = "mtp-eagle", .drafting.tokens = 2};
        random_tokens(m, i, prompt, TOKENS);
        vb_session *s = open_session(m, &o, prompt, TOKENS);
        t.session = s;
        generate(s, 10, &r);
        assert_true(t.rows[0] >= 2 * TOKENS * m->config.dims.layers && t.rows[1] >= TOKENS);
        vb_session_close(s);
        vb_model_close(m);
    }
}

/* ---- session files ---- */

static void load_fails(const char *dir, const char *type, const char *file, const char *part)
{
    vb_session *s;
    vb_model *m = open_cached(dir, type);
    vb_session_options o = {.context = 2 * TOKENS, .threads = 1};
    REFUSED(vb_session_load(&s, m, &o, file, NULL, &err), VB_BAD_ARGUMENT, part);
    vb_model_close(m);
}

static void save_one(const vb_model *m, const char *file, struct record *after)
{
    int32_t prompt[TOKENS];
    vb_session_options o = {.context = 2 * TOKENS, .threads = 1, .drafting.method = "mtp-eagle", .drafting.tokens = 2};
    random_tokens(m, 1, prompt, TOKENS);
    vb_session *s = open_session(m, &o, prompt, TOKENS);
    generate(s, 5, after);
    OK(vb_session_save(s, file, &(vb_file_options){.replace = 1}, &err));
    generate(s, 20, after);
    vb_session_close(s);
}

TEST(a_session_file_is_of_one_cache_type)
{
    static struct record want, r;
    char dir[64], file[96], part[160];
    make_dir(dir);
    snprintf(file, sizeof file, "%s/session", dir);
    for (size_t i = 0; i < COUNT(types); i++) {
        vb_model *m = open_cached(types[i].dir, types[i].type);
        vb_session_options o = {.context = 2 * TOKENS, .threads = 1, .drafting.method = "mtp-eagle",
                                .drafting.tokens = 2};
        vb_session_info info;
        vb_session *s;
        save_one(m, file, &want);
        OK(vb_session_info_read(&info, file, 1, NULL, &err));
        assert_string_equal(info.cache_type, types[i].type);
        assert_int_equal(info.version, 2);
        OK(vb_session_load(&s, m, &o, file, NULL, &err));
        generate(s, 20, &r);
        check_same("loaded", &want, &r);
        assert_memory_equal(want.depth, r.depth, want.n * sizeof *want.depth); /* the module's cache was loaded too */
        vb_session_close(s);
        snprintf(part, sizeof part, "was saved with cache type %s, here it is f32", types[i].type);
        load_fails(types[i].dir, "f32", file, part);
        vb_model_close(m);

        m = open_cached(types[i].dir, "f32");
        save_one(m, file, &want);
        vb_model_close(m);
        OK(vb_session_info_read(&info, file, 1, NULL, &err));
        assert_string_equal(info.cache_type, "f32");
        assert_int_equal(info.version, 1); /* programs that know no cache types can read it */
        snprintf(part, sizeof part, "was saved with cache type f32, here it is %s", types[i].type);
        load_fails(types[i].dir, types[i].type, file, part);
    }
    remove_dir(dir);
}

/* ---- the rest ---- */

TEST(each_cache_type_has_bits_and_a_fingerprint_of_its_own)
{
    static struct record r[2];
    for (size_t i = 0; i < COUNT(types); i++) {
        uint64_t fingerprint[2];
        size_t bytes[2];
        for (int k = 0; k < 2; k++) {
            vb_model *m = open_cached(types[i].dir, k ? types[i].type : NULL);
            vb_model_facts facts;
            int32_t prompt[TOKENS];
            vb_session_options o = {.context = 2 * TOKENS, .threads = 1};
            random_tokens(m, 2, prompt, TOKENS);
            run(m, &o, prompt, TOKENS, 20, &r[k]);
            OK(vb_model_fingerprint(m, 1, 1, &fingerprint[k], &err));
            vb_model_look(m, &facts);
            assert_string_equal(facts.cache_type, k ? types[i].type : "f32");
            bytes[k] = model_cache_bytes(&m->config, m->config.cache_type);
            vb_model_close(m);
        }
        assert_true(r[0].result.fingerprint != r[1].result.fingerprint && fingerprint[0] != fingerprint[1] &&
                    bytes[1] < bytes[0]);
    }
}

TEST(caches_of_eagle_heads_are_f32_and_drafts_change_nothing)
{
    static struct record plain, drafted;
    vb_model *m = open_cached("golden/tiny/v3", "bf16");
    int32_t prompt[TOKENS];
    vb_session_options o = {.context = 2 * TOKENS, .threads = 1,
                            .drafting = {.method = "eagle3", .head = "golden/eagle/eagle3-v3", .tokens = 3}};
    random_tokens(m, 3, prompt, TOKENS);
    run_plain(m, NULL, prompt, TOKENS, 30, &plain);
    vb_session *s = open_session(m, &o, prompt, TOKENS);
    assert_int_equal(mtp_of(s->drafter)->state.depths[0].cache.pool->layout.type, KV_F32);
    generate(s, 30, &drafted);
    check_same_prefix("eagle3", &plain, &drafted, 30);
    assert_true(drafted.result.drafted > 0);
    vb_session_close(s);
    vb_model_close(m);
}

TEST(unknown_cache_types_are_refused)
{
    vb_model *m;
    REFUSED(vb_model_open(&m, "golden/tiny/v3", &(vb_model_options){.cache_type = "q4"}, &err), VB_BAD_ARGUMENT,
            "unknown cache type q4; known are f32, bf16 and q8");
}

TEST(q8_wants_latents_of_whole_groups)
{
    vb_model *m;
    REFUSED(vb_model_open(&m, "golden/tiny/v3", &(vb_model_options){.cache_type = "q8"}, &err), VB_BAD_ARGUMENT,
            "golden/tiny/v3: kv_lora_rank is 48, cache type q8 wants a multiple of 32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(taps_report_the_rows_that_the_cache_holds),
        cmocka_unit_test(a_session_file_is_of_one_cache_type),
        cmocka_unit_test(each_cache_type_has_bits_and_a_fingerprint_of_its_own),
        cmocka_unit_test(caches_of_eagle_heads_are_f32_and_drafts_change_nothing),
        cmocka_unit_test(unknown_cache_types_are_refused),
        cmocka_unit_test(q8_wants_latents_of_whole_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
