/* tests/cli/test_diff_local.c -- `verbatim diff --local`: operators alone, on the inputs that a dump has. Correct
 * operators are within their bounds, in every precision; every wrong operator is named, and no other one. Runs the
 * program itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

#define LONGER "5,6,7,70,9,33,17,2,88,41,3,99,54,120,77,11,63,28,90,14"

/* What diff says about the operator that computes this tap. */
static json_t *operator_of(const json_t *j, const char *name)
{
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(json_object_get(j, "local_a"), "operators"), i, o)
        if (!strcmp(string(o, "tap"), name))
            return o;
    fail_msg("no operator computes %s", name);
    return NULL;
}

/* The wrong operators must be these, in this order. Releases j. */
static void expect_wrong(json_t *j, const char *const wrong[], size_t count)
{
    size_t i, at = 0;
    json_t *o, *local = json_object_get(j, "local_a");
    expect_verdict("local", local, count ? "structural" : "rounding");
    json_array_foreach(json_object_get(local, "operators"), i, o)
        if (!strcmp(string(o, "verdict"), "structural")) {
            if (at == count || strcmp(string(o, "tap"), wrong[at]))
                fail_msg("%s is wrong, by %g of its bound; expected %s", string(o, "tap"), real(o, "of_bound"),
                         at < count ? wrong[at] : "no wrong operator");
            at++;
        }
    assert_int_equal(at, count);
    if (count)
        assert_string_equal(string(local, "first"), wrong[0]);
    json_decref(j);
}

TEST(the_engines_operators_are_within_their_bounds_in_every_precision)
{
    static const char *const precisions[] = {"f32", "bf16", "q8"}, *const caches[] = {"f32", "bf16", "f32"};
    char model[64];
    for (size_t i = 0; i < COUNT(names) + 1; i++)
        for (size_t p = 0; p < COUNT(precisions); p++) {
            const char *name = i < COUNT(names) ? names[i] : "glm5"; /* where rows attend to index_topk tokens */
            snprintf(model, sizeof model, TINY "%s", name);
            json_t *j = DIFF(0, model, model, "--local", "--reference", "--precision", precisions[p], "--cache-type",
                             caches[p], "--tokens", LONGER), *o;
            json_t *local = json_object_get(j, "local_a");
            size_t k;
            double most = 0;
            assert_true(integer(local, "judged") > 60);
            json_array_foreach(json_object_get(local, "operators"), k, o) {
                most = fmax(most, real(o, "of_bound"));
                assert_string_not_equal(string(o, "verdict"), "not judged");
                assert_int_equal(integer(o, "rows_without_inputs"), 0);
                assert_true(json_is_null(json_object_get(o, "merged"))); /* a model's values include the scores of its
                                                                            indexers */
            }
            print_message("%s, %s: %.2f of the bound\n", name, precisions[p], most);
            assert_true(most > 0.05); /* else the bounds would be much wider than the differences */
            expect_wrong(j, NULL, 0);
        }
}

/* Its values are BF16. One router fell the other way, of which the next layers know nothing here. */
TEST(a_dump_of_transformers_in_bfloat16_is_rounding)
{
    json_t *j = DIFF(0, "golden/truth/glm.hf-dump-bfloat16.safetensors", TINY "glm", "--local");
    assert_int_equal(integer(json_object_get(j, "local_a"), "judged"), 51);
    assert_string_equal(string(operator_of(j, "model.layers.1.self_attn.o_proj.input"), "merged"), "rope-q, rope-k");
    assert_string_equal(string(operator_of(j, "model.layers.1.mlp.output"), "merged"),
                        "chosen-experts, router-scores, router-weights");
    assert_string_equal(string(operator_of(j, "model.layers.2.self_attn.o_proj.output"), "verdict"), "identical");
    expect_wrong(j, NULL, 0);
    j = DIFF(3, "golden/truth/glm.hf-dump-bfloat16.safetensors", TINY "glm"); /* beside the comparison of the values */
    expect_verdict("both", j, "tie-flip");
    assert_int_equal(integer(json_object_get(j, "local_a"), "wrong"), 0);
    json_decref(j);
    expect_wrong(DIFF(0, "golden/truth/moonlight.hf-dump.safetensors", TINY "moonlight", "--local"), NULL, 0);
}

/* Adds `ulps` to the upper halves of numbers of a BF16 weight in the copy of a checkpoint in the test's directory. */
static void change_weight(const char *name, size_t from, size_t count, int ulps)
{
    size_t n;
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    struct edited e = edit(path);
    uint16_t *w = golden_data(&e.g, name, &n);
    assert_string_equal(string(json_object_get(e.g.header, name), "dtype"), "BF16");
    for (size_t i = from; i < from + count && i < n; i++)
        w[i] = (uint16_t)(w[i] + ulps);
    save(&e);
}

TEST(every_wrong_operator_is_named_and_no_other)
{
    static const char *const wrong[] = {"model.layers.0.self_attn.kv_a_layernorm.output",
                                        "model.layers.1.self_attn.o_proj.output", "model.layers.2.mlp.gate.output",
                                        "model.layers.3.eh_proj.output", "model.layers.3.shared_head.norm.output"};
    copy_files(TINY "glm", dir);
    change_weight("model.layers.0.self_attn.kv_a_layernorm.weight", 3, 1, 1);
    change_weight("model.layers.1.self_attn.o_proj.weight", 7, 2, 2);
    change_weight("model.layers.2.mlp.gate.weight", 64, 64, 1);
    change_weight("model.layers.3.eh_proj.weight", 0, 1, 3);
    change_weight("model.layers.3.shared_head.norm.weight", 0, 64, 1);
    DUMP(a, dir, "--tokens", LONGER);
    expect_wrong(DIFF(3, a, TINY "glm", "--local"), wrong, COUNT(wrong));
    json_t *j = DIFF(3, a, TINY "glm"); /* by default, and the values are compared too */
    expect_verdict("both", j, "structural");
    assert_true(json_array_size(json_object_get(j, "taps")) > 100);
    expect_wrong(j, wrong, COUNT(wrong));
}

TEST(in_bfloat16_an_operator_is_wrong_by_less_than_its_rounding)
{
    static const char *const wrong[] = {"model.layers.1.self_attn.q_a_proj.output",
                                        "model.layers.2.self_attn.o_proj.input",
                                        "model.layers.2.mlp.shared_experts.output"};
    copy_files(TINY "glm", dir); /* the dump is right: it is the model that is another */
    change_weight("model.layers.1.self_attn.q_a_proj.weight", 5, 1, 4);
    change_weight("model.layers.2.self_attn.kv_b_proj.weight", 0, 100000, 9);
    change_weight("model.layers.2.mlp.shared_experts.up_proj.weight", 0, 700, 9);
    expect_wrong(DIFF(3, "golden/truth/glm.hf-dump-bfloat16.safetensors", dir, "--local"), wrong, COUNT(wrong));
}

#define WIDE 64 /* the hidden size of the tiny checkpoint glm */
#define INNER 12 /* the width of its shared expert */

/* The numbers of a BF16 weight of glm. */
static void weights_of(const char *name, float w[INNER * WIDE])
{
    struct edited e = edit(TINY "glm/model.safetensors");
    size_t n;
    const uint16_t *bits = golden_data(&e.g, name, &n);
    assert_int_equal(n, INNER * WIDE);
    for (size_t i = 0; i < n; i++) {
        uint32_t high = (uint32_t)bits[i] << 16;
        memcpy(&w[i], &high, sizeof high);
    }
    golden_close(&e.g);
}

/* Makes x orthogonal to all rows of up, so that the sums of up x are much smaller than their terms. */
static void cancel(float x[WIDE], const float up[INNER * WIDE])
{
    double base[INNER][WIDE], y[WIDE];
    for (size_t d = 0; d < WIDE; d++)
        y[d] = x[d];
    for (size_t i = 0; i <= INNER; i++) { /* Gram-Schmidt; x is the last vector */
        double *v = i < INNER ? base[i] : y, length = 0;
        for (size_t d = 0; i < INNER && d < WIDE; d++)
            v[d] = up[i * WIDE + d];
        for (size_t k = 0; k < i; k++) {
            double along = 0;
            for (size_t d = 0; d < WIDE; d++)
                along += base[k][d] * v[d];
            for (size_t d = 0; d < WIDE; d++)
                v[d] -= along * base[k][d];
        }
        for (size_t d = 0; d < WIDE; d++)
            length += v[d] * v[d];
        for (size_t d = 0; i < INNER && d < WIDE; d++)
            v[d] /= sqrt(length);
    }
    for (size_t d = 0; d < WIDE; d++)
        x[d] = (float)y[d];
}

static float dot(const float *x, const float *y, size_t n)
{
    float sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* The rounding of a sum in F32 depends on its terms, and not on its result. */
TEST(in_an_expert_sums_that_nearly_cancel_have_the_rounding_of_their_terms)
{
    static const char *const wrong[] = {"model.layers.1.post_attention_layernorm.output",
                                        "model.layers.1.mlp.shared_experts.output"};
    float gate[INNER * WIDE], up[INNER * WIDE], down[INNER * WIDE], h[INNER], *x, *y;
    size_t n;
    weights_of("model.layers.1.mlp.shared_experts.gate_proj.weight", gate);
    weights_of("model.layers.1.mlp.shared_experts.up_proj.weight", up);
    weights_of("model.layers.1.mlp.shared_experts.down_proj.weight", down);
    DUMP(a, TINY "glm", "--tokens", TOKENS, "--taps",
         "*.1.post_attention_layernorm.output,*.1.mlp.shared_experts.output");
    struct edited e = edit(a);
    x = floats(&e, wrong[0], &n) + 4 * WIDE;
    y = floats(&e, wrong[1], &n) + 4 * WIDE;
    cancel(x, up);
    for (size_t i = 0; i < INNER; i++) {
        float g = dot(gate + i * WIDE, x, WIDE);
        h[i] = g / (1 + expf(-g)) * dot(up + i * WIDE, x, WIDE);
    }
    for (size_t d = 0; d < WIDE; d++)
        y[d] = dot(down + d * INNER, h, INNER);
    save(&e);
    expect_wrong(DIFF(3, a, TINY "glm", "--local"), wrong, 1); /* the x that was changed */
    e = edit(a);
    floats(&e, wrong[1], &n)[4 * WIDE + 7] += 1e-5f; /* terms of about 1 are rounded by up to 2^-24 = 6e-8 */
    save(&e);
    expect_wrong(DIFF(3, a, TINY "glm", "--local"), wrong, 2);
}

/* --- bias --- */

/* Nothing reads the last norm then. */
static int norm_in_bf16(char name[256], const char **dtype)
{
    *dtype = !strcmp(name, "model.norm.output") ? "BF16" : *dtype;
    return strcmp(name, "lm_head.output") != 0;
}

/* Multiplies columns [first, end) of the last norm by 1 + more, in every second row with the other sign if `apart`, and
 * rounds it to BF16. */
static json_t *scaled(double more, size_t first, size_t end, int apart)
{
    static const char *const name = "model.norm.output";
    size_t n;
    copy_dump(a, b, 1);
    struct edited e = edit(b);
    float *x = floats(&e, name, &n);
    for (size_t i = 0; i < n; i++)
        if (i % width_of(&e, name) >= first && i % width_of(&e, name) < end)
            x[i] *= (float)(1 + (apart && i / width_of(&e, name) % 2 ? -more : more));
    save(&e);
    rewrite(b, norm_in_bf16);
    return DIFF(more > 0 ? 3 : 0, b, TINY "moonlight", "--local");
}

static void expect_bias(json_t *j, double slope, const char *why, const char *where)
{
    const json_t *o = operator_of(j, "model.norm.output"), *bias = json_object_get(o, "bias");
    expect_verdict("whole", j, "biased");
    assert_string_equal(string(json_object_get(j, "local_a"), "first"), "model.norm.output");
    assert_int_equal(integer(json_object_get(j, "local_a"), "biased"), 1);
    assert_string_equal(string(o, "verdict"), "biased");
    assert_true(fabs(real(bias, "slope") - slope) < 5e-4);
    if (!strstr(string(o, "why"), why) || !strstr(string(bias, "where"), where))
        fail_msg("%s; %s", string(o, "why"), string(bias, "where"));
    json_decref(j);
}

TEST(a_factor_that_is_smaller_than_a_rounding_is_a_bias)
{
    DUMP(a, TINY "moonlight", "--tokens", TOKENS);
    json_t *j = scaled(0, 0, 1000, 0);
    const json_t *bias = json_object_get(operator_of(j, "model.norm.output"), "bias");
    assert_true(real(bias, "sigmas") < 4 && real(bias, "row_sigmas") < 2);
    json_decref(j);
    expect_bias(scaled(0.002, 0, 1000, 0), 1.002, "the slope on the expected values is 1+", "rows ");
    expect_bias(scaled(0.004, 0, 1000, 1), 1, "the slopes of single rows deviate", "all 10 rows");
    expect_bias(scaled(0.005, 20, 30, 0), 1.001, "the slopes of single rows", "columns 2");
    char path[128];
    size_t size;
    snprintf(path, sizeof path, "%s/r.xml", dir);
    struct said s = RUN("diff", b, TINY "moonlight", "--local", "--junit", path);
    expect_code(&s, 3);
    assert_ptr_equal(strstr(s.out, "biased: A: 1 of "), s.out);
    char *xml = bytes_of(path, &size);
    assert_non_null(strstr(xml, "failures=\"1\""));
    assert_non_null(strstr(xml, "name=\"model.norm.output (norm)\"><failure type=\"biased\" message=\"the slopes"));
    free(xml);
    assert_non_null(strstr(s.out, "  biased: model.norm.output (norm): the slope"));
    forget(&s);
}

/* transformers adds 1e-6 to the mean square of a latent. With 1e-5, every number is within half an ulp of BF16, or
 * nearly so. */
TEST(another_eps_is_a_bias_in_bfloat16)
{
    json_t *j = DIFF(3, "golden/truth/glm.hf-dump-bfloat16.safetensors", TINY "glm", "--local", "--convention",
                     "latent-eps=config"),
           *o;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(j, "local_a"), "operators"), i, o)
        if (strstr(string(o, "tap"), "kv_a_layernorm") || !strcmp(string(o, "verdict"), "biased")) {
            assert_non_null(strstr(string(o, "tap"), "_a_layernorm"));
            assert_string_equal(string(o, "verdict"), "biased");
        }
    o = operator_of(j, "model.layers.0.self_attn.kv_a_layernorm.output");
    assert_true(real(json_object_get(o, "bias"), "sigmas") > 9);
    json_decref(j);
}

static int of_hooks(char name[256], const char **dtype)
{
    (void)dtype; /* what hooks on the modules of vLLM see: no residual stream, no RoPE, one MoE */
    return !strstr(name, "_rope") && !strstr(name, "layernorm.input") && !strstr(name, "norm.input") &&
           !strstr(name, ".mlp.experts.") && !strstr(name, ".mlp.gate.") && !strstr(name, "shared_experts") &&
           !strstr(name, "eh_proj.input") &&
           !(strlen(name) < 23 && strstr(name, ".output") && strstr(name, "model.layers."));
}

TEST(missing_values_are_computed_from_those_before_and_named)
{
    static const char *const wrong[] = {"model.layers.1.self_attn.o_proj.output", "model.layers.2.mlp.output"};
    copy_files(TINY "glm", dir);
    change_weight("model.layers.1.self_attn.o_proj.weight", 7, 2, 2);
    change_weight("model.layers.2.mlp.shared_experts.down_proj.weight", 7, 2, 2);
    DUMP(a, dir, "--tokens", LONGER);
    forget_manifest(a);
    rewrite(a, of_hooks);
    json_t *j = DIFF(3, a, TINY "glm", "--local", "--tokens", LONGER);
    assert_string_equal(string(operator_of(j, "model.layers.2.mlp.output"), "merged"),
                        "router-logits, router-scores, router-choice, router-experts, "
                        "chosen-experts, router-weights, shared-expert");
    assert_non_null(strstr(string(operator_of(j, "model.layers.2.post_attention_layernorm.output"), "merged"),
                           "residual"));
    assert_int_equal(integer(operator_of(j, "model.layers.2.mlp.output"), "rows_without_inputs"), 0);
    expect_wrong(j, wrong, COUNT(wrong));
}

#define SCORES "*.q_*,*.kv_*,*.k_rope,*.self_attn.scores*"
#define OF_LAYER(l, h) "model.layers." #l ".self_attn.scores." #h

static int scores_as_probabilities(char name[256], const char **dtype)
{
    char *scores = strstr(name, "self_attn.scores.");
    (void)dtype;
    if (scores) {
        char head[16];
        snprintf(head, sizeof head, "%s", scores + strlen("self_attn.scores."));
        sprintf(scores, "self_attn.probabilities.%s", head);
    }
    return 1;
}

/* Replaces the scores of a head [rows, rows] by their softmax. */
static void softmax(float *p, size_t rows)
{
    for (size_t s = 0; s < rows; s++) {
        float sum = 0;
        for (size_t t = 0; t < rows; t++)
            sum += p[s * rows + t] = expf(p[s * rows + t]);
        for (size_t t = 0; t < rows; t++)
            p[s * rows + t] /= sum;
    }
}

TEST(scores_are_judged_by_queries_and_rows_of_the_cache)
{
    static const char *const wrong[] = {OF_LAYER(0, 1), OF_LAYER(1, 0), OF_LAYER(1, 1), OF_LAYER(2, 0)};
    size_t n;
    DUMP(a, TINY "v3-mtp3", "--tokens", TOKENS, "--taps", "*,*.self_attn.scores*", "--prefill-chunk", "6",
         "--convention", "first-row=phantom");
    expect_wrong(DIFF(0, a, TINY "v3-mtp3", "--local", "--convention", "first-row=phantom"), NULL, 0);
    DUMP(a, TINY "v3-mtp3", "--tokens", TOKENS, "--taps", SCORES);
    json_t *j = DIFF(0, a, TINY "v3-mtp3", "--local");
    assert_int_equal(integer(operator_of(j, OF_LAYER(1, 0)), "rows"), 10);
    assert_true(real(operator_of(j, OF_LAYER(1, 0)), "of_bound") > 0.02);
    expect_wrong(j, NULL, 0);
    struct edited e = edit(a);
    floats(&e, wrong[0], &n)[7 * 10 + 3] += 1e-4f;
    floats(&e, wrong[1], &n)[7 * 10 + 8] = 0.5f;      /* the next token is not masked */
    floats(&e, wrong[2], &n)[9 * 10] = -INFINITY;     /* the first token is masked */
    floats(&e, wrong[3], &n)[0] *= 0.999f;
    for (size_t t = 1; t < 10; t++)
        floats(&e, OF_LAYER(2, 1), &n)[t] = -10000;   /* also a mask */
    save(&e);
    j = DIFF(3, a, TINY "v3-mtp3", "--local");
    assert_string_equal(string(operator_of(j, wrong[1]), "why"),
                        "index 7: the token of index 8 comes later and is not masked: 0.5");
    expect_wrong(j, wrong, COUNT(wrong));
}

TEST(probabilities_are_judged_too)
{
    static const char *const wrong[] = {"model.layers.2.self_attn.probabilities.1"};
    size_t n;
    DUMP(a, TINY "glm", "--tokens", TOKENS, "--taps", SCORES ",*.o_proj.input");
    forget_manifest(a);
    struct edited e = edit(a);
    softmax(floats(&e, OF_LAYER(1, 0), &n), 10);
    softmax(floats(&e, OF_LAYER(2, 1), &n), 10);
    save(&e);
    rewrite(a, scores_as_probabilities);
    json_t *j = DIFF(3, a, TINY "glm", "--local", "--tokens", TOKENS);
    assert_string_equal(string(operator_of(j, "model.layers.1.self_attn.probabilities.0"), "verdict"), "rounding");
    assert_string_equal(string(operator_of(j, wrong[0]), "verdict"), "rounding");
    /* scores */
    assert_string_equal(string(operator_of(j, "model.layers.1.self_attn.probabilities.1"), "verdict"), "structural");
    json_decref(j);
    e = edit(a);
    floats(&e, wrong[0], &n)[10] *= 1.0001f;
    save(&e);
    j = DIFF(3, a, TINY "glm", "--local", "--tokens", TOKENS);
    assert_string_equal(string(operator_of(j, wrong[0]), "verdict"), "structural");
    json_decref(j);
}

/* What diff says about the tokens of the dump a, and its exit code. */
static json_t *tokens_of(int code, const char *option)
{
    json_t *j = DIFF(code, a, TINY "v3-mtp3", "--local", option), *o = operator_of(j, "lm_head.output");
    assert_string_equal(string(o, "operator"), "lm_head");
    size_t count = json_array_size(json_object_get(json_object_get(j, "local_a"), "operators"));
    o = json_incref(json_array_get(json_object_get(json_object_get(j, "local_a"), "operators"), count - 1));
    assert_string_equal(string(o, "operator"), "greedy-token");
    json_decref(j);
    return o;
}

/* The rounds of this dump choose 115; 38, then 56 after the rejected draft 100; 88 after the rejected draft 9; ... */
TEST(chosen_tokens_have_the_largest_logit_and_rejected_drafts_have_not)
{
    size_t n;
    DUMP(a, TINY "v3-mtp3", "--tokens", "5,6,7", "-n", "6", "--ignore-eos", "--draft", "mtp-eagle", "--draft-tokens",
         "2", "--taps", "lm_head.output,model.norm.output");
    json_t *o = tokens_of(0, "--greedy");
    assert_string_equal(string(o, "verdict"), "identical");
    assert_int_equal(integer(o, "rows"), 5);
    assert_int_equal(integer(o, "rows_at_a_tie"), 0);
    json_decref(o);

    struct edited e = edit(a);
    float *x = floats(&e, "lm_head.output@3", &n), largest = x[38]; /* of the row of token 115 */
    x[40] = largest; /* the lower one was chosen */
    save(&e);
    o = tokens_of(3, "--greedy"); /* lm_head itself is wrong now */
    assert_int_equal(integer(o, "rows_at_a_tie"), 0);
    json_decref(o);
    e = edit(a);
    floats(&e, "lm_head.output@3", &n)[20] = largest;
    save(&e);
    o = tokens_of(3, "--greedy");
    assert_string_equal(string(o, "verdict"), "identical");
    assert_int_equal(integer(o, "rows_at_a_tie"), 1);
    assert_string_equal(string(o, "why"),
                        "index 4: token 38 has the same logit as token 20, which has the lower number");
    json_decref(o);
    e = edit(a);
    floats(&e, "lm_head.output@3", &n)[99] = largest + 1;
    save(&e);
    o = tokens_of(3, "--greedy");
    assert_string_equal(string(o, "verdict"), "structural");
    assert_int_equal(integer(o, "wrong_rows"), 1);
    assert_string_equal(string(o, "why"),
                        "index 4: token 38 was chosen, but token 99 has the largest logit of the row before, by 1");
    json_decref(o);
    o = tokens_of(3, "--all"); /* without --greedy it may have been sampled */
    assert_string_equal(string(o, "verdict"), "not judged");
    json_decref(o);
}

TEST(a_draft_that_was_rejected_although_its_token_was_chosen_is_wrong)
{
    DUMP(a, TINY "v3-mtp3", "--tokens", "5,6,7", "-n", "6", "--ignore-eos", "--draft", "mtp-eagle", "--draft-tokens",
         "2", "--taps", "lm_head.output,model.embed_tokens.output");
    for (int i = 0; i < 2; i++) /* both tensors */
        replace_in(dir, "a.jsonl", "[115,38,100]", "[115,38,56]");
    json_t *o = tokens_of(3, "--greedy");
    assert_string_equal(string(o, "why"), "index 5: draft 56 was rejected, and then the same token was chosen");
    json_decref(o);
}

static int second_pass_of_keys(char name[256], const char **dtype)
{
    (void)dtype;
    return strchr(name, '@') || (!strstr(name, "k_rope") && !strstr(name, "kv_a_") && !strstr(name, "input_layernorm"));
}

TEST(attention_without_earlier_rows_of_the_cache_is_not_judged)
{
    DUMP(a, TINY "v3", "--tokens", TOKENS, "--prefill-chunk", "6");
    rewrite(a, second_pass_of_keys);
    json_t *j = DIFF(0, a, TINY "v3", "--local");
    json_t *o = operator_of(j, "model.layers.1.self_attn.o_proj.input");
    assert_string_equal(string(o, "verdict"), "not judged");
    assert_int_equal(integer(o, "rows_without_inputs"), 10);
    assert_int_equal(integer(operator_of(j, "model.layers.1.self_attn.o_proj.output"), "rows"), 10);
    json_decref(j);
}

TEST(a_choice_is_judged_by_the_dumps_own_values)
{
    static const char *const wrong[] = {"model.layers.1.mlp.gate.experts"};
    size_t n;
    DUMP(a, TINY "moonlight", "--tokens", TOKENS, "--taps", "*.1.mlp.gate.choice,*.1.mlp.gate.experts");
    struct edited e = edit(a);
    size_t E = width_of(&e, "model.layers.1.mlp.gate.choice"), k = width_of(&e, wrong[0]);
    float *c = floats(&e, "model.layers.1.mlp.gate.choice", &n) + 4 * E;
    int32_t *chosen = (int32_t *)golden_data(&e.g, wrong[0], &n) + 4 * k;
    size_t other = 0;
    for (int in = 1; in; other += (size_t)in)
        for (size_t i = in = 0; i < k; i++)
            in |= chosen[i] == (int32_t)other;
    size_t least = 0;
    for (size_t i = 1; i < k; i++)
        least = c[chosen[i]] < c[chosen[least]] ? i : least;
    float was = c[other];
    c[other] = c[chosen[least]]; /* a tie: either is right */
    chosen[least] = (int32_t)other;
    save(&e);
    static const char *const changed[] = {"model.layers.1.mlp.gate.choice"}; /* of which the reference knows nothing */
    expect_wrong(DIFF(3, a, TINY "moonlight", "--local"), changed, 1);
    e = edit(a);
    floats(&e, "model.layers.1.mlp.gate.choice", &n)[4 * E + other] = was;
    save(&e);
    json_t *j = DIFF(3, a, TINY "moonlight", "--local");
    assert_non_null(strstr(string(operator_of(j, wrong[0]), "why"), "index 4: another choice, by a margin"));
    expect_wrong(j, wrong, 1);
}

TEST(a_result_of_another_shape_is_wrong)
{
    copy_files(TINY "v3", dir);
    replace_in(dir, "config.json", "\"topk_group\": 2", "\"topk_group\": 3"); /* one group more than the model keeps */
    DUMP(a, dir, "--tokens", TOKENS);
    json_t *j = DIFF(3, a, TINY "v3", "--local");
    assert_string_equal(string(json_object_get(j, "local_a"), "first"), "model.layers.1.mlp.gate.groups");
    assert_non_null(strstr(string(operator_of(j, "model.layers.1.mlp.gate.groups"), "why"), "no shape of this model"));
    json_decref(j);
}

/* The engine's precision bf16 rounds the x of linear layers and stores F32, as llama.cpp does with BF16 weights. */
TEST(an_arithmetic_that_is_coarser_than_the_dump_rounds_the_inputs_of_linear_layers)
{
    static const char *const models[] = {TINY "moonlight", TINY "v2-lite", TINY "glm", TINY "v3-mtp3"};
    for (size_t i = 0; i < COUNT(models); i++) {
        DUMP(a, models[i], "--tokens", LONGER, "--precision", "bf16");
        expect_wrong(DIFF(0, a, models[i], "--local", "--arithmetic", "bf16"), NULL, 0);
    }
    DUMP(a, TINY "moonlight", "--tokens", LONGER, "--precision", "bf16");
    json_t *j = DIFF(3, a, TINY "moonlight", "--local");
    assert_string_equal(string(json_object_get(j, "local_a"), "first"), "model.layers.0.self_attn.q_proj.output");
    json_decref(j);
}

/* The bounds of o_proj and down_proj grow, and those of other linear layers stay. */
/* Norms in BF16, and the router in F32 */
static int norms_and_router(char name[256], const char **dtype)
{
    int is_norm = strstr(name, "input_layernorm.output") != NULL;
    *dtype = is_norm ? "BF16" : *dtype;
    return is_norm || strstr(name, ".mlp.gate.scores") || strstr(name, ".mlp.gate.experts") ||
           strstr(name, ".mlp.gate.weights");
}

/* Engines compute the router in f32, also if the dump is one in BF16. */
TEST(in_a_dump_in_bfloat16_the_router_is_judged_in_f32)
{
    static const char *const wrong[] = {"model.layers.1.mlp.gate.weights"};
    for (size_t changed = 0; changed < 2; changed++) {
        size_t n;
        DUMP(a, TINY "v2-lite", "--tokens", TOKENS);
        struct edited e = edit(a);
        floats(&e, wrong[0], &n)[3] *= changed ? 1 + 0x1p-12f : 1;
        save(&e);
        rewrite(a, norms_and_router);
        expect_wrong(DIFF(changed ? 3 : 0, a, TINY "v2-lite", "--local"), wrong, changed);
    }
}

TEST(ranks_round_their_parts_of_the_sums_in_o_proj_and_down_proj)
{
    static const char *const names_of[] = {"model.layers.1.self_attn.q_a_proj.output",
                                           "model.layers.1.self_attn.o_proj.output", "model.layers.0.mlp.output",
                                           "model.layers.2.mlp.shared_experts.output"};
    json_t *one = DIFF(0, "golden/truth/glm.hf-dump-bfloat16.safetensors", TINY "glm", "--local");
    json_t *four = DIFF(0, "golden/truth/glm.hf-dump-bfloat16.safetensors", TINY "glm", "--local", "--ranks", "4");
    for (size_t i = 0; i < COUNT(names_of); i++) {
        double before = real(operator_of(one, names_of[i]), "of_bound"),
               now = real(operator_of(four, names_of[i]), "of_bound");
        print_message("%s: %.3f of the bound, with 4 ranks %.3f\n", names_of[i], before, now);
        assert_true(before > 0 && (i == 0 ? now == before : now < before && now > before / 8));
    }
    json_decref(one);
    json_decref(four);
}

TEST(what_local_cannot_do_is_told)
{
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    expect_failure(RUN("diff", a, a, "--local"), 2, "--local wants a model");
    expect_failure(RUN("diff", a, TINY "v3", "--local", "--runs", "0"), 2, "--runs is 0");
    struct said s = RUN("diff", a, TINY "v3", "--local", "--all");
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "model.layers.1.self_attn.o_proj.input (attention): 10 rows, at most"));
    assert_non_null(strstr(s.out, " operators: 0 wrong, "));
    forget(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(the_engines_operators_are_within_their_bounds_in_every_precision),
        IN_DIR(a_dump_of_transformers_in_bfloat16_is_rounding),
        IN_DIR(every_wrong_operator_is_named_and_no_other),
        IN_DIR(in_bfloat16_an_operator_is_wrong_by_less_than_its_rounding),
        IN_DIR(in_an_expert_sums_that_nearly_cancel_have_the_rounding_of_their_terms),
        IN_DIR(a_factor_that_is_smaller_than_a_rounding_is_a_bias),
        IN_DIR(another_eps_is_a_bias_in_bfloat16),
        IN_DIR(missing_values_are_computed_from_those_before_and_named),
        IN_DIR(scores_are_judged_by_queries_and_rows_of_the_cache),
        IN_DIR(probabilities_are_judged_too),
        IN_DIR(chosen_tokens_have_the_largest_logit_and_rejected_drafts_have_not),
        IN_DIR(a_draft_that_was_rejected_although_its_token_was_chosen_is_wrong),
        IN_DIR(attention_without_earlier_rows_of_the_cache_is_not_judged),
        IN_DIR(a_choice_is_judged_by_the_dumps_own_values),
        IN_DIR(an_arithmetic_that_is_coarser_than_the_dump_rounds_the_inputs_of_linear_layers),
        IN_DIR(a_result_of_another_shape_is_wrong),
        IN_DIR(in_a_dump_in_bfloat16_the_router_is_judged_in_f32),
        IN_DIR(ranks_round_their_parts_of_the_sums_in_o_proj_and_down_proj),
        IN_DIR(what_local_cannot_do_is_told),
    };
    find_verbatim(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]); /* one test of them */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
