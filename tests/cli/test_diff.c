/* tests/cli/test_diff.c -- the verdicts of `verbatim diff`, from outside: what is the same is called so, what rounding
 * did is within the bound, a tie is told from a mistake, and a mistake is found where it was made. Runs the program
 * itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

/* ---- the same ---------------------------------------------------------------------------------------------------- */

TEST(an_engine_is_identical_to_itself_on_any_instruction_set_and_threads)
{
    char model[64];
    for (size_t i = 0; i < COUNT(names); i++) {
        if (!has_turn(i, 3))
            continue;
        snprintf(model, sizeof model, TINY "%s", names[i]);
        DUMP(a, model, "--tokens", TOKENS, "--taps", "*,*scores*");
        json_t *j = DIFF(0, a, model, "--isa", "scalar", "--threads", "2", "--prefill-chunk", "3", "--runs", "2",
                         "--bits");
        expect_verdict(model, j, "identical");
        assert_true(json_is_null(json_object_get(j, "first")) && json_is_null(json_object_get(j, "first_structural")));
        assert_true(json_array_size(json_object_get(j, "taps")) > 50);
        assert_int_equal(json_array_size(json_object_get(j, "only_in_a")) +
                             json_array_size(json_object_get(j, "only_in_b")),
                         0);
        assert_int_equal(json_array_size(json_object_get(j, "notes")), 0);
        json_decref(j);
        EXPECT(0, "identical", a, a);
    }
    EXPECT(0, "identical", TINY "v3", TINY "v3", "--isa", "scalar", "--tokens", TOKENS, "--bits");
}

TEST(rows_that_stand_are_the_same_with_any_draft_method_and_in_one_pass)
{
    static const char *const methods[] = {"none", "mtp-vanilla", "mtp-eagle"};
    static const size_t taps[] = {77, 115, 115}; /* of the target; with module 0 */
    DUMP(b, TINY "v3-mtp3", "--tokens", "5,6,7,70", "-n", "24", "--ignore-eos", "--draft", "mtp-eagle",
         "--draft-tokens", "4");
    for (size_t i = 0; i < COUNT(methods); i++) {
        DUMP(a, TINY "v3-mtp3", "--tokens", "5,6,7,70", "-n", "24", "--ignore-eos", "--draft", methods[i],
             "--prefill-chunk", "3");
        json_t *j = DIFF(0, a, b, "--bits");
        expect_verdict(methods[i], j, "identical");
        assert_true(json_array_size(json_object_get(j, "taps")) >= taps[i]);
        assert_int_equal(integer(tap(j, "lm_head.output"), "rows_only_in_a"), 0);
        assert_true(integer(tap(j, "lm_head.output"), "rows") >= 24);
        json_decref(j);
        EXPECT(0, "identical", a, TINY "v3-mtp3", "--bits", "--runs", "0"); /* the tokens are the manifest's */
        if (has_turn(i, 3))
            EXPECT(0, "rounding", TINY "v3-mtp3", a, "--reference", "--runs", "4");
    }
}

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

static char *truth_tokens(const char *name, const json_t *more, size_t more_count)
{
    static char text[2048];
    json_t *told = golden_json(name), *token;
    size_t used = 0, i;
    json_array_foreach(json_object_get(told, "tokens"), i, token)
        used += (size_t)sprintf(text + used, "%s%lld", i ? "," : "", (long long)json_integer_value(token));
    for (i = 0; i < more_count; i++)
        used += (size_t)sprintf(text + used, ",%lld", (long long)json_integer_value(json_array_get(more, i)));
    json_decref(told);
    return text;
}

TEST(the_engine_is_within_the_bound_of_the_reference_measured_and_a_priori)
{
    char model[64];
    for (size_t i = 0; i < COUNT(names); i++) {
        const char *tokens = truth_tokens(names[i], NULL, 0);
        if (!has_turn(i + 1, 3))
            continue;
        snprintf(model, sizeof model, TINY "%s", names[i]);
        json_t *j = DIFF(0, model, model, "--reference", "--tokens", tokens);
        expect_rounding(j, names[i]);
        assert_int_equal(integer(json_object_get(j, "bound"), "runs"), 8);
        json_decref(j);
        j = DIFF(0, model, model, "--reference", "--tokens", tokens, "--runs", "0");
        expect_rounding(j, "a priori");
        assert_string_equal(string(json_object_get(j, "bound"), "kind"), "a priori");
        json_decref(j);
        EXPECT(3, "rounding", model, model, "--reference", "--tokens", tokens, "--bits", "--runs", "1");
    }
}

/* In precision bf16 a number near a tie may be rounded the other way: the bound has been measured with such numbers
 * moved. A side in another precision is no rounding. */
TEST(in_bf16_the_engine_is_within_the_bound_of_the_reference_in_bf16)
{
    char model[64];
    for (size_t i = 0; i < COUNT(names); i++) {
        const char *tokens = truth_tokens(names[i], NULL, 0);
        if (!has_turn(i + 2, 3))
            continue;
        snprintf(model, sizeof model, TINY "%s", names[i]);
        if (!i) { /* without a dump; the bits are the same */
            json_t *j = DIFF(0, model, model, "--reference", "--precision", "bf16", "--tokens", tokens);
            expect_rounding(j, names[i]);
            json_decref(j);
        }
        DUMP(a, model, "--precision", "bf16", "--tokens", tokens);
        EXPECT(0, "identical", a, model, "--precision", "bf16", "--isa", "scalar", "--threads", "2", "--bits", "--runs",
               "1");
        EXPECT(0, "rounding", a, model, "--precision", "bf16", "--reference");
        EXPECT(3, "structural", a, model, "--reference", "--runs", "2");
        EXPECT(3, "structural", model, model, "--precision", "bf16", "--runs", "0", "--tokens", tokens);
    }
}

/* transformers keeps float32 inside a float64 model (golden/README.md): `logits` at every position, and the row of each
 * MTP depth that proposes after the prompt: `mtp-vanilla.logits` [6,V], of which the modules that there are come into
 * question. */
TEST(the_numbers_of_transformers_are_rounding)
{
    char path[96], model[64], text[256];
    for (size_t i = 0; i < COUNT(names); i++) {
        if (!has_turn(i, 3))
            continue;
        snprintf(path, sizeof path, "golden/truth/%s.transformers.safetensors", names[i]);
        snprintf(model, sizeof model, TINY "%s", names[i]);
        const char *tokens = truth_tokens(names[i], NULL, 0);
        for (int engine = 0; engine < 2; engine++) {
            json_t *j = DIFF(0, path, model, "--tokens", tokens, engine ? "--isa=scalar" : "--reference");
            expect_rounding(j, path);
            assert_int_equal(json_array_size(json_object_get(j, "taps")), 1);
            assert_true(real(tap(j, "lm_head.output"), "top1_agreement") == 1.0);
            assert_true(integer(tap(j, "lm_head.output"), "rows") >= 48);
            json_decref(j);
        }
        json_t *told = golden_json(names[i]), *drafts = json_object_get(told, "drafts");
        json_t *at = json_array_get(drafts, json_array_size(drafts) - 1);
        long long n = (long long)json_array_size(json_object_get(told, "tokens"));
        size_t modules = !strcmp(names[i], "v3-mtp3") ? 3
                         : !strcmp(names[i], "v3") || !strcmp(names[i], "glm") ? 1
                         : 0,
               count;
        if (!modules) {
            json_decref(told);
            continue;
        }
        assert_int_equal(integer(at, "n"), n);
        json_t *more = json_copy(json_object_get(json_object_get(at, "mtp-vanilla"), "drafts"));
        json_array_insert_new(more, 0, json_integer(integer(at, "next")));
        struct golden g = golden_read(path);
        const char *logits = golden_data(&g, "mtp-vanilla.logits", &count);
        json_t *header = json_object();
        size_t row = count / 6 * 8;
        FILE *manifest = fopen((snprintf(text, sizeof text, "%s/a.jsonl", dir), text), "w");
        for (size_t k = 0; k < modules; k++) {
            snprintf(text, sizeof text, "model.layers.%zu.shared_head.head.output", 3 + k);
            json_object_set_new(header, text,
                                json_pack("{s:s,s:[I,I],s:[I,I]}", "dtype", "F64", "shape", (json_int_t)1,
                                          (json_int_t)(count / 6), "data_offsets", (json_int_t)(k * row),
                                          (json_int_t)((k + 1) * row)));
            fprintf(manifest, "{\"tensor\":\"%s\",\"name\":\"%s\",\"layer\":%zu,\"mtp_depth\":%zu,\"sequence\":[0],",
                    text, text, 3 + k, k);
            fprintf(manifest, "\"token\":[%lld],\"index\":[%lld]}\n",
                    (long long)json_integer_value(json_array_get(more, k)), n - 1);
        }
        fclose(manifest);
        char *head = json_dumps(header, JSON_COMPACT);
        write_safetensors(dir, "a.safetensors", head, logits, modules * row);
        json_t *j = DIFF(0, a, model, "--tokens", truth_tokens(names[i], more, 7));
        expect_rounding(j, "mtp-vanilla.logits");
        assert_int_equal(json_array_size(json_object_get(j, "taps")), modules);
        assert_int_equal(integer(tap(j, "model.layers.3.shared_head.head.output"), "rows"), 1);
        json_decref(j);
        json_decref(told);
        json_decref(header);
        json_decref(more);
        free(head);
        golden_close(&g);
    }
}

/* tools/hf_dump.py: in float32, with sums in an order of its own; in bfloat16, where a router fell the other way. Both
 * have router logits and no choices, and say their tokens themselves. */
TEST(dumps_of_transformers_are_rounding_and_a_tie)
{
    json_t *j = DIFF(0, "golden/truth/moonlight.hf-dump.safetensors", TINY "moonlight");
    expect_rounding(j, "transformers, float32");
    assert_int_equal(integer(tap(j, "model.layers.2.mlp.gate.experts"), "flips"), 0);
    assert_true(json_array_size(json_object_get(j, "taps")) > 40);
    json_decref(j);
    j = DIFF(3, "golden/truth/glm.hf-dump-bfloat16.safetensors", TINY "glm");
    expect_verdict("transformers, bfloat16", j, "tie-flip");
    assert_int_equal(integer(tap(j, "model.layers.2.mlp.gate.experts"), "flips"), 1);
    assert_int_equal(integer(tap(j, "model.layers.2.mlp.output"), "rows_after_a_tie_flip"), 1);
    assert_string_equal(string(tap(j, "model.layers.2.mlp.output"), "verdict"), "rounding");
    json_decref(j);
    EXPECT(3, "structural", "golden/truth/glm.hf-dump-bfloat16.safetensors", TINY "glm", "--arithmetic", "f32");
}

/* ---- mistakes ---------------------------------------------------------------------------------------------------- */

/* Against the dump it was made from (a priori), against the same with a measured bound, and against the model. */
static void expect_found(const char *name)
{
    expect_structural_at(DIFF(3, a, b), name);
    expect_structural_at(DIFF(3, a, b, "--model", TINY "v3"), name);
    expect_structural_at(DIFF(3, b, TINY "v3"), name);
    expect_structural_at(DIFF(3, TINY "v3", b, "--reference"), name);
}

TEST(a_mistake_is_found_where_it_was_made)
{
    size_t n;
    DUMP(a, TINY "v3", "--tokens", TOKENS);

    copy_dump(a, b, 1); /* heads 0 and 1 change places */
    struct edited e = edit(b);
    float *x = floats(&e, "model.layers.1.self_attn.o_proj.input", &n);
    size_t width = width_of(&e, "model.layers.1.self_attn.o_proj.input"), head = width / 3;
    for (size_t i = 0; i < n; i += width)
        for (size_t k = 0; k < head; k++) {
            float was = x[i + k];
            x[i + k] = x[i + head + k];
            x[i + head + k] = was;
        }
    save(&e);
    expect_found("model.layers.1.self_attn.o_proj.input");

    copy_dump(a, b, 1); /* embedding and hidden state change places before eh_proj */
    e = edit(b);
    float *p = floats(&e, "model.layers.3.enorm.output", &n), *q = floats(&e, "model.layers.3.hnorm.output", &n);
    for (size_t i = 0; i < n; i++) {
        float was = p[i];
        p[i] = q[i];
        q[i] = was;
    }
    save(&e);
    expect_found("model.layers.3.enorm.output");

    copy_dump(a, b, 1); /* one number of one row, by 1e-2 */
    e = edit(b);
    floats(&e, "model.layers.2.mlp.shared_experts.output", &n)[2 * 64 + 7] += 1e-2f;
    save(&e);
    json_t *j = DIFF(3, a, b);
    const json_t *at = json_object_get(json_object_get(j, "first_structural"), "at");
    assert_int_equal(integer(at, "index"), 2);
    assert_int_equal(integer(at, "column"), 7);
    assert_int_equal(integer(at, "token"), 7);
    assert_true(fabs(fabs(real(at, "a") - real(at, "b")) - 1e-2) < 1e-4);
    assert_string_equal(string(json_object_get(j, "first"), "tap"), "model.layers.2.mlp.shared_experts.output");
    assert_int_equal(json_array_size(json_object_get(j, "notes")), 1); /* the manifest has another SHA-256 */
    json_decref(j);
    expect_found("model.layers.2.mlp.shared_experts.output");

    copy_dump(a, b, 1); /* a number that is none */
    e = edit(b);
    floats(&e, "model.layers.0.mlp.output", &n)[5] = NAN;
    save(&e);
    expect_found("model.layers.0.mlp.output");
    j = DIFF(3, a, b);
    assert_non_null(strstr(string(json_object_get(j, "first_structural"), "why"), "not finite"));
    assert_string_equal(string(json_object_get(j, "first"), "b"), "NaN");
    json_decref(j);
    copy_dump(b, a, 1); /* on both sides it is the same */
    EXPECT(0, "identical", a, b);
}

/* The expert of row 1 in layer 1 that is chosen with the least, and the best of those that are not; by = what they are
 * chosen by, [10,E]. */
static void weakest(const float *by, const int32_t *chosen, size_t E, size_t k, size_t *least, size_t *next)
{
    *least = (size_t)-1;
    *next = (size_t)-1;
    for (size_t e = 0; e < E; e++) {
        int is = 0;
        for (size_t i = 0; i < k; i++)
            is |= chosen[i] == (int32_t)e;
        size_t *at = is ? least : next;
        if (*at == (size_t)-1 || (is ? by[e] < by[*at] : by[e] > by[*at]))
            *at = e;
    }
}

static void replace_expert(int32_t *chosen, size_t k, size_t was, size_t now)
{
    for (size_t i = 0; i < k; i++)
        chosen[i] = chosen[i] == (int32_t)was ? (int32_t)now : chosen[i];
}

TEST(another_expert_is_a_tie_or_a_mistake_by_its_margin)
{
    enum { ROW = 4 };
    static const char choice[] = "model.layers.1.mlp.gate.choice", experts[] = "model.layers.1.mlp.gate.experts";
    size_t n, E, k, least, next;
    DUMP(a, TINY "moonlight", "--tokens", TOKENS);
    copy_dump(a, b, 1);
    struct edited x = edit(a), y = edit(b);
    E = width_of(&x, choice);
    k = width_of(&x, experts);
    float *p = floats(&x, choice, &n) + ROW * E, *q = floats(&y, choice, &n) + ROW * E;
    int32_t *s = (int32_t *)golden_data(&y.g, experts, &n) + ROW * k;
    weakest(p, s, E, k, &least, &next);
    replace_expert(s, k, least, next); /* with the values as they are */
    save(&y);
    json_t *j = DIFF(3, a, b);
    assert_non_null(strstr(string(json_object_get(j, "first_structural"), "why"), "margin"));
    expect_structural_at(j, experts);
    expect_structural_at(DIFF(3, b, TINY "moonlight"), experts);
    y = edit(b);
    q = floats(&y, choice, &n) + ROW * E;
    p[next] = nextafterf(p[least], 0); /* A has the one before the other by an ulp, B the other way round */
    q[least] = p[next];
    q[next] = p[least];
    s = (int32_t *)golden_data(&y.g, experts, &n) + ROW * k;
    size_t D = width_of(&y, "model.layers.1.output");
    floats(&y, "model.layers.1.output", &n)[ROW * D] += 1;         /* behind it: the same row, */
    floats(&y, "model.layers.2.mlp.output", &n)[(ROW + 2) * D] += 1; /* and later rows of the next layer */
    floats(&y, "lm_head.output", &n)[(ROW + 1) * (n / 10)] += 1;
    save(&x);
    save(&y);
    j = DIFF(3, a, b);
    expect_verdict("an ulp", j, "tie-flip");
    assert_string_equal(string(tap(j, choice), "verdict"), "rounding");
    assert_string_equal(string(tap(j, experts), "verdict"), "tie-flip");
    assert_int_equal(integer(tap(j, experts), "flips"), 1);
    assert_true(real(tap(j, experts), "smallest_margin_a") < 1e-6);
    assert_int_equal(integer(tap(j, "model.layers.1.output"), "rows_after_a_tie_flip"), 1);
    assert_int_equal(integer(tap(j, "model.layers.2.mlp.output"), "rows_after_a_tie_flip"), 10 - ROW);
    assert_int_equal(integer(tap(j, "model.layers.1.mlp.gate.scores"), "rows_after_a_tie_flip"), 0);
    assert_int_equal(integer(tap(j, "lm_head.output"), "rows_after_a_tie_flip"), 10 - ROW);
    json_decref(j);
    j = DIFF(3, a, b, "--model", TINY "moonlight", "--runs", "3");
    assert_string_equal(string(j, "verdict_of_values"), "tie-flip"); /* of operators alone: what was changed behind the
                                                                        tie */
    json_decref(j);
    y = edit(b); /* the same layer's next row, and an earlier row later on, are not behind it */
    floats(&y, "model.layers.1.output", &n)[(ROW + 1) * D] += 1;
    save(&y);
    expect_structural_at(DIFF(3, a, b), "model.layers.1.output");
    y = edit(b);
    floats(&y, "model.layers.1.output", &n)[(ROW + 1) * D] -= 1;
    floats(&y, "model.layers.2.mlp.output", &n)[(ROW - 1) * D] += 1;
    save(&y);
    expect_structural_at(DIFF(3, a, b), "model.layers.2.mlp.output");
}

TEST(another_best_token_is_a_tie_or_a_mistake_by_its_margin)
{
    size_t n, best = 0, second = 0;
    DUMP(a, TINY "glm", "--tokens", TOKENS);
    copy_dump(a, b, 1);
    struct edited x = edit(a), y = edit(b);
    float *p = floats(&x, "lm_head.output", &n), *q = floats(&y, "lm_head.output", &n);
    size_t V = n / 10;
    p += 3 * V;
    q += 3 * V;
    for (size_t v = 0; v < V; v++)
        best = p[v] > p[best] ? v : best;
    for (size_t v = 0; v < V; v++)
        second = v != best && (second == best || p[v] > p[second]) ? v : second;
    p[second] = nextafterf(p[best], -INFINITY);
    q[second] = p[best];
    q[best] = p[second];
    save(&x);
    save(&y);
    json_t *j = DIFF(3, a, b);
    expect_verdict("an ulp", j, "tie-flip");
    assert_true(fabs(real(tap(j, "lm_head.output"), "top1_agreement") - 0.9) < 1e-9);
    assert_true(real(tap(j, "lm_head.output"), "smallest_margin_a") < 1e-6);
    assert_true(real(tap(j, "lm_head.output"), "kl_max") < 1e-6);
    json_decref(j);
    y = edit(b);
    floats(&y, "lm_head.output", &n)[3 * V + second] += 0.5f;
    save(&y);
    j = DIFF(3, a, b);
    assert_true(real(tap(j, "lm_head.output"), "kl_max") > 1e-3);
    expect_structural_at(j, "lm_head.output");
}

/* Three experts always have the same score: perturbed runs choose now the one, now the other, which is no measure of
 * rounding. The engine and the reference take the lower index. */
TEST(perturbed_runs_that_choose_otherwise_do_not_widen_the_bound)
{
    char name[96];
    json_t *t;
    size_t i, n, E;
    copy_files(TINY "moonlight", dir);
    snprintf(a, sizeof a, "%s/model.safetensors", dir);
    struct edited e = edit(a);
    for (int layer = 1; layer < 3; layer++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.e_score_correction_bias", layer);
        float *bias = floats(&e, name, &E);
        bias[0] = bias[1] = bias[2] = bias[3];
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", layer);
        char *w = golden_data(&e.g, name, &n);
        size_t row = n / E * (strcmp(string(json_object_get(e.g.header, name), "dtype"), "F32") ? 2 : 4);
        for (size_t k = 1; k < 3; k++)
            memcpy(w + k * row, w, row);
    }
    save(&e);
    json_t *j = DIFF(0, dir, dir, "--reference", "--tokens", TOKENS);
    expect_rounding(j, "equal experts");
    json_array_foreach(json_object_get(j, "taps"), i, t)
        if (json_is_number(json_object_get(t, "bound")) && real(t, "bound") > 1e-3)
            fail_msg("%s: the bound is %g", string(t, "name"), real(t, "bound"));
    assert_true(real(tap(j, "model.layers.1.mlp.gate.experts"), "smallest_margin_b") == 0);
    json_decref(j);
}

TEST(other_tokens_are_told)
{
    DUMP(a, TINY "v3", "--tokens", "5,6,7,8,9");
    DUMP(b, TINY "v3", "--tokens", "5,6,7,70,9");
    json_t *j = DIFF(3, a, b);
    assert_non_null(strstr(string(json_object_get(j, "first_structural"), "why"), "from index 3 on"));
    assert_int_equal(integer(tap(j, "model.layers.2.output"), "rows"), 3);
    expect_structural_at(j, "model.embed_tokens.output");
    struct edited x = edit(a), y = edit(b); /* unless a tie of the logits before chose them */
    size_t n;
    float *p = floats(&x, "lm_head.output", &n) + 2 * (n / 5), *q = floats(&y, "lm_head.output", &n) + 2 * (n / 5);
    p[8] = q[70] = 9.0f;
    p[70] = q[8] = nextafterf(9.0f, 0);
    save(&x);
    save(&y);
    j = DIFF(3, a, b);
    expect_verdict("a tie before", j, "tie-flip");
    assert_int_equal(integer(tap(j, "lm_head.output"), "rows_after_a_tie_flip"), 2);
    json_decref(j);
    y = edit(b);
    floats(&y, "lm_head.output", &n)[2 * (n / 5) + 70] = 9.5f;
    save(&y);
    EXPECT(3, "structural", a, b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(an_engine_is_identical_to_itself_on_any_instruction_set_and_threads),
        IN_DIR(rows_that_stand_are_the_same_with_any_draft_method_and_in_one_pass),
        IN_DIR(the_engine_is_within_the_bound_of_the_reference_measured_and_a_priori),
        IN_DIR(in_bf16_the_engine_is_within_the_bound_of_the_reference_in_bf16),
        IN_DIR(the_numbers_of_transformers_are_rounding),
        IN_DIR(dumps_of_transformers_are_rounding_and_a_tie),
        IN_DIR(a_mistake_is_found_where_it_was_made),
        IN_DIR(another_expert_is_a_tie_or_a_mistake_by_its_margin),
        IN_DIR(another_best_token_is_a_tie_or_a_mistake_by_its_margin),
        IN_DIR(perturbed_runs_that_choose_otherwise_do_not_widen_the_bound),
        IN_DIR(other_tokens_are_told),
    };
    find_verbatim(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]); /* one test of them */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
