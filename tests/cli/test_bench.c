/* tests/cli/test_bench.c -- `verbatim bench`: what it says is there and adds up; its times are nobody's promise. Runs
 * the program itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/support.h"
#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define MODEL "golden/tiny/v3-mtp3"

static json_t *config_of_model(void)
{
    json_error_t error;
    json_t *config = json_load_file(MODEL "/config.json", 0, &error);
    if (!config)
        fail_msg("%s", error.text);
    return config;
}

/* Times of a loaded machine tell nothing; shares and ratios of them need only be there. */
static int is_share(const json_t *row, const char *key) { return isfinite(real(row, key)) && real(row, key) > 0; }

/* "in cache" is said of what was read faster than memory allows, and never of more bytes than caches hold. */
static int is_told_where_it_lies(const json_t *row)
{
    const json_t *in_cache = json_object_get(row, "in_cache");
    double passes = strcmp(string(row, "kind"), "generate") ? 1 : real(row, "forwards");
    return json_is_boolean(in_cache) &&
           json_is_true(in_cache) == (real(row, "of_read") > 1.1 && real(row, "bytes") / passes <= 128e6);
}

static int about(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b); }

TEST(every_line_is_measured_and_forced_drafts_are_right_as_often_as_asked)
{
    char dir[64], svg[96];
    make_dir(dir);
    snprintf(svg, sizeof svg, "%s/b.svg", dir);
    json_t *all = JSON("bench", MODEL, "--rounds", "1", "-n", "41", "--threads", "1", "--svg", svg), *row;
    size_t i, passes = 0, drafted = 0, forced = 0;
    json_array_foreach(json_object_get(all, "rows"), i, row) {
        const char *kind = string(row, "kind");
        assert_true(real(row, "seconds") > 0);
        if (!strcmp(kind, "batch"))
            assert_true(real(row, "tokens_per_second") > 0 && real(row, "speed_up") > 0);
        else if (json_object_get(row, "bytes"))
            assert_true(is_share(row, "of_read") && is_share(row, "of_fma") && is_share(row, "of_ceiling") &&
                        is_told_where_it_lies(row));
        else
            assert_true(real(row, "per_second") > 0);
        if (!strcmp(kind, "pass")) {
            passes++;
            assert_true(real(row, "bytes") > 0 && real(row, "flops") > real(row, "rows") &&
                        real(row, "of_ceiling") > 0);
        }
        if (strcmp(kind, "generate"))
            continue;
        double K = real(row, "draft_tokens"), per_forward = real(row, "tokens_per_forward");
        const json_t *force = json_object_get(row, "forced");
        drafted += K > 0;
        assert_true(per_forward >= 1.0 && per_forward <= K + 1.0);
        if (json_is_null(force))
            continue;
        forced++;
        if (json_number_value(force) == 1.0) /* 40 tokens behind the first, K + 1 in a round, the last round cut
                                                short */
            assert_true(per_forward > 0.95 * (K + 1.0) - 0.05);
        else /* fewer than all right, more than none */
            assert_true(per_forward > 1.2 && per_forward < K + 1.0);
    }
    assert_true(passes >= 6);
    assert_int_equal(drafted, 6 + 9);
    assert_int_equal(forced, 9);
    json_decref(all);

    char *text;
    size_t size;
    vb_error err;
    assert_int_equal(vb_read_file(NULL, svg, &text, &size, &err), 0);
    assert_true(strstr(text, "<svg xmlns=") == text && strstr(text, "</svg>\n") == text + size - 7);
    size_t dots = 0;
    for (const char *p = text; (p = strstr(p, "<circle ")); p++)
        dots++;
    assert_int_equal(dots, 9);
    vb_free(NULL, text);
    remove_dir(dir);
}

TEST(a_draft_model_has_lines_of_its_own_and_its_bytes_count)
{
    json_t *all = JSON("bench", "golden/tiny/moonlight", "--rounds", "1", "-n", "20", "--threads", "1", "--only",
                       "generate", "--draft-model", "golden/tiny/moonlight"),
           *row;
    double plain = 0;
    size_t i, lines = 0;
    json_array_foreach(json_object_get(all, "rows"), i, row) {
        if (strcmp(string(row, "kind"), "generate"))
            continue;
        double per_forward = real(row, "bytes") / real(row, "forwards"), K = real(row, "draft_tokens");
        plain = K > 0 ? plain : per_forward;
        lines += K > 0 && !strcmp(string(row, "draft"), "draft-model");
        if (K > 0) /* as many passes of the same model, but for the rounds at the end */
            assert_true(per_forward > plain * (1 + 0.5 * K) && per_forward < plain * (2 + 2 * K));
    }
    assert_int_equal(lines, 3 + 9);
    json_decref(all);
}

/* Their layers have the numbers of MTP modules, whose bytes are others. */
TEST(parallel_heads_have_lines_of_their_own_and_their_bytes_count)
{
    json_t *all = JSON("bench", "golden/tiny/v3", "--rounds", "1", "-n", "6", "--threads", "1", "--only", "generate",
                       "--force-accept", "0", "--draft-model", "golden/heads/parallel-v3"),
           *row;
    double before = 0;
    size_t i, lines = 0;
    json_array_foreach(json_object_get(all, "rows"), i, row) {
        if (strcmp(string(row, "kind"), "generate") || strcmp(string(row, "draft"), "parallel-heads"))
            continue;
        assert_int_equal(integer(row, "draft_tokens"), ++lines);
        assert_true(real(row, "bytes") / real(row, "forwards") > before + 10000); /* a head and its share of the output
                                                                                     head */
        before = real(row, "bytes") / real(row, "forwards");
    }
    assert_int_equal(lines, 3);
    json_decref(all);
}

TEST(drafts_forced_wrong_are_all_rejected)
{
    json_t *all = JSON("bench", MODEL, "--rounds", "1", "-n", "20", "--threads", "1", "--force-accept", "0", "--only",
                       "generate"),
           *row;
    size_t i, forced = 0;
    json_array_foreach(json_object_get(all, "rows"), i, row)
        if (json_is_real(json_object_get(row, "forced"))) {
            assert_true(real(row, "tokens_per_forward") == 1.0);
            forced++;
        }
    assert_int_equal(forced, 3);
    json_decref(all);
}

/* Of N rows of K: panels are 16 rows, two groups of 32 numbers each: 64 bytes of scales, then codes of 8 or 4 bits. */
static double matrix_bytes(const char *weights, double N, double K)
{
    if (!strcmp(weights, "f32") || !strcmp(weights, "bf16"))
        return N * K * (strcmp(weights, "f32") ? 2 : 4);
    assert_true(!strcmp(weights, "Q8_0") || !strcmp(weights, "Q4_0"));
    return ceil(N / 16) * ceil(K / 64) * (64 + 2 * 512 * (strcmp(weights, "Q8_0") ? 0.5 : 1));
}

/* Scalar kernels and a CPU of Arm without dot products have none. */
static int has_integer_peaks(const json_t *all)
{
    const json_t *row;
    size_t i, peaks = 0;
    json_array_foreach(json_object_get(all, "rows"), i, row)
        peaks += !strcmp(string(row, "kind"), "int8") || !strcmp(string(row, "kind"), "int4");
    assert_true(peaks == 0 || peaks == 2);
    return peaks == 2;
}

TEST(linear_layers_are_measured_alone_and_beside_onednn)
{
    static const long long rows[] = {1, 2, 4, 8, 512, 1, 2, 4, 8, 512, 1, 2, 4, 8, 512}; /* BF16, Q8_0, Q4_0 */
    json_t *all = JSON("bench", MODEL, "--rounds", "1", "--threads", "1", "--only", "linear"), *row,
           *config = config_of_model();
    const json_t *version = json_object_get(all, "onednn"), *why = json_object_get(all, "no_onednn");
    long long N = integer(config, "intermediate_size"), K = integer(config, "hidden_size"); /* the largest of this
                                                                                               model */
    size_t i, ours[2] = {0, 0}, theirs = 0;
    const json_t *no_bf16 = json_object_get(all, "no_onednn_bf16");
    int f32_here = json_is_string(version), bf16_here = json_is_null(no_bf16);
    assert_true(f32_here != json_is_string(why) && (f32_here || !bf16_here));
    json_array_foreach(json_object_get(all, "rows"), i, row) {
        if (strcmp(string(row, "kind"), "linear")) {
            assert_null(json_object_get(row, "bytes")); /* the machine's own */
            continue;
        }
        int large = integer(row, "outputs") == 2048 && integer(row, "inputs") == 7168;
        int by_onednn = !strcmp(string(row, "by"), "onednn"), few = integer(row, "rows") < 512;
        double numbers = real(row, "outputs") * real(row, "inputs"), calls = real(row, "calls");
        int quantized = *string(row, "weights") == 'Q', four = !strcmp(string(row, "weights"), "Q4_0");
        assert_true(large || (integer(row, "outputs") == N && integer(row, "inputs") == K));
        assert_true(about(real(row, "bytes"),
                          calls * matrix_bytes(string(row, "weights"), real(row, "outputs"), real(row, "inputs"))));
        assert_true(about(real(row, "flops"), 2 * numbers * calls * real(row, "rows")));
        int integers = quantized && has_integer_peaks(all);
        assert_true(integers ? is_share(row, four ? "of_int4" : "of_int8")
                             : json_is_null(json_object_get(row, "of_int8")));
        assert_true(json_is_null(json_object_get(row, four || !integers ? "of_int8" : "of_int4")));
        if (large && few) /* more of them than caches hold */
            assert_true(real(row, "bytes") > 256e6);
        assert_true(few && integer(row, "rows") > 1 ? is_share(row, "of_one_row")
                                                    : json_is_null(json_object_get(row, "of_one_row")));
        assert_true(!by_onednn && (few ? bf16_here && !quantized : f32_here)
                        ? is_share(row, "of_onednn")
                        : json_is_null(json_object_get(row, "of_onednn")));
        if (by_onednn)
            theirs++;
        else
            assert_int_equal(integer(row, "rows"), rows[ours[large]++]);
    }
    assert_true(ours[0] == 15 && ours[1] == 15);
    assert_int_equal(theirs, 2 * f32_here + 10 * bf16_here); /* of each matrix one in f32, and five in BF16 */
    if (!bf16_here)
        printf("skipped: oneDNN's lines%s: %s\n", f32_here ? " with BF16 weights" : "", json_string_value(no_bf16));
    json_decref(config);
    json_decref(all);
}

TEST(prefill_is_measured_in_each_form)
{
    json_t *all = JSON("bench", MODEL, "--rounds", "1", "--threads", "1", "--only", "prefill"), *row,
           *config = config_of_model();
    int here = json_is_string(json_object_get(all, "onednn"));
    size_t i, ours = 0, theirs = 0;
    double flops[2] = {0, 0};
    json_array_foreach(json_object_get(all, "rows"), i, row) {
        if (strcmp(string(row, "kind"), "prefill"))
            continue;
        if (strcmp(string(row, "by"), "onednn"))
            flops[ours++] = real(row, "flops");
        else
            theirs++;
        assert_string_equal(string(row, "prefill"), theirs ? "onednn" : ours == 1 ? "contract" : "expanded");
        assert_int_equal(integer(row, "rows"), 128); /* the context is 256 */
        assert_int_equal(strstr(string(row, "name"), ", onednn") != NULL, theirs);
    }
    assert_int_equal(ours, 2);
    /* keys and values of 128 tokens are computed instead of q_abs and the heads' outputs, which is as much; the rest is
     * attention */
    double H = real(config, "num_attention_heads"), n = real(config, "qk_nope_head_dim"),
           v = real(config, "v_head_dim");
    double c = real(config, "kv_lora_rank"), layers = real(config, "num_hidden_layers");
    assert_true(about(flops[0] - flops[1], 2 * layers * H * (2 * c - n - v) * 128 * 64.5));
    json_decref(config);
    if (theirs != 1 && here)
        printf("skipped: the line of --prefill onednn: %s\n", string(all, "no_onednn_bf16"));
    assert_int_equal(theirs, json_is_null(json_object_get(all, "no_onednn_bf16")));
    json_decref(all);
}

TEST(attention_is_measured_alone_as_long_as_asked)
{
    json_t *all = JSON("bench", MODEL, "--rounds", "1", "--threads", "1", "--only", "attention", "--long"), *row,
           *config = config_of_model();
    double H = real(config, "num_attention_heads"), c = real(config, "kv_lora_rank"),
           r = real(config, "qk_rope_head_dim");
    size_t i, lines = 0;
    json_array_foreach(json_object_get(all, "rows"), i, row) {
        if (strcmp(string(row, "kind"), "attention"))
            continue;
        double queries = real(row, "rows"), seen = real(row, "depth") - (queries - 1) / 2,
               layers = real(config, "num_hidden_layers");
        double per_head = real(config, "qk_nope_head_dim") + real(config, "v_head_dim");
        assert_true(about(real(row, "flops"), layers * 2 * queries * H * (seen * (2 * c + r) + per_head * c)));
        assert_true(is_share(row, "of_fma"));
        lines++;
    }
    assert_int_equal(lines, 4);
    json_decref(all);
    all = JSON("bench", MODEL, "--rounds", "1", "--threads", "1", "--only", "attention", "--context", "200");
    json_array_foreach(json_object_get(all, "rows"), i, row)
        assert_string_not_equal(string(row, "kind"), "attention");
    json_decref(config);
    json_decref(all);
}

TEST(long_contexts_are_measured_when_asked)
{
    char dir[64];
    size_t i, found = 0;
    make_dir(dir);
    copy_files(MODEL, dir);
    replace_in(dir, "config.json", "\"max_position_embeddings\": 256", "\"max_position_embeddings\": 4200");
    json_t *all = JSON("bench", dir, "--rounds", "1", "--threads", "1", "--only", "pass", "--long"), *row;
    json_array_foreach(json_object_get(all, "rows"), i, row)
        if (!strcmp(string(row, "kind"), "pass") && integer(row, "depth") == 4096)
            found += integer(row, "rows") == 1 && real(row, "bytes") > 0;
    assert_int_equal(found, 1);
    json_decref(all);
    remove_dir(dir);
}

/* Efficiency is speed-up / (tokens per forward x B1 / (B(K+1) + drafts)). All drafts are wrong here, so that each
 * forward has its K drafts, but for the last few. */
TEST(efficiency_counts_the_bytes_of_the_passes_that_were_run)
{
    json_t *all = JSON("bench", MODEL, "--rounds", "1", "-n", "40", "--threads", "1", "--force-accept", "0", "--only",
                       "pass,generate");
    json_t *row, *config = config_of_model();
    const json_t *plain = NULL, *one = NULL;
    double d = real(config, "hidden_size"), V = real(config, "vocab_size"), layers = real(config, "num_hidden_layers");
    /* eh_proj, head */
    double width = real(config, "kv_lora_rank") + real(config, "qk_rope_head_dim"), one_draft = 2 * (2 * d * d + V * d);
    size_t i, drafted = 0;
    json_array_foreach(json_object_get(all, "rows"), i, row) {
        if (!strcmp(string(row, "kind"), "pass") && integer(row, "rows") == 1 && integer(row, "depth") == 16)
            one = row;
        if (strcmp(string(row, "kind"), "generate"))
            continue;
        plain = plain ? plain : row;
        double K = real(row, "draft_tokens"), forwards = real(row, "forwards"), tokens = real(row, "tokens");
        double B1 = real(plain, "bytes") / real(plain, "forwards"), B = real(row, "bytes") / forwards;
        assert_true(about(real(row, "limit"), tokens / forwards * B1 / B));
        assert_true(about(real(row, "efficiency"), real(row, "speed_up") / real(row, "limit")));
        if (row == plain) {
            /* the one row of each pass is a row like any other, which sees 17 tokens, 18, 19... instead of 17 */
            assert_non_null(one);
            assert_true(about(real(row, "limit"), 1));
            assert_true(about(B, real(one, "bytes") + 4 * layers * width * (forwards - 1) / 2));
        } else if (K > 0) {
            drafted++;
            assert_true(B >= B1 + K * one_draft * (forwards - K) / forwards);
            /* K more rows wake at most K times a row's experts: all else is read once */
            assert_true(B <= (K + 1) * B1 + K * (one_draft + B1));
        }
    }
    assert_int_equal(drafted, 6 + 3);
    json_decref(config);
    json_decref(all);
}

TEST(batches_of_sequences_generate_all_of_their_tokens)
{
    static const long long sequences[] = {4, 8, 16};
    json_t *all = JSON("bench", MODEL, "--rounds", "1", "--threads", "1", "-n", "20", "--only", "batch,generate"), *row;
    size_t i, lines = 0;
    json_array_foreach(json_object_get(all, "rows"), i, row) {
        if (strcmp(string(row, "kind"), "batch"))
            continue;
        long long n = integer(row, "sequences");
        assert_int_equal(n, sequences[lines++]);
        assert_int_equal(integer(row, "tokens"), n * 19); /* the pass over the prompts chooses the first token of
                                                             each */
        assert_true(about(real(row, "tokens_per_second"), (double)n * 19 / real(row, "seconds")));
        assert_true(real(row, "speed_up") > 0);
    }
    assert_int_equal(lines, 3);
    json_decref(all);
}

static const json_t *named(const json_t *list, const char *name)
{
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one)
        if (!strcmp(string(one, "name"), name))
            return one;
    return NULL;
}

/* With --draft-vocab, a draft reads only the listed rows of the head. */
TEST(a_list_of_draft_tokens_makes_drafts_read_less)
{
    json_t *all = JSON("bench", MODEL, "--rounds", "1", "-n", "20", "--threads", "1", "--only", "generate",
                       "--force-accept", "0"),
           *row;
    json_t *some = JSON("bench", MODEL, "--rounds", "1", "-n", "20", "--threads", "1", "--only", "generate",
                        "--force-accept", "0", "--draft-vocab", "10"),
           *config = config_of_model();
    json_t *plan = JSON("bench", MODEL, "--plan", "--rounds", "1", "--threads", "1", "--draft-vocab", "10");
    double d = real(config, "hidden_size"), V = real(config, "vocab_size"), compared = 0;
    size_t i;
    json_array_foreach(json_object_get(some, "rows"), i, row) {
        const json_t *before = json_array_get(json_object_get(all, "rows"), i);
        if (strcmp(string(row, "kind"), "generate") || real(row, "draft_tokens") != 1 ||
            !json_is_real(json_object_get(row, "forced")))
            continue;
        /* all drafts are wrong, and nearly each pass has one; experts may differ, because other drafts are verified */
        double less = real(before, "bytes") - real(row, "bytes"), drafts = less / (2 * d * (V - 10));
        assert_true(drafts >= real(row, "forwards") - 2 && drafts <= real(row, "forwards") + 1);
        compared++;
    }
    assert_true(compared == 1);
    const json_t *module = named(json_object_get(plan, "passes"), "MTP module, 1 row after 16");
    assert_true(about(real(named(json_object_get(module, "parts"), "head"), "bytes"), 2 * d * 10));
    json_decref(all);
    json_decref(some);
    json_decref(plan);
    json_decref(config);
}

/* --- bench --plan --- */

static double sum_of(const json_t *parts, const char *key)
{
    const json_t *part;
    double sum = 0;
    size_t i;
    json_array_foreach(parts, i, part)
        sum += real(part, key);
    return sum;
}

static void parts_are_consistent(const json_t *pass)
{
    const json_t *parts = json_object_get(pass, "parts"), *part;
    double before = INFINITY, read = real(json_object_get(pass, "peaks"), "read"),
           fma = real(json_object_get(pass, "peaks"), "fma");
    size_t i;
    json_array_foreach(parts, i, part) {
        double bytes = real(part, "bytes_seconds"), arithmetic = real(part, "flops_seconds"),
               seconds = real(part, "seconds");
        const char *bound = string(part, "bound");
        assert_true(seconds > 0 && about(bytes, real(part, "bytes") / read));
        assert_true(arithmetic <= real(part, "flops") / fma * (1 + 1e-6)); /* other instructions are faster than fma, or
                                                                              not used */
        assert_true(about(real(part, "floor"), fmax(bytes, arithmetic)));
        assert_true(fabs(real(part, "gap") - (seconds - real(part, "floor"))) <=
                    1e-6 * fmax(seconds, real(part, "floor")));
        assert_true(real(part, "waiting") > -1e-9 && real(part, "waiting") <= seconds);
        assert_true(real(part, "gap") <= before);
        assert_true((real(part, "bytes") > 0) == (strcmp(string(part, "name"), "small operators") &&
                                                  strcmp(string(part, "name"), "outside of the pass")));
        before = real(part, "gap");
        assert_true(strstr("bytes fma bf16 int8 int4 waiting other work", bound) && *bound);
        if (!strcmp(bound, "bf16") || !strncmp(bound, "int", 3)) /* an instruction that is slower than fma limits
                                                                    nothing */
            assert_true(real(json_object_get(pass, "peaks"), bound) >= fma);
        if (!strcmp(bound, "bytes"))
            assert_true(bytes >= arithmetic && bytes >= real(part, "waiting"));
    }
    assert_true(about(sum_of(parts, "seconds"), real(pass, "seconds")));
    assert_true(about(sum_of(parts, "floor"), real(pass, "floor")));
    assert_true(real(pass, "median") >= real(pass, "seconds"));
    assert_true(fabs(sum_of(parts, "waiting") - real(pass, "waiting")) <= 1e-6 * real(pass, "seconds"));
}

/* The sentence at the top names the part with the largest gap, as a share of the time of its pass. */
static void next_gap_is_the_largest(const json_t *plan)
{
    const json_t *next = json_object_get(plan, "next"), *passes = json_object_get(plan, "passes"), *pass, *part, *in;
    size_t i, k;
    in = named(passes, string(next, "pass"));
    assert_non_null(in);
    json_array_foreach(passes, i, pass)
        json_array_foreach(json_object_get(pass, "parts"), k, part)
            assert_true(real(part, "gap") / real(pass, "seconds") <= real(next, "gap") / real(in, "seconds") + 1e-6);
    part = named(json_object_get(in, "parts"), string(next, "name"));
    assert_true(part && real(part, "gap") == real(next, "gap") && real(part, "floor") == real(next, "floor"));
    assert_string_equal(string(part, "bound"), string(next, "bound"));
}

TEST(a_plan_divides_passes_into_parts_that_add_up)
{
    static const char *const parts[] = {"q_a_proj and kv_a_proj", "q_b_proj", "attention", "o_proj", "dense MLP",
                                        "router", "experts and shared expert", "head", "small operators",
                                        "outside of the pass"};
    static const char *const passes[] = {"1 row after 16", "1 row after 100", "4 rows after 16",
                                         "MTP module, 1 row after 16", "prompt of 255", "prompt of 255, expanded"};
    json_t *plan = JSON("bench", MODEL, "--plan", "--rounds", "3", "--threads", "2", "--depth", "100"), *pass,
           *config = config_of_model();
    json_t *lines = JSON("bench", MODEL, "--rounds", "1", "--threads", "1", "--only", "pass", "-n", "2");
    const json_t *list = json_object_get(plan, "passes"),
                 *plain = named(json_object_get(lines, "rows"), "1 row after 16");
    size_t i;
    json_array_foreach(list, i, pass) {
        assert_string_equal(string(pass, "name"), passes[i]);
        parts_are_consistent(pass);
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            assert_true(!named(json_object_get(pass, "parts"), parts[k]) == (i == 3 && !strcmp(parts[k], "dense MLP")));
        assert_true(!named(json_object_get(pass, "parts"), "eh_proj") == (i != 3));
    }
    assert_int_equal(i, 6);
    next_gap_is_the_largest(plan);
    /* the parts are a division of the same work */
    assert_non_null(plain);
    pass = json_array_get(list, 0);
    const json_t *o_proj = named(json_object_get(pass, "parts"), "o_proj");
    double numbers = real(config, "hidden_size") * real(config, "num_attention_heads") * real(config, "v_head_dim");
    assert_true(about(real(o_proj, "bytes"), 2 * numbers * real(config, "num_hidden_layers")));
    json_decref(config);
    assert_true(about(sum_of(json_object_get(pass, "parts"), "bytes"), real(plain, "bytes")));
    assert_true(about(sum_of(json_object_get(pass, "parts"), "flops"), real(plain, "flops")));
    json_decref(lines);
    json_decref(plan);
}

/* Times differ from run to run; the amount of work does not. */
TEST(the_text_of_a_plan_has_the_numbers_of_its_json)
{
    struct said r = RUN("bench", "golden/tale", "--plan", "--rounds", "1", "--threads", "2", "--precision", "q8");
    json_t *plan = JSON("bench", "golden/tale", "--plan", "--rounds", "1", "--threads", "2", "--precision", "q8"),
           *pass, *part;
    size_t i, k;
    expect_code(&r, 0);
    assert_true(strstr(r.out, "The next gap: ") == r.out && strstr(r.out, " above its floor of "));
    json_array_foreach(json_object_get(plan, "passes"), i, pass) {
        char head[200];
        snprintf(head, sizeof head, "\n%s: ", string(pass, "name"));
        const char *at = strstr(r.out, head), *end = at ? strstr(at, "\nall ") : NULL;
        assert_true(at && end);
        parts_are_consistent(pass);
        json_array_foreach(json_object_get(pass, "parts"), k, part) {
            char line[200];
            snprintf(line, sizeof line, "\n%-26s %9.1f %9.1f ", string(part, "name"), real(part, "bytes") / 1e6,
                     real(part, "flops") / 1e6);
            const char *found = strstr(at, line);
            assert_true(found && found < end);
        }
    }
    assert_int_equal(i, 5); /* its context is too short for 2048 tokens */
    json_decref(plan);
    forget(&r);
}

TEST(a_plan_of_one_thread_wakes_none_and_every_kind_of_model_has_one)
{
    json_t *plan = JSON("bench", "golden/tiny/v2-lite", "--plan", "--rounds", "1", "--threads", "1", "--isa", "scalar"),
           *pass, *part;
    size_t i, k;
    json_array_foreach(json_object_get(plan, "passes"), i, pass) { /* it has no MTP module and no q_a_proj */
        assert_null(strstr(string(pass, "name"), "MTP"));
        assert_null(named(json_object_get(pass, "parts"), "q_b_proj"));
        assert_non_null(named(json_object_get(pass, "parts"), "q_proj and kv_a_proj"));
        parts_are_consistent(pass);
        json_array_foreach(json_object_get(pass, "parts"), k, part)
            assert_int_equal(integer(part, "regions"), 0);
    }
    assert_true(i > 0);
    json_decref(plan);
}

TEST(what_is_wrong_is_said_in_a_sentence)
{
    expect_failure(RUN("bench", MODEL, "--force-accept", "1.5"), 2,
                   "--force-accept is 1.5, wanted a number from 0 to 1");
    expect_failure(RUN("bench", MODEL, "--rounds", "65"), 2, "--rounds is 65, at most 64");
    expect_failure(RUN("bench", MODEL, "--only", "linear,lines"), 2,
                   "--only names lines, wanted some of prefill,pass,linear,attention,generate,batch");
    expect_failure(RUN("bench", MODEL, "--only", ""), 2, "--only is empty");
    expect_failure(RUN("bench", MODEL, "--only", "linear", "--svg", "x.svg"), 2, "--svg draws the lines of generate");
    expect_failure(RUN("bench", MODEL, "-n", "100000"), 2, "max_position_embeddings");
    expect_failure(RUN("bench", "golden/tiny/v2", "--rounds", "1", "-n", "4", "--threads", "1", "--svg", "x.svg"), 2,
                   "has no MTP modules");
    expect_failure(RUN("bench", MODEL, "--rounds", "1", "-n", "4", "--threads", "1", "--only", "generate", "--svg",
                       "/nowhere/x.svg"),
                   1, "/nowhere/x.svg: No such file");
    expect_failure(RUN("bench", MODEL, "--svg", "/dev/null"), 1, "a device, which a file would replace");
    expect_failure(RUN("bench", MODEL, "--depth", "100"), 2, "--depth belongs to --plan");
    expect_failure(RUN("bench", MODEL, "--plan", "--only", "pass"), 2, "--only does not fit with it");
    expect_failure(RUN("bench", MODEL, "--plan", "--svg", "x.svg"), 2, "--svg does not fit with it");
    expect_failure(RUN("bench", MODEL, "--plan", "--depth", "255"), 2,
                   "--depth is 255: with two tokens more it is beyond max_position_embeddings, which is 256");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_line_is_measured_and_forced_drafts_are_right_as_often_as_asked),
        cmocka_unit_test(a_draft_model_has_lines_of_its_own_and_its_bytes_count),
        cmocka_unit_test(parallel_heads_have_lines_of_their_own_and_their_bytes_count),
        cmocka_unit_test(drafts_forced_wrong_are_all_rejected),
        cmocka_unit_test(linear_layers_are_measured_alone_and_beside_onednn),
        cmocka_unit_test(prefill_is_measured_in_each_form),
        cmocka_unit_test(attention_is_measured_alone_as_long_as_asked),
        cmocka_unit_test(long_contexts_are_measured_when_asked),
        cmocka_unit_test(efficiency_counts_the_bytes_of_the_passes_that_were_run),
        cmocka_unit_test(a_list_of_draft_tokens_makes_drafts_read_less),
        cmocka_unit_test(batches_of_sequences_generate_all_of_their_tokens),
        cmocka_unit_test(a_plan_divides_passes_into_parts_that_add_up),
        cmocka_unit_test(the_text_of_a_plan_has_the_numbers_of_its_json),
        cmocka_unit_test(a_plan_of_one_thread_wakes_none_and_every_kind_of_model_has_one),
        cmocka_unit_test(what_is_wrong_is_said_in_a_sentence),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
