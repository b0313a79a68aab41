/* tests/cli/test_cli.c -- what the `verbatim` command prints, from outside: keys and types of its JSON, its files, its
 * text. Runs the program itself (argv[1], or ../verbatim beside this one) in the repository's root. What it refuses is
 * in test_cli_errors.c, verify and draft are in test_cli_verify.c. */
#include <math.h>

#include "tests/support/cli.h"

/* ---- generate ---------------------------------------------------------------------------------------------------- */

TEST(generate_json_has_its_keys_and_types)
{
    char keys[256];
    json_t *j = JSON("generate", V3, "--tokens", "5,6,7", "-n", "9", "--draft", "mtp-eagle", "--draft-tokens", "4");
    snprintf(keys, sizeof keys, GENERATE_KEYS, 'n');
    expect_keys(j, keys);
    expect_keys(json_object_get(j, "stats"), STATS_KEYS " " RUN_KEYS);
    assert_int_equal(integer(j, "prompt_tokens"), 3);
    assert_int_equal(integer(j, "draft_tokens"), 4);
    assert_string_equal(string(j, "draft"), "mtp-eagle");
    assert_string_equal(string(j, "finish_reason"), "length");
    assert_int_equal(json_array_size(json_object_get(j, "tokens")), 9);
    assert_int_equal(json_array_size(json_object_get(json_object_get(j, "stats"), "accepted_by_depth")), 4);
    assert_int_equal(strspn(string(j, "fingerprint"), "0123456789abcdef"), 16);
    assert_int_equal(strlen(string(j, "fingerprint")), 16);
    json_decref(j);
}

TEST(no_tokens_are_an_answer_too)
{
    json_t *j = JSON("generate", V3, "--tokens", "5,6,7", "-n", "0"), *stats = json_object_get(j, "stats");
    assert_int_equal(json_array_size(json_object_get(j, "tokens")), 0);
    assert_string_equal(string(j, "fingerprint"), "cbf29ce484222325");
    assert_string_equal(string(j, "finish_reason"), "length");
    expect_keys(stats, "forwards:i tokens_per_forward:n " DRAFT_KEYS
                       "prefill_tokens_per_second:n decode_tokens_per_second:n load_seconds:r "
                       "copy_seconds:r copied_bytes:i time_to_first_token_seconds:n draft_seconds:r "
                       "draft_memory_bytes:i peak_memory_bytes:i threads:o numa:n");
    assert_int_equal(integer(stats, "forwards"), 0);
    json_decref(j);
    j = JSON("generate", V3, "--tokens", "5,6,7", "-n", "1"); /* the prompt's pass alone */
    expect_keys(json_object_get(j, "stats"), "forwards:i tokens_per_forward:n " DRAFT_KEYS
                                             "prefill_tokens_per_second:r decode_tokens_per_second:n " RUN_KEYS);
    json_decref(j);
    struct said s = RUN("generate", V3, "--tokens", "5,6,7", "-n", "0");
    expect_code(&s, 0);
    assert_string_equal(s.out, "");
    forget(&s);
}

/* Loading is a part of the time to the first token, and that of the time the command takes. */
TEST(time_and_memory_are_told)
{
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    json_t *j = JSON("generate", V3, "--tokens", "5,6,7", "-n", "4"), *stats = json_object_get(j, "stats");
    clock_gettime(CLOCK_MONOTONIC, &after);
    double whole = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    double load = real(stats, "load_seconds"), first = real(stats, "time_to_first_token_seconds");
    if (!(load > 0.0 && first > load && first < whole))
        fail_msg("load %g s, first token %g s, the command %g s", load, first, whole);
    long long peak = integer(stats, "peak_memory_bytes");
    if (peak < 1 << 20 || peak > 1ll << 32)
        fail_msg("peak memory is %lld bytes", peak);
    json_decref(j);
    struct said s = RUN("generate", V3, "--tokens", "5", "-n", "2", "--ignore-eos", "--stats");
    expect_code(&s, 0);
    if (!strstr(s.err, "opened in ") || !strstr(s.err, "time to first token ") || !strstr(s.err, "peak memory "))
        fail_msg("--stats should tell of time and memory: %s", s.err);
    forget(&s);
}

TEST(no_draft_is_none_and_0_and_the_default_is_one_draft_per_module)
{
    expect_draft(JSON("generate", V3, "--tokens", "5", "-n", "2"), "none", 0, 0);
    expect_draft(JSON("generate", V3, "--tokens", "5", "-n", "2", "--draft", "none", "--draft-tokens", "7"), "none", 0,
                 0);
    expect_draft(JSON("generate", V3, "--tokens", "5", "-n", "2", "--draft", "mtp-vanilla", "--draft-tokens", "0"),
                 "none", 0, 0);
    expect_draft(JSON("generate", V3, "--tokens", "5", "-n", "2", "--draft", "mtp-vanilla"), "mtp-vanilla", 1, 1);
    expect_draft(JSON("generate", TINY "v3-mtp3", "--tokens", "5", "-n", "2", "--draft", "mtp-eagle"), "mtp-eagle", 3,
                 3);
    expect_draft(JSON("generate", V3, "--tokens", "5", "-n", "2", "--draft", "mtp-eagle", "--draft-tokens", "15"),
                 "mtp-eagle", 15, 15);
}

/* Every pass gives its accepted drafts and one token of the target's own, except the last when the limit cuts it. */
TEST(statistics_add_up)
{
    for (size_t i = 0; i < COUNT(checkpoints); i++) {
        char dir[64];
        long long by_depth = 0, drafted = 0, rejected = 0;
        snprintf(dir, sizeof dir, TINY "%s", checkpoints[i]);
        json_t *j = JSON("generate", dir, "--tokens", "9,8,7,6", "-n", "40", "--ignore-eos", "--draft",
                         modules[i] ? "mtp-vanilla" : "none", "--draft-tokens", "3");
        json_t *stats = json_object_get(j, "stats"), *depths = json_object_get(stats, "accepted_by_depth");
        long long forwards = integer(stats, "forwards"), accepted = integer(stats, "accepted");
        for (size_t k = 0; k < json_array_size(depths); k++) {
            by_depth += token_at(depths, k);
            drafted += token_at(json_object_get(stats, "drafted_by_depth"), k);
            rejected += token_at(json_object_get(stats, "rejected_by_depth"), k);
        }
        assert_int_equal(by_depth, accepted);
        assert_int_equal(drafted, integer(stats, "drafted"));
        /* strict, and nothing forbidden */
        assert_int_equal(rejected, integer(json_object_get(stats, "first_reject"), "other_token"));
        assert_true(accepted <= integer(stats, "drafted") && integer(stats, "drafted") <= 3 * forwards);
        if (forwards + accepted != 39 && forwards + accepted != 40)
            fail_msg("%s: 40 tokens by %lld passes and %lld accepted drafts", dir, forwards, accepted);
        if (modules[i] && !accepted)
            fail_msg("%s: nothing was accepted, so nothing was tested", dir);
        double ratio = json_real_value(json_object_get(stats, "tokens_per_forward"));
        assert_true(fabs(ratio - 39.0 / (double)forwards) < 1e-6);
        json_decref(j);
    }
}

TEST(the_prompts_last_pass_is_prefill_whatever_the_chunk)
{
    static const char *const chunks[] = {"1", "2", "3", "512"};
    for (size_t i = 0; i < COUNT(chunks); i++) {
        json_t *j = JSON("generate", V3, "--tokens", "5,6,7", "-n", "5", "--prefill-chunk", chunks[i]);
        long long forwards = integer(json_object_get(j, "stats"), "forwards");
        if (forwards != 4)
            fail_msg("--prefill-chunk %s: %lld passes after prefill for 5 tokens, wanted 4", chunks[i], forwards);
        json_decref(j);
    }
}

TEST(generation_ends_with_an_end_token_or_a_full_context)
{
    char dir[64], edit[64];
    int32_t tokens[8], again[8];
    json_t *plain = JSON("generate", V3, "--tokens", "5,6,7", "-n", "8", "--ignore-eos");
    assert_int_equal(tokens_of(plain, tokens, 8), 8);
    make_dir(dir);
    copy_files(V3, dir);
    snprintf(edit, sizeof edit, "\"eos_token_id\": %d,", tokens[2]);
    replace_in(dir, "config.json", "\"eos_token_id\": 1,", edit);
    for (int eagle = 0; eagle < 2; eagle++) {
        json_t *j = JSON("generate", dir, "--tokens", "5,6,7", "-n", "8", "--draft", eagle ? "mtp-eagle" : "none");
        assert_int_equal(tokens_of(j, again, 8), 3); /* the end token is one of them */
        assert_memory_equal(again, tokens, 3 * sizeof *tokens);
        assert_string_equal(string(j, "finish_reason"), "stop");
        json_decref(j);
    }
    json_t *on = JSON("generate", dir, "--tokens", "5,6,7", "-n", "8", "--ignore-eos");
    expect_same(on, plain, "tokens", "--ignore-eos");
    expect_same(on, plain, "fingerprint", "--ignore-eos");
    assert_string_equal(string(on, "finish_reason"), "length");
    json_decref(on);

    snprintf(edit, sizeof edit, "{\"eos_token_id\": [1, %d]}", tokens[1]);
    write_text(dir, "generation_config.json", edit); /* it goes before config.json */
    json_t *j = JSON("generate", dir, "--tokens", "5,6,7", "-n", "8");
    assert_int_equal(tokens_of(j, again, 8), 2);
    json_decref(j);
    j = JSON("generate", V3, "--tokens", "5,6,7", "-n", "8", "--context", "7", "--draft", "mtp-vanilla");
    assert_int_equal(tokens_of(j, again, 8), 4);
    assert_memory_equal(again, tokens, 4 * sizeof *tokens);
    assert_string_equal(string(j, "finish_reason"), "length");
    json_decref(j);
    json_decref(plain);
    remove_dir(dir);
}

static uint64_t fnv1a(uint64_t h, const char *row, size_t V)
{
    for (size_t v = 0; v < V; v++) {
        const unsigned char *b = (const unsigned char *)row + 4 * v;
        h ^= (uint32_t)(b[0] | b[1] << 8 | b[2] << 16) | (uint32_t)b[3] << 24;
        h *= 1099511628211u;
    }
    return h;
}

static int32_t argmax(const char *row, size_t V)
{
    int32_t best = 0;
    float most = -INFINITY, x;
    for (size_t v = 0; v < V; v++) {
        memcpy(&x, row + 4 * v, sizeof x);
        if (x > most)
            most = x, best = (int32_t)v;
    }
    return best;
}

/* The fingerprint and, for greedy decoding, the tokens of a run, from the file that `logits` writes for all of it. */
static void expect_rows(const char *dir, const char *prompt, size_t prompt_tokens, const json_t *run, int greedy)
{
    char out[64], file[128], spec[1024], fingerprint[32];
    int32_t tokens[64];
    size_t n = tokens_of(run, tokens, COUNT(tokens)), size;
    make_dir(out);
    snprintf(file, sizeof file, "%s/rows.safetensors", out);
    write_ids(spec, prompt, tokens, n);
    struct said s = RUN("logits", dir, "--tokens", spec, "-o", file, "--prefill-chunk", "5");
    expect_code(&s, 0);
    forget(&s);
    struct golden g = golden_read(file);
    const char *logits = golden_data(&g, "logits", &size);
    size_t V = size / (prompt_tokens + n);
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++) {
        const char *row = logits + 4 * V * (prompt_tokens + i - 1);
        h = fnv1a(h, row, V);
        if (greedy && argmax(row, V) != tokens[i])
            fail_msg("%s: token %zu is %d, its row of logits says %d", dir, i, tokens[i], argmax(row, V));
    }
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)h);
    if (strcmp(fingerprint, string(run, "fingerprint")))
        fail_msg("%s: fingerprint %s, the rows of `verbatim logits` say %s", dir, string(run, "fingerprint"),
                 fingerprint);
    golden_close(&g);
    remove_dir(out);
}

TEST(fingerprint_and_tokens_are_those_of_the_rows_that_logits_writes)
{
    for (size_t i = 0; i < COUNT(checkpoints); i++) {
        char dir[64];
        snprintf(dir, sizeof dir, TINY "%s", checkpoints[i]);
        const char *draft = modules[i] ? "mtp-eagle" : "none";
        json_t *j = JSON("generate", dir, "--tokens", "5,6,7,70", "-n", "24", "--ignore-eos", "--draft", draft,
                         "--draft-tokens", "3");
        expect_rows(dir, "5,6,7,70", 4, j, 1);
        json_decref(j);
        j = JSON("generate", dir, "--tokens", "5", "-n", "12", "--ignore-eos", "--draft", draft, "--temperature", "0.9",
                 "--top-k", "20", "--top-p", "0.95", "--seed", "18446744073709551615"); /* before temperature */
        expect_rows(dir, "5", 1, j, 0);
        json_decref(j);
    }
}

TEST(plain_generate_without_a_tokenizer_prints_ids_alone)
{
    char ids[256];
    int32_t tokens[16];
    json_t *j = JSON("generate", V3, "--tokens", "5", "-n", "16", "--ignore-eos");
    struct said s = RUN("generate", V3, "--tokens", "5", "-n", "16", "--ignore-eos", "--draft", "mtp-vanilla",
                        "--draft-tokens", "3");
    expect_code(&s, 0);
    assert_int_equal(tokens_of(j, tokens, 16), 16);
    write_ids(ids, "", tokens, 16);
    strcat(ids, "\n");
    assert_string_equal(s.out, ids + 1);
    if (strchr(s.err, '\n') != s.err + s.err_size - 1 || !is_plain_text(s.err, s.err_size))
        fail_msg("stderr should be one line of statistics: %s", s.err);
    forget(&s);
    s = RUN("generate", V3, "--tokens", "5", "-n", "16", "--ignore-eos", "--stats");
    expect_code(&s, 0);
    assert_string_equal(s.out, ids + 1);
    assert_true(s.err_size > 0 && is_plain_text(s.err, s.err_size));
    forget(&s);
    json_decref(j);
}

/* ---- logits, inspect --------------------------------------------------------------------------------------------- */

static void expect_tensor(const json_t *header, const char *name, int rows, int columns, int begin)
{
    json_t *t = json_object_get(header, name);
    json_t *wanted = json_pack("{s:s,s:[i,i],s:[i,i]}", "dtype", "F32", "shape", rows, columns, "data_offsets", begin,
                               begin + 4 * rows * columns);
    if (!json_equal(t, wanted))
        fail_msg("%s is %s, wanted %s", name, json_dumps(t, JSON_ENCODE_ANY), json_dumps(wanted, 0));
    json_decref(wanted);
}

TEST(logits_writes_two_tensors_whose_bits_depend_on_nothing_else)
{
    static const char *const settings[][2] = {{"--threads", "1"}, {"--threads", "3"}, {"--prefill-chunk", "1"},
                                              {"--prefill-chunk", "3"}, {"--isa", "scalar"}, {"--context", "100"}};
    char out[64], file[128];
    struct golden first = {0};
    make_dir(out);
    snprintf(file, sizeof file, "%s/o.safetensors", out);
    write_text(out, "o.safetensors", "what was there before");
    for (size_t i = 0; i < COUNT(settings); i++) {
        struct said s = RUN("logits", V3, "--tokens", "5,6,7,8,9", "-o", file, "--force", settings[i][0],
                            settings[i][1]);
        expect_code(&s, 0);
        assert_int_equal(s.out_size + s.err_size, 0);
        forget(&s);
        struct golden g = golden_read(file);
        assert_int_equal(json_object_size(g.header), 2);
        expect_tensor(g.header, "logits", 5, 160, 0);
        expect_tensor(g.header, "hidden", 5, 64, 4 * 5 * 160);
        if (i && (g.size != first.size || memcmp(g.bytes, first.bytes, g.size)))
            fail_msg("%s %s: another file", settings[i][0], settings[i][1]);
        if (i)
            golden_close(&g);
        else
            first = g;
    }
    uint64_t length;
    memcpy(&length, first.bytes, sizeof length);
    assert_int_equal(length % 8, 0);
    assert_int_equal(first.size, 8 + length + 4 * 5 * (160 + 64));
    golden_close(&first);
    unlink(file);
    assert_int_equal(rmdir(out), 0); /* no .part is left */
}

static double elements(const json_t *tensor)
{
    double n = 1;
    size_t i;
    json_t *size;
    json_array_foreach(json_object_get(tensor, "shape"), i, size)
        n *= (double)json_integer_value(size);
    return n;
}

TEST(inspect_counts_what_the_file_holds)
{
    static const char *const one_file[] = {"v3", "v2", "v2-lite", "moonlight", "glm"};
    for (size_t i = 0; i < COUNT(one_file); i++) {
        char dir[64], file[128];
        double parameters = 0;
        snprintf(dir, sizeof dir, TINY "%s", one_file[i]);
        snprintf(file, sizeof file, "%s/model.safetensors", dir);
        struct golden g = golden_read(file);
        json_t *j = JSON("inspect", dir), *tensors = json_object_get(j, "tensors"), *ignored, *t;
        expect_keys(j, "architecture:s model_type:s config:o parameters:i active_parameters:i mtp_modules:i "
                       "mtp_modules_promised:i mtp:a precision:s "
                       "mapped_bytes:i widened_bytes:i joined_bytes:i rounded_bytes:i quantized_bytes:i "
                       "repacked_bytes:i copy_seconds:r cache_bytes_per_token:o tensors:o types:o parts:a");
        expect_keys(tensors, "used:i ignored:a");
        size_t k, count = json_object_size(g.header) - (json_object_get(g.header, "__metadata__") != NULL);
        assert_int_equal(integer(tensors, "used") + (long long)json_array_size(json_object_get(tensors, "ignored")),
                         count);
        json_array_foreach(json_object_get(tensors, "ignored"), k, ignored)
            expect_keys(ignored, "name:s why:s");
        const char *name;
        json_object_foreach(g.header, name, t)
            if (strcmp(name, "__metadata__") && !strstr(name, "weight_scale_inv") &&
                !strstr(name, "layers.3.embed_tokens") && !strstr(name, "shared_head.head")) /* equal copies, in v3 */
                parameters += elements(t);
        if ((double)integer(j, "parameters") != parameters)
            fail_msg("%s: %lld parameters, the file has %.0f", dir, integer(j, "parameters"), parameters);
        assert_true(integer(j, "active_parameters") > 0 && integer(j, "active_parameters") < integer(j, "parameters"));
        json_decref(j);
        golden_close(&g);
        struct said s = RUN("inspect", dir, "--check");
        expect_code(&s, 0);
        assert_true(s.err_size == 0 && is_plain_text(s.out, s.out_size));
        forget(&s);
    }
    for (size_t i = 0; i < COUNT(checkpoints); i++) {
        char dir[64];
        snprintf(dir, sizeof dir, TINY "%s", checkpoints[i]);
        json_t *j = JSON("inspect", dir, "--check");
        assert_int_equal(integer(j, "mtp_modules"), modules[i]);
        json_decref(j);
    }
}

TEST(inspect_says_which_layers_have_an_indexer)
{
    json_t *j = JSON("inspect", TINY "glm5", "--check");
    assert_string_equal(string(json_object_get(j, "config"), "indexers"), "FFSS");
    json_decref(j);
    struct said s = RUN("inspect", TINY "v32");
    assert_non_null(strstr(s.out, "indexers of the layers             FFF (S: "));
    forget(&s);
    s = RUN("inspect", TINY "v3");
    assert_null(strstr(s.out, "indexer"));
    forget(&s);
}

/* All but the embedding, the gates, and what is BF16 or no matrix. */
TEST(inspect_tells_what_bf16_rounds)
{
    static const char *const one_file[] = {"v3", "v2", "v2-lite"};
    for (size_t i = 0; i < COUNT(one_file); i++) {
        char dir[64], file[128], says[64];
        double rounded = 0;
        snprintf(dir, sizeof dir, TINY "%s", one_file[i]);
        snprintf(file, sizeof file, "%s/model.safetensors", dir);
        struct golden g = golden_read(file);
        const char *name;
        json_t *t;
        json_object_foreach(g.header, name, t)
            if (json_array_size(json_object_get(t, "shape")) == 2 && strcmp(string(t, "dtype"), "BF16") &&
                !strstr(name, "embed_tokens") && !strstr(name, "mlp.gate.weight") && !strstr(name, "weight_scale_inv"))
                rounded += 2 * elements(t);
        json_t *j = JSON("inspect", dir, "--precision", "bf16"), *f32 = JSON("inspect", dir);
        if ((double)integer(j, "rounded_bytes") != rounded || integer(f32, "rounded_bytes"))
            fail_msg("%s: %lld bytes are rounded, the file has %.0f", dir, integer(j, "rounded_bytes"), rounded);
        expect_same(j, f32, "parameters", dir);
        assert_true(!rounded == (i == 2));
        struct said s = RUN("inspect", dir, "--precision", "bf16");
        snprintf(says, sizeof says, "%.1f MB of matrices rounded to BF16", rounded / 1e6);
        assert_non_null(strstr(s.out, says));
        forget(&s);
        json_decref(j);
        json_decref(f32);
        golden_close(&g);
    }
}

/* The longest draft that was verified, not the longest that is possible. */
TEST(auto_reports_the_lengths_that_it_used)
{
    json_t *j = JSON("generate", TINY "v3-mtp3", "--tokens", "5,6,7", "-n", "5", "--ignore-eos", "--draft", "mtp-eagle",
                     "--draft-tokens", "auto");
    const json_t *by_depth = json_object_get(json_object_get(j, "stats"), "drafted_by_depth");
    size_t used = (size_t)integer(j, "draft_tokens");
    assert_true(used <= 3); /* of 5 tokens the first needs no draft and the last is the target's own; times decide about
                               the rest */
    assert_int_equal(json_array_size(by_depth), used);
    assert_true(used == 0 || token_at(by_depth, used - 1) > 0);
    json_decref(j);
    struct said s = RUN("generate", TINY "v3-mtp3", "--tokens", "5,6,7", "-n", "5", "--ignore-eos", "--draft",
                        "mtp-eagle", "--draft-tokens", "auto");
    if (!strstr(s.err, "mtp-eagle K=auto (at most ") || strstr(s.err, "K=15"))
        fail_msg("stderr does not say what auto used: %s", s.err);
    forget(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generate_json_has_its_keys_and_types),
        cmocka_unit_test(no_tokens_are_an_answer_too),
        cmocka_unit_test(time_and_memory_are_told),
        cmocka_unit_test(no_draft_is_none_and_0_and_the_default_is_one_draft_per_module),
        cmocka_unit_test(statistics_add_up),
        cmocka_unit_test(the_prompts_last_pass_is_prefill_whatever_the_chunk),
        cmocka_unit_test(generation_ends_with_an_end_token_or_a_full_context),
        cmocka_unit_test(fingerprint_and_tokens_are_those_of_the_rows_that_logits_writes),
        cmocka_unit_test(plain_generate_without_a_tokenizer_prints_ids_alone),
        cmocka_unit_test(logits_writes_two_tensors_whose_bits_depend_on_nothing_else),
        cmocka_unit_test(inspect_counts_what_the_file_holds),
        cmocka_unit_test(inspect_says_which_layers_have_an_indexer),
        cmocka_unit_test(inspect_tells_what_bf16_rounds),
        cmocka_unit_test(auto_reports_the_lengths_that_it_used),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
