/* tests/cli/test_diff_files.c -- what `verbatim diff` reads and tells: other dtypes, layouts, names, shapes; parts of
 * dumps; files that are none. Runs the program itself (argv[1], or ../verbatim beside this one) in the repository's
 * root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

static const char *const systems[] = {"hf", "llama.cpp", "megatron", "sglang", "vllm"};

/* ---- other dtypes, layouts, shapes, names ------------------------------------------------------------------------ */

static int as_bf16(char name[256], const char **dtype)
{
    (void)name;
    *dtype = !strcmp(*dtype, "F32") ? "BF16" : *dtype;
    return 1;
}

static int as_f16(char name[256], const char **dtype)
{
    (void)name;
    *dtype = !strcmp(*dtype, "F32") ? "F16" : *dtype;
    return 1;
}

static int all_but_the_router(char name[256], const char **dtype)
{
    return strstr(name, ".mlp.gate.") ? 1 : as_bf16(name, dtype);
}

static int as_f8(char name[256], const char **dtype)
{
    *dtype = "F8_E4M3";
    return !strcmp(name, "lm_head.output");
}

TEST(coarser_dtypes_are_compared_in_what_they_hold)
{
    size_t n;
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    for (int half = 0; half < 2; half++) {
        copy_dump(a, b, 1);
        rewrite(b, half ? as_f16 : as_bf16);
        json_t *j = DIFF(0, a, b, "--bits"); /* rounded from the same numbers */
        expect_verdict("rounded", j, "identical");
        assert_string_equal(string(tap(j, "lm_head.output"), "dtype"), half ? "F16" : "BF16");
        json_decref(j);
        EXPECT(0, "rounding", TINY "v3", b, "--reference", "--arithmetic", "f32"); /* rounded copies, not computed
                                                                                      with */
        struct edited e = edit(b);
        uint16_t *x = golden_data(&e.g, "model.layers.2.self_attn.o_proj.output", &n);
        size_t largest = 0;
        for (size_t i = 1; i < width_of(&e, "model.layers.2.self_attn.o_proj.output"); i++)
            largest = (x[i] & 0x7fff) > (x[largest] & 0x7fff) ? i : largest;
        x[largest] += 3; /* ulps of its own, which is much for an engine that computes in f32 */
        save(&e);
        j = DIFF(0, a, b);
        expect_verdict("three ulps", j, "rounding");
        assert_int_equal(integer(tap(j, "model.layers.2.self_attn.o_proj.output"), "max_ulps"), 3);
        json_decref(j);
        expect_structural_at(DIFF(3, a, b, "--arithmetic", "f32"), "model.layers.2.self_attn.o_proj.output");
        expect_structural_at(DIFF(3, a, b, "--arithmetic", "f32", "--model", TINY "v3"),
                             "model.layers.2.self_attn.o_proj.output");
    }
    copy_dump(a, b, 1); /* an engine may compute in BF16 and hold some of it in F32 */
    rewrite(b, all_but_the_router);
    struct edited e = edit(b);
    floats(&e, "model.layers.1.mlp.gate.output", &n)[0] *= 1.001f;
    save(&e);
    EXPECT(0, "rounding", a, b);
    expect_structural_at(DIFF(3, a, b, "--arithmetic", "f32"), "model.layers.1.mlp.gate.output");
    copy_dump(a, b, 0);
    forget_manifest(b);
    rewrite(b, as_f8);
    expect_failure(RUN("diff", b, a), 1, "lm_head.output is F8_E4M3");
}

/* Halves: what is number p of the pairs' first, then of their second numbers. */
static void to_halves(struct edited *e, const char *name, size_t block, size_t r)
{
    size_t n;
    float *x = floats(e, name, &n), row[64];
    for (size_t i = 0; i < n; i += block) {
        memcpy(row, x + i + block - r, r * sizeof *row);
        for (size_t p = 0; p < r; p++)
            x[i + block - r + p / 2 + p % 2 * (r / 2)] = row[p];
    }
}

TEST(rows_of_rope_in_halves_are_the_same_numbers)
{
    char name[96];
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    copy_dump(a, b, 1);
    struct edited e = edit(b);
    size_t r = width_of(&e, "model.layers.0.self_attn.k_rope"),
           heads = width_of(&e, "model.layers.0.self_attn.q_rope") / r;
    for (int layer = 0; layer < 4; layer++)
        for (int q = 0; q < 2; q++) {
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%c_rope", layer, "kq"[q]);
            to_halves(&e, name, r, r);
        }
    save(&e);
    expect_structural_at(DIFF(3, a, b), "model.layers.0.self_attn.q_rope");
    forget_manifest(b);
    EXPECT(0, "identical", a, b, "--layout-b", "halves");
    EXPECT(0, "identical", b, TINY "v3", "--layout-a", "halves", "--tokens", TOKENS);
    copy_dump(a, b, 1); /* with a manifest that says so, of all four */
    e = edit(b);
    for (int layer = 0; layer < 4; layer++) {
        static const char *const of[] = {"q_rope", "k_rope", "q_b_proj.output", "kv_a_proj_with_mqa.output"};
        for (size_t i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%s", layer, of[i]);
            to_halves(&e, name, i < 2 ? r : width_of(&e, name) / (i == 2 ? heads : 1), r);
        }
    }
    save(&e);
    expect_structural_at(DIFF(3, a, b), "model.layers.0.self_attn.q_b_proj.output");
    for (int i = 0; i < 16; i++)
        replace_in(dir, "b.jsonl", "\"interleaved\"", "\"halves\"");
    EXPECT(0, "identical", a, b);
}

TEST(a_dump_in_another_engines_names_is_the_same_dump)
{
    /* [engine][of which]: llama.cpp has one name for q_proj and q_b_proj */
    static const struct { const char *checkpoint, *system, *name;
    } has[] = {
               {"v3", "llama.cpp", "kv_cmpr-1"},
               {"v3", "llama.cpp", "q-0"},
               {"v2-lite", "llama.cpp", "q-0"},
               {"v3", "llama.cpp", "result_output"},
               {"v3", "llama.cpp", "ffn_moe_topk-2"},
               {"v3", "vllm", "model.layers.3.mtp_block.self_attn.q_b_proj.output"},
               {"v3", "vllm", "model.layers.3.enorm.output"},
               {"v3", "sglang", "model.decoder.mlp.gate.output"},
               {"v3", "sglang", "model.eh_proj.input"},
               {"v3-mtp3", "sglang", "model.layers.4.enorm.output"},
               {"v3-mtp3", "megatron", "mtp.layers.2.mtp_model_layer.pre_mlp_layernorm.output"},
               {"v3", "megatron", "decoder.layers.1.self_attention.linear_q_down_proj.output"},
               {"v3", "megatron", "embedding.word_embeddings.output"},
               {"v3-mtp3", "hf", "layers.1.mtp_block.self_attn.o_proj.input"},
               {"v3", "hf", "layers.0.post_norm.output"},
               {"v3", "hf", "lm_head.output"}};
    char model[64];
    size_t checked = 0;
    for (size_t i = 0; i < COUNT(names); i++)
        for (size_t k = 0; k < COUNT(systems); k++) {
            snprintf(model, sizeof model, TINY "%s", names[i]);
            DUMP(a, model, "--tokens", TOKENS, "--names", systems[k]);
            struct golden g = golden_read(a);
            for (size_t h = 0; h < COUNT(has); h++)
                if (!strcmp(has[h].checkpoint, names[i]) && !strcmp(has[h].system, systems[k])) {
                    if (!json_object_get(g.header, has[h].name))
                        fail_msg("%s, %s: no tensor %s", names[i], systems[k], has[h].name);
                    checked++;
                }
            size_t all = json_object_size(g.header);
            golden_close(&g);
            json_t *j = DIFF(0, a, model, "--names", systems[k], "--runs", "0", "--bits"); /* the manifest has our
                                                                                              names */
            expect_verdict(systems[k], j, "identical");
            assert_int_equal(json_array_size(json_object_get(j, "taps")), all);
            json_decref(j);
            forget_manifest(a);
            j = DIFF(0, a, model, "--names", systems[k], "--runs", "0", "--bits", "--tokens", TOKENS);
            expect_verdict(systems[k], j, "identical");
            size_t other = json_array_size(json_object_get(j, "only_in_a")); /* what those have for other values */
            assert_int_equal(json_array_size(json_object_get(j, "taps")) + other, all);
            assert_true(!other == (k < 3));
            json_decref(j);
            if (!i) { /* two dumps: the one with a manifest tells how many layers there are, whichever it is */
                DUMP(b, model, "--tokens", TOKENS);
                EXPECT(0, "identical", a, b, "--names", systems[k]);
                EXPECT(0, "identical", b, a, "--names", systems[k]);
                j = DIFF(0, a, b, "--names", systems[k]);
                assert_int_equal(json_array_size(json_object_get(j, "taps")) + other, all);
                json_decref(j);
            }
        }
    assert_int_equal(checked, COUNT(has));
}

static int older_megatron(char name[256], const char **dtype)
{
    char *at = strstr(name, "mtp_model_layer."), rest[256];
    (void)dtype;
    if (at) {
        snprintf(rest, sizeof rest, "transformer_layer.%.200s", at + 16);
        strcpy(at, rest);
    }
    return 1;
}

TEST(names_that_an_engine_has_had_are_understood)
{
    DUMP(a, TINY "v3-mtp3", "--tokens", TOKENS, "--names", "megatron");
    forget_manifest(a);
    rewrite(a, older_megatron);
    json_t *j = DIFF(0, a, TINY "v3-mtp3", "--names", "megatron", "--tokens", TOKENS, "--bits", "--runs", "0");
    expect_verdict("megatron", j, "identical");
    assert_int_equal(json_array_size(json_object_get(j, "only_in_a")), 0);
    json_decref(j);
}

static int without_a_proj(char name[256], const char **dtype)
{
    (void)dtype;
    return !strstr(name, "layers.1.self_attn.q_a_proj") && !strstr(name, "layers.1.self_attn.kv_a_proj");
}

TEST(a_fused_projection_is_both_of_its_parts)
{
    size_t n, m, total;
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    struct edited e = edit(a);
    float *p = floats(&e, "model.layers.1.self_attn.q_a_proj.output", &n);
    float *q = floats(&e, "model.layers.1.self_attn.kv_a_proj_with_mqa.output", &m);
    float *joined = malloc((n + m) * sizeof *joined);
    assert_non_null(joined);
    for (size_t i = 0; i < 10; i++) {
        memcpy(joined + i * (n + m) / 10, p + i * n / 10, n / 10 * sizeof *p);
        memcpy(joined + i * (n + m) / 10 + n / 10, q + i * m / 10, m / 10 * sizeof *q);
    }
    char header[256];
    snprintf(header, sizeof header,
             "{\"model.layers.1.self_attn.fused_qkv_a_proj.output\":{\"dtype\":\"F32\",\"shape\":[1,10,%zu],"
             "\"data_offsets\":[0,%zu]}}",
             (n + m) / 10, (n + m) * 4);
    char *bytes = safetensors_bytes(header, joined, (n + m) * 4, &total);
    write_to(b, bytes, total);
    json_t *j = DIFF(0, b, a, "--names", "vllm", "--bits");
    expect_verdict("fused", j, "identical");
    assert_int_equal(json_array_size(json_object_get(j, "taps")), 2);
    json_decref(j);
    EXPECT(0, "identical", b, TINY "v3", "--tokens", TOKENS, "--names", "vllm");
    golden_close(&e.g);
    free(bytes);
    free(joined);
}

/* Elsewhere experts stand by descending score, and their weights with them. */
TEST(experts_may_stand_in_any_order_with_their_weights)
{
    size_t n;
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    copy_dump(a, b, 1);
    struct edited e = edit(b);
    size_t k = width_of(&e, "model.layers.1.mlp.gate.experts");
    int32_t *experts = golden_data(&e.g, "model.layers.1.mlp.gate.experts", &n), chosen;
    float *weights = floats(&e, "model.layers.1.mlp.gate.weights", &n), weight;
    for (size_t i = 0; i < n; i += k) {
        chosen = experts[i];
        experts[i] = experts[i + k - 1];
        experts[i + k - 1] = chosen;
        weight = weights[i];
        weights[i] = weights[i + k - 1];
        weights[i + k - 1] = weight;
    }
    save(&e);
    EXPECT(0, "identical", a, b);
}

static int only_router_logits(char name[256], const char **dtype)
{
    (void)dtype;
    return !strstr(name, ".mlp.gate.") || strstr(name, ".mlp.gate.output");
}

/* Hooks see a router's logits and not what it chose: that follows by the other side's rules. */
TEST(choices_follow_from_router_logits)
{
    char model[64];
    size_t n, i, chosen = 0;
    json_t *t;
    for (size_t m = 0; m < COUNT(names); m++) {
        snprintf(model, sizeof model, TINY "%s", names[m]);
        DUMP(a, model, "--tokens", TOKENS);
        copy_dump(a, b, 1);
        rewrite(b, only_router_logits);
        json_t *j = DIFF(0, b, a);
        json_array_foreach(json_object_get(j, "taps"), i, t)
            if (strstr(string(t, "name"), ".mlp.gate.experts") || strstr(string(t, "name"), ".mlp.gate.groups")) {
                assert_string_equal(string(t, "verdict"), "identical");
                chosen += (size_t)integer(t, "rows");
            }
        assert_string_equal(string(tap(j, "model.layers.1.mlp.gate.experts"), "verdict"), "identical");
        int unbiased = !strncmp(names[m], "v2", 2) || !strcmp(names[m], "mistral4"); /* the scores decide */
        assert_true(real(tap(j, unbiased ? "model.layers.1.mlp.gate.scores" : "model.layers.1.mlp.gate.choice"),
                         "max_abs") < 1e-6);
        json_decref(j);
    }
    assert_true(chosen > 250);
    struct edited e = edit(b); /* of the last checkpoint: another expert in row 3, by far */
    float *x = floats(&e, "model.layers.1.mlp.gate.output", &n) + 3 * (n / 10);
    for (i = 0; i < n / 10; i++)
        x[i] = -x[i];
    save(&e);
    expect_structural_at(DIFF(3, b, a), "model.layers.1.mlp.gate.output");
    json_t *j = DIFF(3, b, a);
    assert_int_equal(integer(tap(j, "model.layers.1.mlp.gate.experts"), "flips"), 1);
    json_decref(j);
}

/* [1,H,r]: of one token, or of a batch of one? The model knows. */
TEST(one_token_without_a_manifest_is_one_row)
{
    DUMP(a, TINY "v3", "--tokens", "7");
    forget_manifest(a);
    json_t *j = DIFF(0, a, TINY "v3", "--tokens", "7", "--bits");
    expect_verdict("one token", j, "identical");
    assert_int_equal(integer(tap(j, "model.layers.1.self_attn.q_rope"), "rows"), 1);
    json_decref(j);
}

static int only_logits(char name[256], const char **dtype)
{
    (void)dtype;
    return !strcmp(name, "lm_head.output");
}

/* One row: the last; a row more than the other: what is common. */
TEST(parts_are_compared_and_what_is_missing_is_listed)
{
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    copy_dump(a, b, 1);
    rewrite(b, without_a_proj);
    json_t *j = DIFF(0, a, b), *notes = json_object_get(j, "notes");
    expect_verdict("partial", j, "identical");
    assert_int_equal(json_array_size(json_object_get(j, "only_in_a")), 2);
    assert_int_equal(json_array_size(json_object_get(j, "only_in_b")), 0);
    assert_non_null(strstr(json_string_value(json_array_get(notes, 0)), "2 tensors that the file lacks"));
    json_decref(j);
    struct edited e = edit(a);
    size_t n, total;
    float *x = floats(&e, "lm_head.output", &n);
    char header[128];
    snprintf(header, sizeof header,
             "{\"result_output\":{\"dtype\":\"F32\",\"shape\":[1,%zu],\"data_offsets\":[0,%zu]}}", n / 10, n / 10 * 4);
    char *bytes = safetensors_bytes(header, x + n / 10 * 9, n / 10 * 4, &total);
    forget_manifest(b);
    write_to(b, bytes, total);
    free(bytes);
    golden_close(&e.g);
    EXPECT(0, "identical", a, b, "--names", "llama.cpp");
    copy_dump(a, b, 0);
    rewrite(b, only_logits);
    EXPECT(0, "identical", b, TINY "v3", "--tokens", TOKENS);
    DUMP(b, TINY "v3", "--tokens", "5,6,7,70,9");
    j = DIFF(0, a, b);
    expect_verdict("fewer rows", j, "identical");
    assert_int_equal(integer(tap(j, "lm_head.output"), "rows_only_in_a"), 5);
    json_decref(j);
    DUMP(a, TINY "v3", "--tokens", TOKENS, "--taps", "*scores*"); /* scores are as wide as the passes were */
    DUMP(b, TINY "v3", "--tokens", "5,6,7,70,9", "--taps", "*scores*");
    EXPECT(0, "identical", a, b);
    DUMP(b, TINY "v2", "--tokens", "5,6,7,70,9"); /* another model, with rows of other widths */
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    j = DIFF(3, a, b);
    assert_non_null(strstr(string(json_object_get(j, "first_structural"), "why"), "shape"));
    json_decref(j);
}

/* ---- what is told ------------------------------------------------------------------------------------------------ */

TEST(the_object_has_what_is_promised_and_its_counts_agree)
{
    size_t i;
    json_t *t, *n;
    const char *bucket;
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    json_t *j = DIFF(0, a, TINY "v3", "--reference");
    expect_keys(j, "verdict:s verdict_of_values:s a:o b:o tokens:i bound:o first:o first_structural:n first_biased:n "
                   "taps:a only_in_a:a only_in_b:a notes:a "
                   "local_a:o local_b:n required_missing:a");
    expect_keys(json_object_get(j, "first"),
                "tap:s sequence:i index:i token:i column:i a:r b:r a_bits:s b_bits:s ulps:i");
    json_array_foreach(json_object_get(j, "taps"), i, t) {
        long long told = 0;
        json_object_foreach(json_object_get(t, "ulps"), bucket, n)
            told += json_integer_value(n);
        if (!strstr(string(t, "name"), "gate.experts") && !strstr(string(t, "name"), "gate.groups"))
            assert_int_equal(told, integer(t, "numbers"));
        assert_true(real(t, "bits_equal") >= 0 && real(t, "bits_equal") <= 1);
        if (json_is_number(json_object_get(t, "cosine")))
            assert_true(real(t, "cosine") > 0.9999 && real(t, "nmse") < 1e-9);
    }
    t = tap(j, "lm_head.output");
    assert_true(real(t, "kl_mean") <= real(t, "kl_max") && real(t, "kl_max") < 1e-9);
    assert_true(real(t, "smallest_margin_a") > 0);
    assert_true(real(tap(j, "model.layers.1.mlp.gate.experts"), "smallest_margin_b") > 0);
    json_decref(j);
    struct said s = RUN("diff", a, TINY "v3", "--reference", "--all");
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "first difference: model.layers.0.input_layernorm.output, index 0"));
    assert_non_null(strstr(s.out, "KL(A || B)"));
    assert_non_null(strstr(s.out, "model.layers.3.shared_head.head.output"));
    assert_memory_equal(s.out, "rounding: ", 10);
    forget(&s);
}

/* The engine decodes with heads; the reference computes them on the prompt and the tokens that were decoded. */
TEST(heads_of_the_engine_and_of_the_reference_differ_by_rounding)
{
    static const char *const parts[] = {"input_layernorm.input", "self_attn.kv_a_layernorm.output",
                                        "shared_head.norm.output", "shared_head.head.output"};
    char tokens[256] = "5,9,33,64,74,39";
    json_t *j = JSON("generate", TINY "v3", "--tokens", "5,9,33,64,74,39", "-n", "12", "--ignore-eos"), *t;
    size_t i;
    json_array_foreach(json_object_get(j, "tokens"), i, t)
        snprintf(tokens + strlen(tokens), sizeof tokens - strlen(tokens), ",%d", (int)json_integer_value(t));
    assert_int_equal(i, 12);
    json_decref(j);
    DUMP(a, TINY "v3", "--tokens", "5,9,33,64,74,39", "-n", "12", "--ignore-eos", "--draft", "parallel-heads",
         "--draft-model", "golden/heads/parallel-v3");
    DUMP(b, TINY "v3", "--tokens", tokens, "--reference", "--draft", "parallel-heads", "--draft-model",
         "golden/heads/parallel-v3");
    j = DIFF(0, a, b);
    assert_string_equal(string(j, "verdict"), "rounding");
    for (int layer = 3; layer < 6; layer++)
        for (size_t k = 0; k < COUNT(parts); k++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, parts[k]);
            t = tap(j, name);
            assert_true(integer(t, "numbers") > 0);
            if (strcmp(string(t, "verdict"), "rounding"))
                fail_msg("%s: %s", name, string(t, "verdict"));
        }
    json_decref(j);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

TEST(what_cannot_be_compared_is_told_in_a_sentence)
{
    DUMP(a, TINY "v3", "--tokens", "5,6,7");
    expect_failure(RUN("diff"), 2, "A and B");
    expect_failure(RUN("diff", a), 2, "A and B");
    expect_failure(RUN("diff", a, a, a), 2, "unexpected argument");
    expect_failure(RUN("diff", a, "/nowhere"), 1, "/nowhere");
    expect_failure(RUN("diff", a, dir), 1, "neither config.json nor dump.safetensors");
    expect_failure(RUN("diff", a, a, "--names", "jax"), 2, "known are hf, llama.cpp, megatron, sglang, vllm");
    expect_failure(RUN("dump", TINY "v3", "--tokens", "5", "-o", b, "--names", "jax"), 2, "unknown system jax");
    expect_failure(RUN("diff", a, a, "--layout-b", "columns"), 2, "interleaved or halves");
    expect_failure(RUN("diff", a, a, "--arithmetic", "q4"), 2, "--arithmetic is q4");
    expect_failure(RUN("diff", a, a, "--reference"), 2, "both dumps");
    expect_failure(RUN("diff", a, a, "--as", "vllm-2025"), 2, "both dumps");
    expect_failure(RUN("diff", a, a, "--runs", "2"), 2, "--runs wants a model");
    expect_failure(RUN("diff", a, a, "--model", dir), 2, "config.json");
    expect_failure(RUN("diff", TINY "v3", TINY "v3"), 2, "--tokens IDS is missing");
    expect_failure(RUN("diff", TINY "v3", "golden/truth/v3.transformers.safetensors"), 2, "--tokens IDS is missing");
    expect_failure(RUN("diff", a, TINY "v3", "--tokens", "5,100000"), 2, "outside the vocabulary");
    expect_failure(RUN("diff", a, "golden/truth/fp8-blocks.safetensors"), 1, "no names in common");
    struct edited e = edit(a);
    write_to(b, e.g.bytes, e.g.size - 100); /* cut short */
    expect_failure(RUN("diff", a, b), 1, "b.safetensors");
    write_to(b, e.g.bytes, 5);
    expect_failure(RUN("diff", a, b), 1, "b.safetensors");
    write_to(b, "", 0);
    expect_failure(RUN("diff", a, b), 1, "it is empty");
    write_to(b, e.g.bytes, e.g.size);
    golden_close(&e.g);
    write_file(dir, "b.jsonl", "{\"tensor\": \"x\"", 14);
    expect_failure(RUN("diff", a, b), 1, "cut short");
    write_text(dir, "b.jsonl",
               "{\"tensor\": \"lm_head.output\", \"name\": \"lm_head.output\", \"sequence\": [0], \"token\": [0], "
               "\"index\": [0]}\n");
    expect_failure(RUN("diff", a, b), 1, "another number of rows");
    write_text(dir, "b.jsonl", "{\"tensor\": \"lm_head.output\", \"name\": \"lm_head.output\", \"sequence\": [0,0,0], "
                               "\"token\": [0,0,0], \"index\": [0,1,-2]}\n");
    expect_failure(RUN("diff", a, b), 1, "whole numbers from 0");
    write_text(dir, "b.jsonl",
               "{\"tensor\": \"lm_head.output\", \"name\": \"lm_head.output\", \"layer\": 3000000000, \"sequence\": "
               "[0,0,0], "
               "\"token\": [0,0,0], \"index\": [0,1,2]}\n");
    expect_failure(RUN("diff", a, b), 1, "layer and mtp_depth are whole numbers");
    write_text(dir, "b.jsonl",
               "{\"tensor\": \"lm_head.output\", \"name\": \"lm_head.output\", \"layer\": 99999999999999999999, "
               "\"sequence\": [0,0,0], "
               "\"token\": [0,0,0], \"index\": [0,1,2]}\n");
    expect_failure(RUN("diff", a, b), 1, "layer and mtp_depth are whole numbers");
    struct said s = RUN("diff", a, "/nowhere", "--json");
    expect_code(&s, 1);
    json_t *j = parsed(&s);
    expect_keys(j, "error:s");
    json_decref(j);
    forget(&s);
}

/* A tensor without numbers may claim any number of rows; -1 is the index of a module's row only. */
TEST(numbers_that_are_not_there_are_not_read)
{
    static const char *const shapes[] = {"[4611686018427387904,0]", "[0,3037000500,3037000500]", "[0]"};
    char header[256];
    size_t total;
    DUMP(a, TINY "v3", "--tokens", "5,6,7");
    for (size_t i = 0; i < COUNT(shapes); i++) {
        snprintf(header, sizeof header, "{\"lm_head.output\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[0,0]}}",
                 shapes[i]);
        char *bytes = safetensors_bytes(header, "", 0, &total);
        write_to(b, bytes, total);
        free(bytes);
        expect_failure(RUN("diff", a, b), 1, "lm_head.output is empty");
    }
    copy_dump(a, b, 1);
    write_text(dir, "b.jsonl",
               "{\"tensor\": \"lm_head.output\", \"name\": \"lm_head.output\", \"sequence\": [0,0,0], \"token\": "
               "[5,6,7], "
               "\"index\": [-1,0,1]}\n");
    json_t *j = DIFF(3, a, b);
    assert_int_equal(integer(tap(j, "lm_head.output"), "rows_only_in_b"), 1);
    json_decref(j);
}

/* Tokens in a file without a manifest: 64 bits each, of which ids need 31. */
TEST(a_token_beyond_31_bits_is_none)
{
    static const int64_t tokens[2] = {5, 2147483648};
    static const float logits[4] = {1, 2, 3, 4};
    char bytes[32];
    size_t total;
    memcpy(bytes, tokens, 16);
    memcpy(bytes + 16, logits, 16);
    char *file = safetensors_bytes("{\"tokens\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},"
                                   "\"lm_head.output\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[16,"
                                   "32]}}", bytes, 32, &total);
    write_to(a, file, total);
    free(file);
    struct said s = RUN("diff", a, a, "--json");
    if (!strstr(s.out, "tokens [1] is 2147483648, which is no token: the tokens are left out"))
        fail_msg("%s%s", s.out, s.err);
    forget(&s);
}

/* A row that comes again was computed again, in whatever order the passes are. */
TEST(the_last_row_of_a_token_counts_also_out_of_order)
{
    static const char manifest[] =
        "{\"tensor\": \"x\", \"name\": \"lm_head.output\", \"sequence\": [0,0,0,0,0,0], \"token\": [7,5,7,6,5,5], "
        "\"index\": [2,0,2,1,0,0]}\n";
    static const int from[] = {0, 1, 2, 1, 2, 0}; /* the first two and the fifth are others' numbers */
    char header[128];
    size_t n, total;
    DUMP(a, TINY "v3", "--tokens", "5,6,7");
    struct edited e = edit(a);
    size_t width = width_of(&e, "lm_head.output");
    float *x = floats(&e, "lm_head.output", &n), *rows = malloc(6 * width * sizeof *rows);
    assert_non_null(rows);
    for (size_t i = 0; i < 6; i++)
        memcpy(rows + i * width, x + (size_t)from[i] * width, width * sizeof *rows);
    snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"F32\",\"shape\":[6,%zu],\"data_offsets\":[0,%zu]}}", width,
             6 * width * sizeof *rows);
    char *bytes = safetensors_bytes(header, rows, 6 * width * sizeof *rows, &total);
    write_to(b, bytes, total);
    write_text(dir, "b.jsonl", manifest);
    json_t *j = DIFF(0, a, b, "--bits");
    expect_verdict("rows out of order", j, "identical");
    assert_int_equal(integer(tap(j, "lm_head.output"), "rows"), 3);
    assert_int_equal(integer(tap(j, "lm_head.output"), "rows_only_in_b"), 0);
    json_decref(j);
    golden_close(&e.g);
    free(bytes);
    free(rows);
}

/* Rows that fill a pass up are no rows of the text, whatever token they read. */
TEST(padding_is_left_out)
{
    for (int draft = 0; draft < 2; draft++) {
        DUMP(a, TINY "v3-mtp3", "--tokens", "5,6,7", "-n", "9", "--draft", draft ? "mtp-eagle" : "mtp-vanilla",
             "--padded");
        DUMP(b, TINY "v3-mtp3", "--tokens", "5,6,7", "-n", "9");
        json_t *j = DIFF(0, a, b, "--bits");
        assert_int_equal(integer(tap(j, "lm_head.output"), "rows_only_in_a"), 0);
        assert_int_equal(integer(tap(j, "model.norm.output"), "rows_only_in_a"), 0);
        json_decref(j);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(coarser_dtypes_are_compared_in_what_they_hold),
        IN_DIR(rows_of_rope_in_halves_are_the_same_numbers),
        IN_DIR(a_dump_in_another_engines_names_is_the_same_dump),
        IN_DIR(names_that_an_engine_has_had_are_understood),
        IN_DIR(a_fused_projection_is_both_of_its_parts),
        IN_DIR(experts_may_stand_in_any_order_with_their_weights),
        IN_DIR(choices_follow_from_router_logits),
        IN_DIR(one_token_without_a_manifest_is_one_row),
        IN_DIR(parts_are_compared_and_what_is_missing_is_listed),
        IN_DIR(the_object_has_what_is_promised_and_its_counts_agree),
        IN_DIR(numbers_that_are_not_there_are_not_read),
        IN_DIR(a_token_beyond_31_bits_is_none),
        IN_DIR(the_last_row_of_a_token_counts_also_out_of_order),
        IN_DIR(padding_is_left_out),
        IN_DIR(heads_of_the_engine_and_of_the_reference_differ_by_rounding),
        IN_DIR(what_cannot_be_compared_is_told_in_a_sentence),
    };
    find_verbatim(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]); /* one test of them */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
