/* tests/cli/test_replay.c -- `verbatim replay`: operators on recorded inputs give what the engine or the reference
 * gave, and the files of golden/operators are what the reference computes. Runs the program itself (argv[1], or
 * ../verbatim beside this one) in the repository's root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

static char out[112];

/* more: NULL, or a JSON array of options. */
static void replay(const char *model, const char *operator, int layer, const char *input, const json_t *more)
{
    char number[16];
    size_t count = 0, i;
    const char *arguments[MOST_ARGUMENTS] = {verbatim, "replay", model, operator, "--input", input, "-o", out,
                                             "--force", NULL};
    const json_t *option;
    while (arguments[count])
        count++;
    snprintf(out, sizeof out, "%s/out.safetensors", dir);
    snprintf(number, sizeof number, "--layer=%d", layer);
    if (layer >= 0)
        arguments[count++] = number;
    json_array_foreach((json_t *)(uintptr_t)more, i, option)
        arguments[count++] = json_string_value(option);
    struct said s = run_to(PIPE, arguments);
    expect_code(&s, 0);
    forget(&s);
}

static void replay_reference(const char *model, const char *operator, int layer, const char *input)
{
    json_t *more = json_pack("[s]", "--reference");
    replay(model, operator, layer, input, more);
    json_decref(more);
}

/* The numbers of two files must agree to 1e-12 of the largest number: another libm may round exp and pow otherwise. */
static void expect_equal(const char *name, const char *wanted)
{
    size_t n, m;
    struct golden x = golden_read(out), y = golden_read(wanted);
    double *a_data = golden_data(&x, name, &n), *b_data = golden_data(&y, name, &m), largest = 0;
    assert_int_equal(n, m);
    assert_true(n > 0);
    if (!strcmp(string(json_object_get(x.header, name), "dtype"), "I32")) {
        assert_memory_equal(a_data, b_data, n * 4);
    } else {
        for (size_t i = 0; i < n; i++)
            largest = fmax(largest, fabs(b_data[i]));
        for (size_t i = 0; i < n; i++)
            if (!(fabs(a_data[i] - b_data[i]) <= 1e-12 * largest))
                fail_msg("%s: number %zu is %.17g, expected %.17g", name, i, a_data[i], b_data[i]);
    }
    golden_close(&x);
    golden_close(&y);
}

TEST(the_golden_operators_are_what_replay_computes)
{
    char in[96], wanted[96], model[64];
    size_t i, count = 0;
    json_t *index = json_load_file("golden/operators/index.json", 0, NULL), *one;
    assert_non_null(index);
    json_array_foreach(json_object_get(index, "operators"), i, one) {
        snprintf(in, sizeof in, "golden/operators/%.40s.in.safetensors", string(one, "file"));
        snprintf(wanted, sizeof wanted, "golden/operators/%.40s.out.safetensors", string(one, "file"));
        snprintf(model, sizeof model, TINY "%.20s", string(one, "checkpoint"));
        const json_t *options = json_object_get(one, "options"); /* of sampling and acceptance, which the reference does
                                                                    not have */
        if (options)
            replay(model, string(one, "operator"), -1, in, options);
        else
            replay_reference(model, string(one, "operator"), (int)integer(one, "layer"), in);
        expect_equal(string(one, "result"), wanted);
        count++;
    }
    assert_true(count >= 46);
    json_decref(index);
}

TEST(operators_compute_what_the_reference_computed)
{
    static const char *const operators[] = {"q_a_proj", "rope-q", "attention", "router-experts", "router-weights",
                                            "mlp.output", "output"};
    static const char *const outputs[] = {"self_attn.q_a_proj.output", "self_attn.q_rope", "self_attn.o_proj.input",
                                          "mlp.gate.experts", "mlp.gate.weights", "mlp.output", "output"};
    char name[96];
    DUMP(a, TINY "v3-mtp3", "--tokens", TOKENS, "--reference");
    for (int layer = 1; layer < 6; layer++)
        for (size_t i = 0; i < COUNT(operators); i++) {
            replay_reference(TINY "v3-mtp3", operators[i], layer, a);
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, outputs[i]);
            if (!strcmp(operators[i], "attention") || layer < 3)
                expect_equal(name, a);
        }
    json_t *absorbed = json_pack("[s,s]", "--reference", "--absorbed");
    replay(TINY "v3-mtp3", "attention", 2, a, absorbed);
    json_decref(absorbed);
    expect_equal("model.layers.2.self_attn.o_proj.input", a);
    replay_reference(TINY "v3-mtp3", "lm_head", -1, a);
    expect_equal("lm_head.output", a);
    EXPECT(0, "identical", out, a);
}

/* The options of `dump`, and those of `replay`; NULL: none. */
static const struct { const char *model, *dump, *replay; } same_bits[] = {
    {"v3-mtp3", "--taps=*,*.self_attn.scores.*", NULL},
    {"v3-mtp3", "--precision=bf16", "--precision=bf16"},
    {"v3-mtp3", "--cache-type=q8", "--cache-type=q8"},
    {"v3-mtp3", "--convention=concat=hidden-embedding,main-hidden=pre-norm,draft-hidden=pre-norm,draft-position=token",
     "--convention=concat=hidden-embedding,main-hidden=pre-norm,draft-hidden=pre-norm,draft-position=token"},
    {"v3", "--convention=gate=bf16,first-embedding=zeroed", "--convention=gate=bf16,first-embedding=zeroed"},
    {"v3", "--prefill=expanded", "--expanded"},
    {"v3-mtp3", "--convention=first-row=phantom", "--convention=first-row=phantom"},
    {"glm", "--cache-type=bf16", "--cache-type=bf16"},
    {"glm", "--precision=bf16", "--precision=bf16"},
    {"v2", "--precision=q8", "--precision=q8"},
    {"v2-lite", NULL, NULL},
    {"glm5", "--cache-type=bf16", "--cache-type=bf16"}, /* index_topk is less than the number of tokens */
    {"glm5", "--precision=bf16", "--precision=bf16"},
    {"v32", "--precision=bf16", "--precision=bf16"},
    {"v32", "--convention=indexer-codes=fp8,indexer-weights=bf16",
     "--convention=indexer-codes=fp8,indexer-weights=bf16"},
    {"moonlight", "--isa=scalar", NULL},
    {"mistral4", "--precision=bf16", "--precision=bf16"},
};

TEST(the_engine_repeats_every_value_of_its_dumps_bit_for_bit)
{
    char model[64];
    snprintf(out, sizeof out, "%s/out.safetensors", dir);
    for (size_t i = 0; i < COUNT(same_bits); i++) {
        const char *one = "--threads=1";
        snprintf(model, sizeof model, TINY "%s", same_bits[i].model);
        /* tokens are kept by their scores */
        int sparse = !strcmp(same_bits[i].model, "glm5") || !strcmp(same_bits[i].model, "v32");
        DUMP(a, model, "--tokens", TOKENS, sparse ? "--taps=*,*.indexer.scores" : one,
             same_bits[i].dump ? same_bits[i].dump : one);
        json_t *told = json_of_code(0, (const char *const[]){verbatim, "replay", model, "all", "--input", a, "-o", out,
                                                             "--force", "--json",
                                                             same_bits[i].replay ? same_bits[i].replay : one, NULL});
        json_t *j = DIFF(0, out, a, "--bits");
        expect_verdict(model, j, "identical");
        assert_int_equal(integer(told, "left_out"), 0);
        assert_int_equal(integer(told, "results"), json_array_size(json_object_get(j, "taps")));
        assert_true(integer(told, "results") > 60);
        json_decref(told);
        json_decref(j);
    }
}

TEST(one_operator_of_the_engine_has_the_bits_of_its_dump)
{
    snprintf(out, sizeof out, "%s/out.safetensors", dir);
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    static const char *const runs[][2] = {{"attention", "--layer=2"}, {"mlp.gate.experts", "--layer=1"},
                                          {"kv_a_layernorm", "--layer=0"}, {"lm_head", "--threads=2"},
                                          {"all", "--layer=1"}};
    for (size_t i = 0; i < COUNT(runs); i++) {
        struct said s = RUN("replay", TINY "v3", runs[i][0], runs[i][1], "--input", a, "-o", out, "--force");
        expect_code(&s, 0);
        forget(&s);
        EXPECT(0, "identical", out, a, "--bits");
    }
}

/* The tokens that sampling chooses from the logits of a generated text are this text. */
TEST(sampling_chooses_what_generate_chose)
{
#define OPTIONS \
    "--temperature=0.9", "--top-k=40", "--top-p=0.95", "--min-p=0.01", "--seed=7", "--repetition-penalty=1.1"
    char text[256] = "5,6,7";
    size_t used = strlen(text), n;
    json_t *j = json_of_code(0, (const char *const[]){verbatim, "generate", TINY "v3", "--tokens", text, "-n", "12",
                                                      "--ignore-eos", "--json", OPTIONS, NULL});
    const json_t *tokens = json_object_get(j, "tokens");
    assert_int_equal(json_array_size(tokens), 12);
    for (size_t i = 0; i < 12; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, ",%lld",
                                 (long long)json_integer_value(json_array_get(tokens, i)));
    DUMP(a, TINY "v3", "--tokens", text, "--taps", "lm_head.output");
    json_t *more = json_pack("[s,s,s,s,s,s]", OPTIONS);
    replay(TINY "v3", "sampling", -1, a, more);
    struct golden g = golden_read(out);
    const int32_t *chosen = golden_data(&g, "sampling.token", &n);
    assert_int_equal(n, 15);
    for (size_t i = 0; i < 12; i++)
        assert_int_equal(chosen[2 + i], json_integer_value(json_array_get(tokens, i)));
    golden_close(&g);
    json_decref(more);
    json_decref(j);
#undef OPTIONS
}

TEST(sparse_attention_reads_the_positions_that_were_kept)
{
    DUMP(a, TINY "glm5", "--tokens", TOKENS);
    replay_reference(TINY "glm5", "attention", 0, a);
    EXPECT(0, "rounding", out, a);
    struct edited e = edit(a);
    size_t n;
    int32_t *kept = golden_data(&e.g, "model.layers.0.self_attn.indexer.kept", &n);
    kept[n - 1] = 10;
    save(&e);
    expect_failure(RUN("replay", TINY "glm5", "attention", "--layer", "0", "--input", a, "-o", out, "--force"), 1,
                   "the kept positions of row 9 have 10");
    DUMP(a, TINY "glm5", "--tokens", TOKENS, "--taps",
         "*.0.self_attn.*proj.*,*.0.self_attn.*rope,*.0.self_attn.kv_a_layernorm.output");
    expect_failure(RUN("replay", TINY "glm5", "attention", "--layer", "0", "--input", a, "-o", out, "--force"), 1,
                   "indexer.kept, which is an input");
}

TEST(integers_out_of_range_are_refused)
{
    snprintf(out, sizeof out, "%s/out.safetensors", dir);
    DUMP(a, TINY "v3", "--tokens", TOKENS, "--taps", "*.1.mlp.gate.*");
    struct edited e = edit(a);
    size_t n;
    int32_t *experts = golden_data(&e.g, "model.layers.1.mlp.gate.experts", &n);
    experts[1] = experts[0];
    save(&e);
    expect_failure(RUN("replay", TINY "v3", "router-weights", "--layer", "1", "--input", a, "-o", out), 1,
                   "twice in row 0");
    e = edit(a);
    experts = golden_data(&e.g, "model.layers.1.mlp.gate.experts", &n);
    experts[1] = 4096;
    save(&e);
    expect_failure(RUN("replay", TINY "v3", "router-weights", "--layer", "1", "--input", a, "-o", out), 1,
                   "4096 in row 0, wanted integers");
    expect_failure(RUN("replay", TINY "v3", "router-weights", "--reference", "--layer", "1", "--input", a, "-o", out),
                   1, "4096");
}

TEST(what_cannot_be_replayed_is_told)
{
    snprintf(out, sizeof out, "%s/out.safetensors", dir);
    DUMP(a, TINY "v3", "--tokens", TOKENS, "--taps", "*.1.self_attn.*");
    expect_failure(RUN("replay", TINY "v3", "attention", "--input", a, "-o", out), 2, "--layer L says which layer");
    expect_failure(RUN("replay", TINY "v3", "q_proj", "--layer", "1", "--input", a, "-o", out), 2,
                   "has no operator q_proj in this layer");
    expect_failure(RUN("replay", TINY "v3", "expert", "--layer", "1", "--input", a, "-o", out), 2,
                   "mlp.experts.E.output");
    expect_failure(RUN("replay", TINY "v3", "self_attn.probabilities.1", "--layer", "1", "--input", a, "-o", out), 1,
                   "the reference does");
    expect_failure(RUN("replay", TINY "v3", "attention", "--layer", "2", "--input", a, "-o", out), 1,
                   "has no model.layers.2.self_attn.q_b_proj.output, which is");
    expect_failure(RUN("replay", TINY "v3", "mlp.output", "--layer", "1", "--input", a, "-o", out), 1, "input");
    expect_failure(RUN("replay", TINY "v3", "attention", "--layer", "1", "-o", out), 2, "--input is missing");
    expect_failure(RUN("replay", TINY "v3", "attention", "--layer", "1", "--input", a, "-o", out, "--absorbed",
                       "--expanded"),
                   2, "two forms");
    expect_failure(RUN("replay", TINY "v3", "all", "--layer", "2", "--input", a, "-o", out), 1,
                   "no value with all inputs");
    expect_failure(RUN("replay", TINY "v3", "sampling", "--input", a, "-o", out), 1, "has no lm_head.output");
    expect_failure(RUN("replay", TINY "v3", "sampling", "--reference", "--input", a, "-o", out), 2,
                   "--reference does not go with sampling");
    expect_failure(RUN("replay", TINY "v3", "acceptance", "--layer", "1", "--input", a, "-o", out), 2,
                   "--layer does not go with acceptance");
    const char *const logits = "golden/operators/sampling.in.safetensors";
    expect_failure(RUN("replay", TINY "v3", "acceptance", "--input", logits, "-o", out), 1,
                   "0 drafts and 6 rows of lm_head.output");
    expect_failure(RUN("replay", TINY "v3", "sampling", "--presence-penalty", "1", "--input", logits, "-o", out), 1,
                   "a penalty wants all tokens");
    expect_failure(RUN("replay", TINY "glm", "self_attn.o_proj.output", "--layer", "1", "--input", a, "-o", out), 1,
                   "numbers, wanted");
    expect_failure(RUN("replay", TINY "glm", "sampling", "--input", logits, "-o", out), 1,
                   "rows of lm_head.output have 160 numbers");
    expect_failure(RUN("replay", TINY "v3"), 2, "-o is missing");
    expect_failure(RUN("replay", TINY "v3", "attention", "--layer", "1", "--input", "nothing", "-o", out), 1,
                   "nothing");
    struct said s = RUN("replay");
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "sum-of-experts"));
    forget(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(the_golden_operators_are_what_replay_computes),
        IN_DIR(operators_compute_what_the_reference_computed),
        IN_DIR(the_engine_repeats_every_value_of_its_dumps_bit_for_bit),
        IN_DIR(one_operator_of_the_engine_has_the_bits_of_its_dump),
        IN_DIR(sampling_chooses_what_generate_chose),
        IN_DIR(sparse_attention_reads_the_positions_that_were_kept),
        IN_DIR(integers_out_of_range_are_refused),
        IN_DIR(what_cannot_be_replayed_is_told),
    };
    find_verbatim(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]); /* one test of them */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
