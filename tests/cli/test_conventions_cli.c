/* tests/cli/test_conventions_cli.c -- `verbatim conventions` and the options --convention and --as. Runs the program
 * itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/process.h"
#include "tests/support/turn.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define MODEL "golden/tiny/v3-mtp3"
#define TOKENS "5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28"

TEST(without_a_model_it_lists_them)
{
    json_t *all = JSON("conventions"), *rows = json_object_get(all, "conventions"), *row, *system;
    size_t i, draft = 0;
    assert_true(json_array_size(rows) >= 16);
    json_array_foreach(rows, i, row) {
        expect_keys(row, "name:s of:s values:a who:s");
        draft += !strcmp(string(row, "of"), "draft");
        assert_true(json_array_size(json_object_get(row, "values")) >= 2);
    }
    assert_true(draft >= 10 && json_array_size(rows) - draft >= 6);
    json_array_foreach(json_object_get(all, "systems"), i, system) {
        struct said s = RUN("generate", MODEL, "--tokens", "5,6,7", "-n", "2", "--as", string(system, "name"));
        expect_code(&s, 0);
        forget(&s);
    }
    assert_true(i >= 7);
    json_decref(all);
    struct said s = RUN("conventions");
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "main-hidden      post-norm, pre-norm "));
    assert_non_null(strstr(s.out,
                           "  vllm-2025     "
                           "draft-hidden=pre-norm,first-embedding=zeroed,latent-eps=config,indexer-codes=fp8\n"));
    forget(&s);
}

TEST(the_matrix_keeps_every_bit_and_counts_what_each_is_worth)
{
    json_t *all = JSON("conventions", MODEL, "--tokens", TOKENS, "--context", "8", "-n", "20", "--temperature", "1");
    json_t *row, *rows = json_object_get(all, "rows");
    size_t i, draft = 0, target = 0, methods = 0, own = 0;
    assert_int_equal(integer(all, "windows"), 3);
    json_array_foreach(rows, i, row) {
        expect_keys(row, "acceptance_by_depth:a conventions:s draft:s of:s same_bits:b tokens_per_forward:r");
        int same = json_is_true(json_object_get(row, "same_bits"));
        if (!strcmp(string(row, "of"), "draft"))
            draft += (size_t)same;
        else
            own += (size_t)!same;
        target += !strcmp(string(row, "of"), "target");
        methods += !*string(row, "conventions");
        assert_true(json_number_value(json_object_get(row, "tokens_per_forward")) >= 1.0);
        assert_int_equal(json_array_size(json_object_get(row, "acceptance_by_depth")), 3);
    }
    assert_int_equal(methods, 4);
    assert_int_equal(draft + target, json_array_size(rows)); /* all rows of drafting have the same bits */
    assert_true(own > 0 && target > own);                    /* of the target's, some matter here and some do not */
    json_decref(all);
}

/* The fingerprint is that of the conventions together with everything else. */
TEST(a_convention_of_the_target_changes_the_fingerprint_and_one_of_drafting_does_not)
{
    static const struct { const char *option, *value; int same;
    } settings[] = {
        {"--convention", "concat=hidden-embedding,first-row=phantom", 1},
        {"--as", "mindie", 1},
        {"--convention", "gate=bf16", 0},
        {"--as", "official", 0},
        {"--convention=main-hidden=pre-norm", "--padded", 1},
    };
    json_t *plain = JSON("generate", MODEL, "--tokens", "5,6,7", "-n", "12");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        json_t *other = JSON("generate", MODEL, "--tokens", "5,6,7", "-n", "12", "--draft", "mtp-eagle",
                             settings[i].option, settings[i].value);
        assert_int_equal(!strcmp(string(plain, "fingerprint"), string(other, "fingerprint")), settings[i].same);
        json_decref(other);
    }
    json_decref(plain);
}

/* A dump made under some conventions: they are found again, all of them and no others. */
TEST(the_conventions_of_a_dump_are_found)
{
    static const struct { const char *model, *list, *found; } dumps[] = {
        {"v3-mtp3", "", ""},
        {"v3-mtp3", "draft-hidden=pre-norm,concat=hidden-embedding", "draft-hidden=pre-norm,concat=hidden-embedding"},
        {"v3-mtp3", "module-hidden=target,draft-hidden=pre-norm", "module-hidden=target"}, /* no module reads what
                                                                                              another gives */
        {"v3-mtp3", "as=llama.cpp", "draft-position=token,first-row=phantom"}, /* no sum is so small that the normaliser
                                                                                  shows */
        {"v3-mtp3", "as=vllm-2025", "draft-hidden=pre-norm,first-embedding=zeroed"}, /* config's eps is 1e-6 there */
        {"v3", "main-hidden=pre-norm,gate=bf16,group-mask=zero", "main-hidden=pre-norm,group-mask=zero,gate=bf16"},
        {"glm", "latent-eps=config", "latent-eps=config"},
        {"v2", "yarn=max-len", "yarn=max-len"},
    };
    char dir[64], path[128], model[64];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/d.safetensors", dir);
    for (size_t i = 0; i < sizeof dumps / sizeof *dumps; i++) {
        if (!has_turn(i, 3) && i + 1 < sizeof dumps / sizeof *dumps) /* the last is used below */
            continue;
        snprintf(model, sizeof model, "golden/tiny/%s", dumps[i].model);
        struct said s = RUN("dump", model, "--tokens", "5,6,7,8,9,11,20,31,14,15", "-o", path, "--force",
                            "--convention", dumps[i].list);
        expect_code(&s, 0);
        forget(&s);
        /* no operator is wrong */
        struct said local = RUN("diff", path, model, "--local", "--convention", dumps[i].list);
        expect_code(&local, 0);
        forget(&local);
        json_t *found = JSON("conventions", model, "--against", path, "--threads", "1");
        expect_keys(found, "conventions:s verdict:s first:s rows:a");
        assert_string_equal(string(found, "conventions"), dumps[i].found);
        assert_string_equal(string(found, "verdict"), "identical");
        assert_true(json_array_size(json_object_get(found, "rows")) >= 16);
        json_decref(found);
    }
    /* of another model: no convention explains it */
    expect_failure(RUN("conventions", "golden/tiny/v3", "--against", "golden/tiny"), 1, "golden/tiny");
    struct said s = RUN("conventions", "golden/tiny/v2-lite", "--against", path, "--threads", "1");
    expect_code(&s, 3);
    assert_non_null(strstr(s.out, "structural; the first that no convention explains is model.embed_tokens.output"));
    forget(&s);
    remove_dir(dir);
}

/* In BF16, the errors of earlier operators hide the eps of the latents. Norms alone show it: transformers adds 1e-6. */
TEST(an_operator_alone_tells_what_rounding_hides)
{
    /* 3: a tie of the router */
    json_t *found = json_of_code(3, (const char *const[]){verbatim, "conventions", "golden/tiny/glm", "--against",
                                                          "golden/truth/glm.hf-dump-bfloat16.safetensors", "--threads",
                                                          "1", "--convention", "latent-eps=config", "--json", NULL}),
           *row;
    size_t i;
    assert_string_equal(string(found, "conventions"), "");
    json_array_foreach(json_object_get(found, "rows"), i, row)
        if (!strcmp(string(row, "name"), "latent-eps")) {
            assert_string_equal(string(row, "value"), "1e-6");
            assert_true(json_is_true(json_object_get(row, "alone")));
            assert_string_equal(string(row, "by"), "model.layers.0.self_attn.kv_a_layernorm.output");
            assert_true(real(row, "distance") < real(row, "distance_otherwise"));
        }
    json_decref(found);
}

/* A dump with drafts has fewer rows of the modules than the model computes. The rows that both have say how far they
 * are away. */
TEST(a_dump_with_drafts_tells_the_conventions_of_its_modules)
{
    char dir[64], path[128];
    size_t i, modules = 0;
    json_t *row;
    make_dir(dir);
    snprintf(path, sizeof path, "%s/d.safetensors", dir);
    struct said s = RUN("dump", MODEL, "--tokens", "5,6,7,8,9,11,20", "-n", "6", "--draft", "mtp-vanilla", "-o", path,
                        "--convention", "concat=hidden-embedding");
    expect_code(&s, 0);
    forget(&s);
    json_t *found = JSON("conventions", MODEL, "--against", path, "--threads", "1");
    assert_string_equal(string(found, "conventions"), "concat=hidden-embedding");
    json_array_foreach(json_object_get(found, "rows"), i, row) {
        if (!json_is_true(json_object_get(row, "told")) || strcmp(string(row, "by"), "model.layers.3") < 0)
            continue;
        assert_true(json_number_value(json_object_get(row, "distance")) < 1e-6);
        assert_true(json_number_value(json_object_get(row, "distance_otherwise")) > 0.01);
        modules++;
    }
    assert_true(modules >= 5);
    json_decref(found);
    remove_dir(dir);
}

/* The scores of a text by the program itself, or the mean of both kinds. */
static void write_scores(const char *to, const json_t *score, int of_raw, int of_temperature)
{
    json_t *raw = json_object_get(score, "logprobs"), *scaled = json_object_get(score, "logprobs_at_temperature"),
           *both = json_array();
    for (size_t i = 0; i < json_array_size(raw); i++)
        json_array_append_new(both, json_real((of_raw * json_number_value(json_array_get(raw, i)) +
                                               of_temperature * json_number_value(json_array_get(scaled, i))) /
                                              (of_raw + of_temperature)));
    json_t *text = json_pack("{s:O,s:o}", "tokens", json_object_get(score, "tokens"), "logprobs", both);
    assert_int_equal(json_dump_file(text, to, 0), 0);
    json_decref(text);
}

TEST(log_probabilities_are_told_to_be_raw_or_at_the_temperature)
{
    static const struct { int raw, scaled; const char *temperature, *value; int code;
    } cases[] = {
                 {1, 0, "0.7", "raw", 0}, {0, 1, "0.7", "temperature", 0}, {0, 1, "1", NULL, 0}, {0, 1, "0", NULL, 0},
                 {1, 1, "0.7", NULL, 3}};
    char dir[64], in[96], out[96], path[96];
    make_dir(dir);
    snprintf(in, sizeof in, "%s/in.jsonl", dir);
    snprintf(out, sizeof out, "%s/out.jsonl", dir);
    snprintf(path, sizeof path, "%s/theirs.jsonl", dir);
    FILE *f = fopen(in, "w");
    assert_non_null(f);
    fputs("{\"prompt\": [5, 6], \"response\": [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19], \"temperature\": "
          "0.7}\n",
          f);
    fclose(f);
    struct said s = RUN("score", MODEL, "--file", in, "-o", out);
    expect_code(&s, 0);
    forget(&s);
    json_t *score = json_load_file(out, 0, NULL);
    assert_non_null(score);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_scores(path, score, cases[i].raw, cases[i].scaled);
        s = RUN("conventions", MODEL, "--against", path, "--temperature", cases[i].temperature, "--json");
        expect_code(&s, cases[i].code);
        json_t *found = json_loads(s.out, 0, NULL);
        expect_keys(found, cases[i].value ? "name:s value:s told:b tokens:i rms_raw:r rms_temperature:r"
                                          : "name:s value:n told:b tokens:i rms_raw:r rms_temperature:r");
        assert_int_equal(json_is_true(json_object_get(found, "told")), cases[i].value != NULL);
        if (cases[i].value)
            assert_string_equal(string(found, "value"), cases[i].value);
        json_decref(found);
        forget(&s);
    }
    s = RUN("conventions", MODEL, "--against", out); /* the file says its temperature */
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "logprobs         raw               13 tokens: RMS 0 nats away, otherwise"));
    forget(&s);
    expect_failure(RUN("conventions", "golden/tiny/v2", "--against", in), 1, "wanted arrays tokens and logprobs");
    json_decref(score);
    remove_dir(dir);
}

TEST(what_is_wrong_is_said_in_a_sentence)
{
    expect_failure(RUN("conventions", MODEL), 2, "wanted one of --file and --tokens, found neither");
    expect_failure(RUN("conventions", "golden/tiny/v2", "--tokens", TOKENS), 2, "golden/tiny/v2 has no MTP modules");
    expect_failure(RUN("conventions", MODEL, "--tokens", TOKENS, "--draft", "none"), 2, "--draft none drafts nothing");
    expect_failure(RUN("conventions", MODEL, "--tokens", "5", "--draft-tokens", "0"), 2,
                   "--draft-tokens 0 drafts nothing");
    expect_failure(RUN("conventions", MODEL, "--tokens", "5", "-n", "0"), 2, "nothing would be decoded");
    expect_failure(RUN("conventions", "--against", "x"), 2, "MODEL is missing");
    expect_failure(RUN("conventions", MODEL, "--tokens", "5", "-n", "100000"), 2,
                   "do not fit into max_position_embeddings");
    expect_failure(RUN("generate", MODEL, "--tokens", "5", "--as", "vllm"), 2,
                   "unknown system vllm; known are vllm-2025");
    expect_failure(RUN("generate", MODEL, "--tokens", "5", "--convention", "yarn=never"), 2,
                   "convention yarn is never; known are config");
    expect_failure(RUN("generate", MODEL, "--tokens", "5", "--draft", "mtp-eagle", "--draft-topk", "2", "--convention",
                       "chain-module=step"),
                   2, "chain-module=step drafts chains only: draft topk is 2, wanted 1");
    expect_failure(RUN("generate", MODEL, "--tokens", "5", "--draft", "owl"), 2,
                   "known are none, mtp-vanilla, mtp-eagle, eagle-reroll");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_model_it_lists_them),
        cmocka_unit_test(the_matrix_keeps_every_bit_and_counts_what_each_is_worth),
        cmocka_unit_test(a_convention_of_the_target_changes_the_fingerprint_and_one_of_drafting_does_not),
        cmocka_unit_test(the_conventions_of_a_dump_are_found),
        cmocka_unit_test(an_operator_alone_tells_what_rounding_hides),
        cmocka_unit_test(a_dump_with_drafts_tells_the_conventions_of_its_modules),
        cmocka_unit_test(log_probabilities_are_told_to_be_raw_or_at_the_temperature),
        cmocka_unit_test(what_is_wrong_is_said_in_a_sentence),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
