/* tests/engine/test_properties.c -- the promise: MTP-on equals MTP-off, bit by bit, whatever the setting.
 *
 * Settings are rows of a covering array: every pair of values of any two factors, the model among them, occurs in a
 * row. Each row runs several sequences in shared passes, cache rows beyond every cut poisoned with NaN, and each
 * sequence must equal its own plain run (no drafts, one thread, one pass for the prompt, the best instruction set):
 * tokens, and the bits of every row that chose one. Runs in the repository's root.
 *     test_properties            200 tokens per sequence; 24 where the kernels are the scalar ones, which are slow
 *     test_properties --all      the full product, instruction sets in turn: hours
 *     test_properties --quick    a few settings and tokens, for sanitizers and emulators */
#include "tests/support/engine_support.h"
#include "tests/support/methods.h"
#include "tests/support/wide_checkpoint.h"

#include <stdatomic.h>
#include <time.h>

static int all, quick;

/* ---- factors ----------------------------------------------------------------------------------------------------- */

enum factor { DRAFT_TOKENS, METHOD, THREADS, CHUNK, TEMPERATURE, SEQUENCES, MODEL, PREFILL, CACHE, ISA, FACTORS };

static const char *const factor_names[FACTORS] = {"K", "method", "threads", "chunk", "temperature", "sequences",
                                                  "model", "prefill", "cache", "isa"};
static struct methods methods; /* all that there are */
static vb_model *small; /* that drafts: itself one of them, and another one to the others */
static const int thread_counts[] = {1, 2, 3}, chunks[] = {1, 7, 64, 0 /* all */}, sequence_counts[] = {1, 2, 5};

/* each with plain runs of its own */
static const char *const prefills[] = {"contract", "expanded"}, *const caches[] = {"f32", "bf16", "q8"};

static const char *const models[] = {"golden/tiny/v3", "golden/tiny/v3-mtp3", "golden/tiny/glm5", "golden/tale"};

/* The bundled model comes last, so that without it the others keep their numbers. */
static int num_models(void) { return have_tale() ? COUNT(models) : COUNT(models) - 1; }

static int impossible[MOST_METHODS][COUNT(models)]; /* the heads are those of some models */

static int open_methods(void **unused __attribute__((unused)))
{
    for (int i = 0; i < num_models(); i++) {
        vb_model *m = open_model(models[i]);
        methods = i ? methods : methods_for(m, ALL_METHODS);
        for (size_t k = 0; k < methods.count; k++)
            impossible[k][i] = !can_draft(m, methods.name[k]);
        vb_model_close(m);
    }
    return 0;
}

struct row_of_values {
    int value[FACTORS];
};

static void factor_sizes(int size[FACTORS])
{
    int fixed[FACTORS] = {VB_MAX_DRAFT + 1, (int)methods.count, COUNT(thread_counts), COUNT(chunks), 2,
                          COUNT(sequence_counts), num_models(), COUNT(prefills), COUNT(caches), 0};
    memcpy(size, fixed, sizeof fixed);
    while (isas_here()[size[ISA]])
        size[ISA]++;
}

/* ---- the covering array ------------------------------------------------------------------------------------------ */

#define MOST_VALUES 16
#define MOST_ROWS 400

struct cover {
    int size[FACTORS];
    unsigned char done[FACTORS][MOST_VALUES][FACTORS][MOST_VALUES];
    struct row_of_values rows[MOST_ROWS];
    int num_rows;
};

/* The number of new pairs if factor f has value v; -1: this cannot be. */
static int gain(const struct cover *c, const int *value, int f, int v)
{
    int n = 0;
    if ((f == METHOD && value[MODEL] >= 0 && impossible[v][value[MODEL]]) ||
        (f == MODEL && value[METHOD] >= 0 && impossible[value[METHOD]][v]))
        return -1;
    for (int g = 0; g < FACTORS; g++)
        n += g != f && value[g] >= 0 && !c->done[f][v][g][value[g]];
    return n;
}

static void mark(struct cover *c, const int *value)
{
    for (int f = 0; f < FACTORS; f++)
        for (int g = 0; g < FACTORS; g++)
            c->done[f][value[f]][g][value[g]] = 1;
}

static int uncovered(const struct cover *c, int pair[4])
{
    for (int f = 0; f < FACTORS; f++)
        for (int g = f + 1; g < FACTORS; g++)
            for (int v = 0; v < c->size[f]; v++)
                for (int w = 0; w < c->size[g]; w++)
                    if (!c->done[f][v][g][w]) {
                        memcpy(pair, (int[4]){f, v, g, w}, 4 * sizeof *pair);
                        return 1;
                    }
    return 0;
}

/* Greedy: a row begins with a pair that is missing; the other factors, in random order, take the value that covers most
 * pairs. The best of several such rows is taken. */
static void cover_pairs(struct cover *c, uint64_t seed)
{
    int pair[4];
    memset(c, 0, sizeof *c);
    factor_sizes(c->size);
    assert_true(methods.count <= MOST_VALUES);
    for (int k = 0; k < c->size[METHOD]; k++)
        for (int i = 0; i < c->size[MODEL]; i++)
            c->done[METHOD][k][MODEL][i] = c->done[MODEL][i][METHOD][k] = impossible[k][i] != 0;
    while (uncovered(c, pair)) {
        struct row_of_values best = {{0}};
        int best_gain = -1;
        for (int attempt = 0; attempt < 50; attempt++) {
            int value[FACTORS], order[FACTORS], total = 0;
            for (int f = 0; f < FACTORS; f++) {
                value[f] = -1;
                order[f] = f;
            }
            value[pair[0]] = pair[1];
            value[pair[2]] = pair[3];
            for (int f = FACTORS; f-- > 1;) {
                int other = (int)random_below(&seed, (size_t)f + 1), swap = order[f];
                order[f] = order[other];
                order[other] = swap;
            }
            for (int i = 0; i < FACTORS; i++) {
                int f = order[i], first = (int)random_below(&seed, (size_t)c->size[f]), most = -1, start = value[f];
                for (int j = 0; start < 0 && j < c->size[f]; j++) {
                    int v = (first + j) % c->size[f], covers = gain(c, value, f, v);
                    if (covers > most) {
                        most = covers;
                        value[f] = v;
                    }
                }
            }
            for (int f = 0; f < FACTORS; f++)
                total += gain(c, value, f, value[f]);
            if (total > best_gain) {
                best_gain = total;
                memcpy(best.value, value, sizeof value);
            }
        }
        assert_true(c->num_rows < MOST_ROWS);
        mark(c, best.value);
        c->rows[c->num_rows++] = best;
    }
}

TEST(the_settings_cover_every_pair_of_values)
{
    static struct cover c;
    cover_pairs(&c, 1);
    for (int f = 0; f < FACTORS; f++)
        for (int g = f + 1; g < FACTORS; g++)
            for (int v = 0; v < c.size[f]; v++)
                for (int w = 0; w < c.size[g]; w++) {
                    int rows = 0;
                    for (int i = 0; i < c.num_rows; i++)
                        rows += c.rows[i].value[f] == v && c.rows[i].value[g] == w;
                    if (!rows != (f == METHOD && g == MODEL && impossible[v][w]))
                        fail_msg("%d settings have %s = value %d together with %s = value %d", rows, factor_names[f],
                                 v, factor_names[g], w);
                }
    int product = 1;
    for (int f = 0; f < FACTORS; f++)
        product *= c.size[f];
    print_message("%d settings of %d cover every pair\n", c.num_rows, product);
    assert_true(c.num_rows * 8 < product);
    for (size_t k = 0; k < methods.count; k++)
        assert_false(impossible[k][0]);
}

/* What `make test` leaves out at one commit, it tries at others. */
TEST(every_case_of_a_sweep_has_its_turn)
{
    char turn[24], *given = getenv("VERBATIM_TURN") ? strdup(getenv("VERBATIM_TURN")) : NULL;
    for (size_t shares = 1; shares < 6; shares++)
        for (size_t number = 0; number < 20; number++) {
            size_t tried = 0;
            for (size_t t = 0; t < shares; t++) {
                snprintf(turn, sizeof turn, "%zu", 0xfffffff0 + t);
                setenv("VERBATIM_TURN", turn, 1);
                tried += (size_t)has_turn(number, shares);
            }
            assert_int_equal(tried, 1);
            unsetenv("VERBATIM_TURN");
            assert_true(has_turn(number, shares));
        }
    if (given)
        setenv("VERBATIM_TURN", given, 1);
    free(given);
}

/* ---- sequences --------------------------------------------------------------------------------------------------- */

#define PROMPTS 5
#define SEED 20260

static struct subject {
    const char *name;
    vb_model *model[COUNT(caches)];
    int32_t prompt[PROMPTS][200];
    size_t length[PROMPTS], tokens, context;
    struct record plain[COUNT(caches)][COUNT(prefills)][2][PROMPTS]; /* by cache type, prefill and temperature; computed
                                                                        when needed */
    size_t sequences, drafted, accepted;
} subjects[COUNT(models)];

static vb_sampling sampling_of(int temperature, size_t prompt)
{
    return (vb_sampling){.temperature = (float)temperature, .seed = SEED + prompt};
}

static void subject_open(struct subject *s, const char *dir)
{
    static const size_t lengths[PROMPTS] = {40, 1, 130, 9, 70}, shorter[PROMPTS] = {33, 1, 56, 9, 20};
    s->name = dir;
    for (size_t c = 0; c < COUNT(caches); c++)
        s->model[c] = open_cached(dir, c == 2 && s->model[0]->config.kv_lora_rank % 32 ? "bf16" : caches[c]);
    int narrow = vb_max_positions(s->model[0]) < 400;
    s->tokens = quick ? 24 : all ? 200 : narrow ? 120 : 60;
    s->context = (narrow ? 56 : 130) + s->tokens; /* the longest prompt ends with a full context */
    for (size_t p = 0; p < PROMPTS; p++) {
        s->length[p] = narrow ? shorter[p] : lengths[p];
        random_tokens(s->model[0], SEED + p, s->prompt[p], s->length[p]);
    }
}

/* Returns the plain run of a prompt. */
static const struct record *plain_run(struct subject *s, const struct row_of_values *r, size_t p)
{
    const int *v = r->value;
    struct record *plain = &s->plain[v[CACHE]][v[PREFILL]][v[TEMPERATURE]][p];
    vb_session_options o = {.context = (int32_t)s->context, .threads = 1, .prefill = prefills[v[PREFILL]],
                            .sampling = sampling_of(v[TEMPERATURE], p)};
    if (!plain->n)
        run(s->model[v[CACHE]], &o, s->prompt[p], s->length[p], s->tokens, plain);
    return plain;
}

static const char *describe(const struct row_of_values *r, char text[200])
{
    const int *v = r->value;
    snprintf(text, 200, "%s: %s, cache %s, %s, K %d, %d threads, chunk %d, temperature %d, %d sequences, %s",
             models[v[MODEL]], prefills[v[PREFILL]], caches[v[CACHE]], methods.name[v[METHOD]], v[DRAFT_TOKENS],
             thread_counts[v[THREADS]], chunks[v[CHUNK]], v[TEMPERATURE], sequence_counts[v[SEQUENCES]],
             isas_here()[v[ISA]]);
    return text;
}

static vb_session_options options_of(const struct subject *s, const struct row_of_values *r, size_t prompt)
{
    const int *v = r->value;
    vb_drafting drafting = drafting_of(s->model[v[CACHE]], methods.name[v[METHOD]],
                                       v[DRAFT_TOKENS] ? v[DRAFT_TOKENS] : -1);
    drafting.model = small;
    drafting.settings = "ngram-min=1";
    return (vb_session_options){.context = (int32_t)s->context, .prefill_chunk = chunks[v[CHUNK]],
                                .prefill = prefills[v[PREFILL]], .exact_threads = 1,
                                .threads = thread_counts[v[THREADS]], .isa = isas_here()[v[ISA]],
                                .drafting = drafting,
                                .sampling = sampling_of(v[TEMPERATURE], prompt), .poison_cut_rows = 1};
}

/* `turn` chooses which of the prompts come first. The scalar kernels are slow: a part of the tokens is enough. */
static void check_setting(const struct row_of_values *r, size_t turn)
{
    static struct record record[PROMPTS];
    struct subject *s = &subjects[r->value[MODEL]];
    vb_session *sessions[PROMPTS] = {NULL};
    vb_generate_options options[PROMPTS] = {0};
    vb_result results[PROMPTS];
    char setting[200], what[256];
    size_t count = (size_t)sequence_counts[r->value[SEQUENCES]];
    size_t n = !strcmp(isas_here()[r->value[ISA]], "scalar") && s->tokens > 24 ? 24 : s->tokens;

    describe(r, setting);
    for (size_t i = 0; i < count; i++) {
        size_t p = (turn + i) % PROMPTS;
        vb_session_options o = options_of(s, r, p);
        sessions[i] = open_session(s->model[r->value[CACHE]], &o, s->prompt[p], s->length[p]);
        record[i].stop_after = 0;
        options[i] = recording(&record[i], sessions[i], n);
    }
    vb_error err = {0};
    if (generate_together(sessions, count, options, results, &err))
        fail_msg("%s: %s", setting, err.message);
    for (size_t i = 0; i < count; i++) {
        size_t p = (turn + i) % PROMPTS;
        record[i].result = results[i];
        snprintf(what, sizeof what, "prompt %zu as sequence %zu, %s", p, i, setting);
        if (n == s->tokens)
            check_same(what, plain_run(s, r, p), &record[i]);
        else
            check_same_prefix(what, plain_run(s, r, p), &record[i], n);
        assert_int_equal(record[i].n, n);
        s->drafted += results[i].drafted;
        s->accepted += results[i].accepted;
        s->sequences++;
        if (results[i].draft_failures)
            fail_msg("%s: %zu drafts met a row that is not finite: a poisoned row was read", what,
                     results[i].draft_failures);
        vb_session_close(sessions[i]);
    }
}

/* The i-th of the full product, but for the instruction set, which takes turns. Returns 0 beyond the last. */
static int product_row(const int size[FACTORS], int i, struct row_of_values *r)
{
    int rest = i;
    for (int f = 0; f < ISA; rest /= size[f++])
        r->value[f] = rest % size[f];
    r->value[ISA] = (i / 7 + i) % size[ISA];
    return rest == 0;
}

TEST(every_setting_gives_the_bits_of_plain_decoding)
{
    static struct cover c;
    int done = 0;
    cover_pairs(&c, 1);
    small = open_model(models[0]);
    for (int i = 0; i < c.size[MODEL]; i++)
        subject_open(&subjects[i], models[i]);
    struct row_of_values r;
    for (int i = 0; all && product_row(c.size, i, &r); i++)
        if (!impossible[r.value[METHOD]][r.value[MODEL]] &&
            (r.value[DRAFT_TOKENS] || !r.value[METHOD])) { /* K = 0 is the same whatever the method */
            check_setting(&r, (size_t)i);
            done++;
        }
    for (int i = 0; !all && i < c.num_rows; i += quick ? 9 : 1)
        if (has_turn((size_t)i, 6)) {
            check_setting(&c.rows[i], (size_t)i);
            done++;
        }
    print_message("%d settings\n", done);
    for (int i = 0; i < c.size[MODEL]; i++) {
        struct subject *s = &subjects[i]; /* nobody should believe in a test that accepts, or rejects, every draft */
        print_message("%s: %zu sequences of %zu tokens, %zu drafts, %zu accepted\n", s->name, s->sequences, s->tokens,
                      s->drafted, s->accepted);
        assert_true(s->accepted > 0 && s->accepted < s->drafted);
        for (size_t k = 0; k < COUNT(caches); k++)
            vb_model_close(s->model[k]);
    }
    vb_model_close(small);
}

/* Models without MTP: chunks, threads, sequences and instruction sets alone. */
static void check_without_mtp(const char *name)
{
    static struct record plain[PROMPTS], other[PROMPTS];
    int32_t prompt[PROMPTS][60];
    size_t length[PROMPTS] = {33, 1, 56, 9, 20}, n = quick ? 12 : 40;
    char dir[64], what[160];
    snprintf(dir, sizeof dir, "golden/tiny/%s", name);
    vb_model *m = open_model(dir);
    for (size_t p = 0; p < PROMPTS; p++) {
        random_tokens(m, SEED + p, prompt[p], length[p]);
        run_plain(m, NULL, prompt[p], length[p], n, &plain[p]);
    }
    for (size_t i = 0; i < COUNT(chunks) * COUNT(thread_counts); i++)
        for (const char *const *isa = isas_here(); *isa; isa++) {
            vb_session *sessions[PROMPTS];
            vb_generate_options options[PROMPTS];
            vb_result results[PROMPTS];
            vb_session_options o = {.context = 128, .prefill_chunk = chunks[i % COUNT(chunks)], .isa = *isa,
                                    .exact_threads = 1, .threads = thread_counts[i / COUNT(chunks)],
                                    .poison_cut_rows = 1};
            size_t count = 1 + i % PROMPTS;
            for (size_t p = 0; p < count; p++) {
                sessions[p] = open_session(m, &o, prompt[p], length[p]);
                options[p] = recording(&other[p], sessions[p], n);
            }
            OK(generate_together(sessions, count, options, results, &err));
            for (size_t p = 0; p < count; p++) {
                snprintf(what, sizeof what, "%s, prompt %zu: %d threads, chunk %d, %zu sequences, %s", name, p,
                         o.threads, o.prefill_chunk, count, *isa);
                other[p].result = results[p];
                check_same(what, &plain[p], &other[p]);
                vb_session_close(sessions[p]);
            }
        }
    vb_model_close(m);
}

TEST(models_without_mtp_give_the_same_bits_in_every_setting)
{
    check_without_mtp("v2");
    check_without_mtp("v2-lite");
    check_without_mtp("moonlight");
}

/* ---- threads that really run ------------------------------------------------------------------------------------- */

/* The kernels of a session are replaced by ones that note which thread called them, and for how many rows. */
static const struct kernels *spied;
static atomic_uint threads_seen, threads_seen_one_row;
static atomic_int spied_threads; /* every thread that comes takes the next number */
static _Thread_local int spied_number = -1;

static void spying_matmul(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1, const float *x,
                          size_t ldx, size_t T, void *scratch)
{
    atomic_uint *seen = T == 1 ? &threads_seen_one_row : &threads_seen;
    if (spied_number < 0)
        spied_number = atomic_fetch_add(&spied_threads, 1);
    atomic_fetch_or(seen, 1u << spied_number % 32);
    spied->matmul[w->type](y, ldy, w, n0, n1, x, ldx, T, scratch);
}

TEST(threads_change_no_bit_and_do_run)
{
    static struct record plain, other;
    char dir[64], what[160];
    int32_t prompt[70];
    size_t n = quick ? 6 : 20, drafted = 0, accepted = 0;
    wide_checkpoint(dir);
    vb_model *m = open_model(dir);
    random_tokens(m, 3, prompt, COUNT(prompt));
    run_plain(m, NULL, prompt, COUNT(prompt), n, &plain);
    for (int i = 0; i < (quick ? 4 : 12); i++) {
        int threads = 2 + i % 2;
        vb_session_options o = {.context = 160, .prefill_chunk = chunks[i / 2 % 4], .exact_threads = 1,
                                .threads = threads, .drafting.method = mtp_method((size_t)(i / 4)),
                                .drafting.tokens = i < 2 ? -1 : 1 + i * 7 % VB_MAX_DRAFT, .poison_cut_rows = 1};
        struct kernels spying;
        vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
        spied = s->pass->cx.k;
        spying = *spied;
        for (int type = 0; type < WEIGHT_TYPES; type++)
            spying.matmul[type] = spying_matmul;
        s->pass->cx.k = &spying;
        threads_seen = threads_seen_one_row = 0;
        generate(s, n, &other);
        vb_session_close(s);
        snprintf(what, sizeof what, "wide, %s, K %d, chunk %d, %d threads", o.drafting.method, o.drafting.tokens,
                 o.prefill_chunk, threads);
        check_same(what, &plain, &other);
        if (__builtin_popcount(threads_seen | threads_seen_one_row) != threads)
            fail_msg("%s: threads that ran: %#x", what, threads_seen | threads_seen_one_row);
        if (o.drafting.tokens < 0 && __builtin_popcount(threads_seen_one_row) != threads)
            fail_msg("%s: threads that ran in passes of one row: %#x", what, threads_seen_one_row);
        drafted += other.result.drafted;
        accepted += other.result.accepted;
    }
    print_message("wide: %zu drafts, %zu accepted\n", drafted, accepted);
    assert_true(accepted > 0 && accepted < drafted);
    vb_model_close(m);
    remove_dir(dir);
}

int main(int argc, char **argv)
{
    all = argc > 1 && !strcmp(argv[1], "--all");
    quick = argc > 1 && !strcmp(argv[1], "--quick");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_settings_cover_every_pair_of_values),
        cmocka_unit_test(every_case_of_a_sweep_has_its_turn),
        cmocka_unit_test(every_setting_gives_the_bits_of_plain_decoding),
        cmocka_unit_test(models_without_mtp_give_the_same_bits_in_every_setting),
        cmocka_unit_test(threads_change_no_bit_and_do_run),
    };
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, open_methods, NULL);
}
