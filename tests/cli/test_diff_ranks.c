/* tests/cli/test_diff_ranks.c -- `verbatim diff` on dumps with a file for each tensor-parallel rank: shards, terms of
 * sums, parts of the rows, and ranks that should be equal and are not. Runs the program itself (argv[1], or ../verbatim
 * beside this one) in the repository's root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"
#include "tests/support/wide_checkpoint.h"

#define RANKS 2
enum part { WHOLE, COLUMNS, TERMS, ROWS };

static int is_in(const char *name, const char *const *ends, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(name) >= strlen(ends[i]) && !strcmp(name + strlen(name) - strlen(ends[i]), ends[i]))
            return 1;
    return 0;
}

static enum part as_tensor_parallel(const char *name)
{
    static const char *const columns[] = {"q_b_proj.output", "q_rope", "o_proj.input", "lm_head.output"};
    static const char *const terms[] = {"o_proj.output", "mlp.output", "shared_experts.output"};
    return is_in(name, columns, COUNT(columns)) ? COLUMNS : is_in(name, terms, COUNT(terms)) ? TERMS : WHOLE;
}

static enum part all_rows(const char *name)
{
    (void)name;
    return ROWS;
}

/* The part of a tensor [rows, width] of 4-byte numbers that a rank has; of terms, every other column, and 0
 * elsewhere. */
static size_t take_part(enum part part, size_t rank, const char *from, size_t rows, size_t width, char *to,
                        size_t shape[2])
{
    size_t first = part == COLUMNS ? width * rank / RANKS : 0,
           end = part == COLUMNS ? width * (rank + 1) / RANKS : width, used = 0;
    size_t top = part == ROWS ? rows * rank / RANKS : 0, bottom = part == ROWS ? rows * (rank + 1) / RANKS : rows;
    for (size_t r = top; r < bottom; r++)
        for (size_t i = first; i < end; i++, used += 4)
            if (part == TERMS && i % RANKS != rank)
                memset(to + used, 0, 4);
            else
                memcpy(to + used, from + 4 * (r * width + i), 4);
    shape[0] = bottom - top;
    shape[1] = end - first;
    return used;
}

/* Writes the dump of one rank as dir/FILE. */
static void write_rank(const char *from, const char *file, size_t rank, enum part (*part_of)(const char *))
{
    struct edited e = edit(from);
    json_t *header = json_object(), *old;
    const char *key;
    char *data = malloc(e.g.size);
    size_t used = 0, shape[2], n, total;
    assert_non_null(data);
    json_object_foreach(e.g.header, key, old) {
        const char *at = golden_data(&e.g, key, &n);
        size_t width = width_of(&e, key),
               size = take_part(part_of(key), rank, at, n / width, width, data + used, shape);
        json_object_set_new(header, key,
                            json_pack("{s:O,s:[I,I],s:[I,I]}", "dtype", json_object_get(old, "dtype"), "shape",
                                      (json_int_t)shape[0], (json_int_t)shape[1], "data_offsets", (json_int_t)used,
                                      (json_int_t)(used + size)));
        used += size;
    }
    char *text = json_dumps(header, JSON_COMPACT), *bytes = safetensors_bytes(text, data, used, &total);
    write_file(dir, file, bytes, total);
    golden_close(&e.g);
    json_decref(header);
    free(text);
    free(bytes);
    free(data);
}

/* Writes the manifest of a rank that has every tensor's rows [rows rank / RANKS, rows (rank + 1) / RANKS). */
static void write_manifest(const char *file, size_t rank)
{
    char path[96], *text, *line, *rest, out[65536];
    size_t size, used = 0;
    snprintf(path, sizeof path, "%s/a.jsonl", dir);
    text = bytes_of(path, &size);
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *whole = json_loads(line, 0, NULL), *mine = json_object(), *list;
        const char *key;
        json_object_foreach(whole, key, list) {
            json_t *part = json_array();
            size_t rows = json_array_size(list);
            for (size_t i = rows * rank / RANKS; i < rows * (rank + 1) / RANKS && strcmp(key, "shape"); i++)
                json_array_append(part, json_array_get(list, i));
            json_object_set(mine, key, json_is_array(list) ? part : list);
            json_decref(part);
        }
        json_object_del(mine, "sha256");
        char *said = json_dumps(mine, JSON_COMPACT);
        used += (size_t)snprintf(out + used, sizeof out - used, "%s\n", said);
        assert_true(used < sizeof out);
        free(said);
        json_decref(whole);
        json_decref(mine);
    }
    write_text(dir, file, out);
    free(text);
}

static void make_ranks(enum part (*part_of)(const char *))
{
    write_rank(a, "TP0_PP0_Rank0_pid7.safetensors", 0, part_of);
    write_rank(a, "TP1_PP0_Rank1_pid9.safetensors", 1, part_of);
}

static const char *note(const json_t *j, const char *with) /* the note that contains `with`, or NULL */
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(j, "notes"), i, one)
        if (strstr(json_string_value(one), with))
            return json_string_value(one);
    return NULL;
}

TEST(shards_are_put_together_and_terms_are_added)
{
    char list[200];
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    make_ranks(as_tensor_parallel);
    json_t *j = DIFF(0, dir, TINY "v3", "--tokens", TOKENS);
    expect_verdict("a directory", j, "identical");
    assert_non_null(note(j, "2 ranks; 13 values were concatenated, 11 were added"));
    assert_non_null(note(j, "were joined as usual for their names"));
    assert_int_equal(integer(tap(j, "model.layers.1.self_attn.o_proj.output"), "rows"), 10);
    json_decref(j);
    snprintf(list, sizeof list, "%s/TP0_PP0_Rank0_pid7.safetensors,%s/TP1_PP0_Rank1_pid9.safetensors", dir, dir);
    EXPECT(0, "identical", a, list, "--model", TINY "v3", "--runs", "0");
    snprintf(list, sizeof list, "%s/TP1_PP0_Rank1_pid9.safetensors,%s/TP0_PP0_Rank0_pid7.safetensors", dir, dir);
    expect_structural_at(DIFF(3, a, list), "model.layers.0.self_attn.q_b_proj.output");
}

TEST(the_user_says_how_ranks_are_joined)
{
    DUMP(a, TINY "v3", "--tokens", TOKENS, "--taps", "*.post_attention_layernorm.output,*.o_proj.output");
    make_ranks(as_tensor_parallel);
    /* no shape shows shards */
    expect_failure(RUN("diff", dir, a), 1, "o_proj.output differs in rank 1: index 0, column 0 is 0, in rank 0");
    EXPECT(0, "identical", dir, a, "--gather", "*.o_proj.output=sum");
    EXPECT(0, "identical", dir, a, "--gather", "*norm.output=rank:0,*.o_proj.*=sum", "--taps",
           "*.post_attention_layernorm.*,*.o_proj.*");
    /* twice what it was */
    EXPECT(3, "structural", dir, a, "--gather", "*.post_*=sum", "--gather", "*.o_proj.output=sum");
    EXPECT(3, "structural", dir, a, "--gather", "*.o_proj.output=rank:1");
    EXPECT(3, "structural", dir, a, "--gather", "*.o_proj.output=concat:1");
    EXPECT(0, "identical", dir, a, "--taps", "*.post_attention_layernorm.output"); /* what is not compared need not be
                                                                                      joined */
}

TEST(ranks_may_have_different_rows)
{
    DUMP(a, TINY "v3", "--tokens", TOKENS, "--taps", "*layernorm.output,lm_head.output");
    make_ranks(all_rows);
    expect_failure(RUN("diff", dir, a), 1, "lm_head.output differs in rank 1");
    EXPECT(0, "identical", dir, a, "--gather", "*=concat:0");
    write_manifest("TP0_PP0_Rank0_pid7.jsonl", 0);
    expect_failure(RUN("diff", dir, a), 1, "one has a manifest, and one has none");
    write_manifest("TP1_PP0_Rank1_pid9.jsonl", 1);
    json_t *j = DIFF(0, dir, TINY "v3", "--gather", "*=concat:0", "--runs", "0"); /* the tokens are those of both */
    expect_verdict("two manifests", j, "identical");
    assert_int_equal(integer(tap(j, "lm_head.output"), "rows"), 10);
    json_decref(j);
}

TEST(a_rank_that_should_be_equal_and_is_not_is_named)
{
    char path[96];
    size_t n;
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    make_ranks(as_tensor_parallel);
    snprintf(path, sizeof path, "%s/TP1_PP0_Rank1_pid9.safetensors", dir);
    struct edited e = edit(path);
    floats(&e, "model.layers.1.mlp.gate.output", &n)[3 * (n / 10) + 2] += 1;
    save(&e);
    expect_failure(RUN("diff", dir, TINY "v3", "--tokens", TOKENS), 1,
                   "model.layers.1.mlp.gate.output differs in rank 1: index 3, column 2 is");
}

TEST(what_cannot_be_gathered_is_refused_with_a_sentence)
{
    DUMP(a, TINY "v3", "--tokens", TOKENS, "--taps", "lm_head.output,*.mlp.gate.experts");
    expect_failure(RUN("diff", a, a, "--gather", "*=sum"), 2, "--gather wants a dump of several ranks");
    make_ranks(as_tensor_parallel);
    expect_failure(RUN("diff", dir, a, "--gather", "*"), 2, "--gather *: wanted NAME=concat:0");
    expect_failure(RUN("diff", dir, a, "--gather", "=sum"), 2, "wanted NAME=concat:0");
    expect_failure(RUN("diff", dir, a, "--gather", "*=concat:2"), 2, "wanted NAME=concat:0");
    expect_failure(RUN("diff", dir, a, "--gather", "nothing=sum"), 2,
                   "--gather nothing=sum: no rank has a value of this name");
    expect_failure(RUN("diff", dir, a, "--gather", "*=rank:2"), 2, "this rank has no such value");
    expect_failure(RUN("diff", dir, a, "--gather", "*=sum"), 1, "it has integers");
    EXPECT(3, "structural", dir, a, "--gather", "lm_head*=sum"); /* another shape */
    write_rank(a, "tp-1.safetensors", 1, as_tensor_parallel);
    expect_failure(RUN("diff", dir, a), 1, "two dumps are of rank 1");
}

/* ---- how many ranks a dump comes from: conventions --against ---- */

/* o_proj of wide_checkpoint: 4 heads of 32 numbers, so that four ranks have one head each. */
#define O_ROWS 512
#define O_COLS 128

static float to_bf16(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Replaces o_proj of a layer by what `ranks` ranks in BF16 compute; chain: each sum is rounded. */
static void compute_in_ranks(struct edited *e, const struct golden *model, int layer, size_t ranks, int chain)
{
    char name[96];
    size_t numbers, weights;
    snprintf(name, sizeof name, "model.layers.%d.self_attn.o_proj.weight", layer);
    const uint16_t *w = golden_data(model, name, &weights);
    snprintf(name, sizeof name, "model.layers.%d.self_attn.o_proj.input", layer);
    float *x = floats(e, name, &numbers);
    snprintf(name, sizeof name, "model.layers.%d.self_attn.o_proj.output", layer);
    for (size_t i = 0; i < numbers; i++)
        x[i] = to_bf16((double)x[i]);
    float *y = floats(e, name, &numbers);
    assert_int_equal(weights, O_ROWS * O_COLS);
    for (size_t i = 0; i < numbers; i++) {
        double all = 0;
        for (size_t r = 0; r < ranks; r++) {
            double part = 0;
            for (size_t k = O_COLS * r / ranks; k < O_COLS * (r + 1) / ranks; k++) {
                uint32_t bits = (uint32_t)w[i % O_ROWS * O_COLS + k] << 16;
                float weight;
                memcpy(&weight, &bits, sizeof weight);
                part += (double)weight * (double)x[i / O_ROWS * O_COLS + k];
            }
            all += ranks > 1 ? (double)to_bf16(part) : part;
            all = chain ? (double)to_bf16(all) : all;
        }
        y[i] = to_bf16(all);
    }
}

static json_t *ranks_of(const char *model, const char *dump)
{
    struct said s = RUN("conventions", model, "--against", dump, "--threads", "1", "--json");
    json_t *j = json_loads(s.out, 0, NULL), *rows = json_object_get(j, "rows"),
           *row = json_array_get(rows, json_array_size(rows) - 1);
    assert_string_equal(json_string_value(json_object_get(row, "name")), "ranks");
    json_incref(row);
    json_decref(j);
    forget(&s);
    return row;
}

TEST(the_bits_of_o_proj_tell_how_many_ranks_were_added)
{
    static const struct {
        size_t ranks;
        int chain;
        const char *value;
    } cases[] = {{4, 0, "4, once"}, {4, 1, "4, chain"}};
    char wide[64], path[96];
    json_t *row = ranks_of(TINY "glm", "golden/truth/glm.hf-dump-bfloat16.safetensors"); /* of transformers, which has
                                                                                            one rank */
    assert_string_equal(json_string_value(json_object_get(row, "value")), "1");
    assert_true(json_number_value(json_object_get(row, "equal")) > 0.99 &&
                json_number_value(json_object_get(row, "equal_otherwise")) < 0.7);
    json_decref(row);
    DUMP(a, TINY "glm", "--tokens", "5,6,7,8");
    row = ranks_of(TINY "glm", a); /* F32 */
    assert_true(json_is_null(json_object_get(row, "value")) && json_is_false(json_object_get(row, "told")));
    assert_string_equal(json_string_value(json_object_get(row, "why")),
                        "sums in F32 depend on the order of all their terms");
    json_decref(row);
    wide_checkpoint(wide);
    snprintf(path, sizeof path, "%s/model.safetensors", wide);
    struct golden model = golden_read(path);
    for (size_t i = 0; i < COUNT(cases); i++) {
        DUMP(a, wide, "--tokens", "5,6,7,8", "--taps",
             "model.embed_tokens.output,model.layers.[01].self_attn.o_proj.*");
        struct edited e = edit(a);
        for (int layer = 0; layer < 2; layer++)
            compute_in_ranks(&e, &model, layer, cases[i].ranks, cases[i].chain);
        save(&e);
        row = ranks_of(wide, a);
        assert_true(json_is_true(json_object_get(row, "told")));
        assert_string_equal(json_string_value(json_object_get(row, "value")), cases[i].value);
        json_decref(row);
    }
    golden_close(&model);
    remove_dir(wide);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(shards_are_put_together_and_terms_are_added),
        IN_DIR(the_user_says_how_ranks_are_joined),
        IN_DIR(ranks_may_have_different_rows),
        IN_DIR(the_bits_of_o_proj_tell_how_many_ranks_were_added),
        IN_DIR(a_rank_that_should_be_equal_and_is_not_is_named),
        IN_DIR(what_cannot_be_gathered_is_refused_with_a_sentence),
    };
    find_verbatim(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]); /* one test of them */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
