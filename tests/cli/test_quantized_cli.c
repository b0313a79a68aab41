/* tests/cli/test_quantized_cli.c -- quantized weights as the command has them: --repack, --precision q8 and q4, what
 * inspect and the statistics tell, what is refused, what memory it takes. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include <fcntl.h>
#include <unistd.h>

#include "tests/support/files.h"
#include "tests/support/process.h"

#define EVERY_TYPE "golden/gguf/quantized.gguf"
#define RUN_IT "--tokens", "5,6,7", "-n", "8", "--ignore-eos"

static char *fingerprint_of(json_t *j)
{
    char *f = strdup(string(j, "fingerprint"));
    json_decref(j);
    return f;
}

TEST(repack_on_and_off_print_the_same_fingerprint)
{
    char *on = fingerprint_of(JSON("generate", EVERY_TYPE, RUN_IT, "--repack", "on", "--json"));
    char *off = fingerprint_of(JSON("generate", EVERY_TYPE, RUN_IT, "--repack", "off", "--isa", "scalar", "--json"));
    char *plain = fingerprint_of(JSON("generate", EVERY_TYPE, RUN_IT, "--draft", "mtp-eagle", "--threads", "3",
                                      "--json"));
    assert_string_equal(on, off);
    assert_string_equal(on, plain);
    free(on);
    free(off);
    free(plain);
}

TEST(a_file_of_copies_serves_every_instruction_set)
{
    char dir[64];
    make_dir(dir);
    struct said first = RUN("generate", EVERY_TYPE, RUN_IT, "--repack-cache", dir, "--stats");
    struct said second = RUN("generate", EVERY_TYPE, RUN_IT, "--repack-cache", dir, "--stats", "--isa", "scalar");
    expect_code(&first, 0);
    expect_code(&second, 0);
    assert_non_null(strstr(first.err, " MB of weights were copied; "));
    assert_non_null(strstr(second.err, " MB of weights were mapped from a file of copies; "));
    assert_string_equal(first.out, second.out);
    forget(&first);
    forget(&second);
    first = RUN("generate", EVERY_TYPE, RUN_IT, "--repack-cache", "/nonexistent");
    expect_code(&first, 0);
    assert_non_null(strstr(first.err, "verbatim: --repack-cache: /nonexistent/copies-"));
    assert_non_null(strstr(first.err, "No such file or directory, it is not kept\n"));
    forget(&first);
    remove_dir(dir);
}

TEST(verify_says_identical_of_every_type)
{
    struct said s = RUN("verify", EVERY_TYPE, "--tokens", "5,6,7", "-n", "12", "--ignore-eos");
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "identical"));
    forget(&s);
}

TEST(what_was_copied_is_told)
{
    json_t *on = JSON("inspect", EVERY_TYPE, "--json"), *off = JSON("inspect", EVERY_TYPE, "--repack", "off", "--json");
    json_t *q8 = JSON("inspect", "golden/tiny/v3-mtp3", "--precision", "q8", "--json");
    json_t *run = JSON("generate", EVERY_TYPE, RUN_IT, "--json");
    assert_true(integer(on, "repacked_bytes") > 300000 && !integer(on, "quantized_bytes"));
    assert_true(!integer(off, "repacked_bytes") && integer(q8, "quantized_bytes") > 50000 &&
                !integer(q8, "repacked_bytes"));
    assert_true(integer(json_object_get(on, "types"), "Q6_K") == integer(json_object_get(off, "types"), "Q6_K"));
    assert_true(integer(json_object_get(run, "stats"), "copied_bytes") > integer(on, "repacked_bytes"));
    assert_true(json_real_value(json_object_get(json_object_get(run, "stats"), "copy_seconds")) > 0);
    struct said s = RUN("inspect", EVERY_TYPE), t = RUN("generate", EVERY_TYPE, RUN_IT, "--stats");
    expect_code(&s, 0);
    expect_code(&t, 0);
    assert_non_null(strstr(s.out, " MB of Q8_0, Q4_0 and IQ4_NL, in place of what is mapped\n"));
    assert_non_null(strstr(s.out, " tensors: Q6_K\n")); /* the embedding */
    assert_non_null(strstr(t.err, " MB of weights were copied; "));
    forget(&s);
    forget(&t);
    json_decref(on);
    json_decref(off);
    json_decref(q8);
    json_decref(run);
}

TEST(what_is_not_known_or_cannot_be_is_refused)
{
    expect_failure(RUN("generate", EVERY_TYPE, RUN_IT, "--repack", "maybe"), 2,
                   "unknown repack maybe; known are on, off");
    expect_failure(RUN("inspect", EVERY_TYPE, "--precision", "q5"), 2,
                   "unknown precision q5; known are f32, bf16, q8, q4 and tensor");
    expect_failure(RUN("tokenize", EVERY_TYPE, "a"), 1, "it has no tokenizer");
}

/* ---- memory ---- */

/* A checkpoint of zeros, which takes no room on a disk. */
struct zeros {
    char header[65536];
    size_t used, bytes;
};

static void put_zeros(struct zeros *z, const char *name, size_t rows, size_t cols)
{
    size_t bytes = 2 * rows * (cols ? cols : 1);
    char shape[48];
    snprintf(shape, sizeof shape, cols ? "%zu,%zu" : "%zu", rows, cols);
    z->used += (size_t)snprintf(z->header + z->used, sizeof z->header - z->used,
                                "%s\"%s.weight\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                                z->used ? "," : "{", name, shape, z->bytes, z->bytes + bytes);
    assert_true(z->used < sizeof z->header);
    z->bytes += bytes;
}

static void put_zero_mlp(struct zeros *z, const char *prefix, size_t width)
{
    char name[96];
    snprintf(name, sizeof name, "%s.gate_proj", prefix);
    put_zeros(z, name, width, 1024);
    snprintf(name, sizeof name, "%s.up_proj", prefix);
    put_zeros(z, name, width, 1024);
    snprintf(name, sizeof name, "%s.down_proj", prefix);
    put_zeros(z, name, 1024, width);
}

static void put_zero_layer(struct zeros *z, int layer)
{
    static const struct {
        const char *name;
        size_t rows, cols;
    } parts[] = {{"input_layernorm", 1024, 0}, {"post_attention_layernorm", 1024, 0}, {"self_attn.q_proj", 128, 1024},
                 {"self_attn.kv_a_proj_with_mqa", 96, 1024}, {"self_attn.kv_a_layernorm", 64, 0},
                 {"self_attn.kv_b_proj", 128, 64}, {"self_attn.o_proj", 1024, 64}};
    char name[96];
    for (size_t i = 0; i < COUNT(parts); i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, parts[i].name);
        put_zeros(z, name, parts[i].rows, parts[i].cols);
    }
    snprintf(name, sizeof name, "model.layers.%d.mlp.gate", layer);
    if (layer)
        put_zeros(z, name, 32, 1024);
    for (int e = 0; layer && e < 32; e++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d", layer, e);
        put_zero_mlp(z, name, 1024);
    }
    snprintf(name, sizeof name, "model.layers.%d.mlp", layer);
    if (!layer)
        put_zero_mlp(z, name, 64);
}

static void write_zeros(const char *dir)
{
    static struct zeros z;
    char path[128];
    uint64_t size;
    put_zeros(&z, "model.embed_tokens", 64, 1024);
    put_zeros(&z, "model.norm", 1024, 0);
    put_zeros(&z, "lm_head", 64, 1024);
    put_zero_layer(&z, 0);
    put_zero_layer(&z, 1);
    z.header[z.used++] = '}';
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    size = z.used;
    assert_true(write(fd, &size, 8) == 8 && write(fd, z.header, z.used) == (ssize_t)z.used);
    assert_int_equal(ftruncate(fd, (off_t)(8 + z.used + z.bytes)), 0);
    close(fd);
    write_text(dir, "config.json",
               "{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"model_type\":\"deepseek_v2\",\"hidden_size\":1024,"
               "\"vocab_size\":64,\"num_hidden_layers\":2,\"first_k_dense_replace\":1,\"moe_layer_freq\":1,"
               "\"intermediate_size\":64,\"moe_intermediate_size\":1024,\"n_routed_experts\":32,\"n_shared_experts\":0,"
               "\"num_experts_per_tok\":2,\"norm_topk_prob\":false,\"routed_scaling_factor\":1.0,"
               "\"scoring_func\":\"softmax\",\"topk_method\":\"greedy\",\"num_attention_heads\":2,"
               "\"num_key_value_heads\":2,\"q_lora_rank\":null,\"kv_lora_rank\":64,\"qk_nope_head_dim\":32,"
               "\"qk_rope_head_dim\":32,\"v_head_dim\":32,\"max_position_embeddings\":256,\"rms_norm_eps\":1e-06,"
               "\"rope_theta\":10000}");
}

/* Of a run of three tokens. */
static long long peak_of(const char *model, const char *precision, long long *copied)
{
    json_t *j = JSON("generate", model, "--tokens", "1,2,3", "-n", "3", "--ignore-eos", "--precision", precision,
                     "--json");
    const json_t *stats = json_object_get(j, "stats");
    long long peak = integer(stats, "peak_memory_bytes");
    *copied = integer(stats, "copied_bytes");
    json_decref(j);
    return peak;
}

/* Copies take the place of what they are made of: 100 MB of weights never become 200 MB. */
TEST(copies_do_not_double_the_memory)
{
    char dir[64], file[128];
    long long copied, base, peak;
    struct stat st;
    make_dir(dir);
    write_zeros(dir);
    snprintf(file, sizeof file, "%s/q.gguf", dir);
    struct said s = RUN("quantize", dir, "-o", file, "--type", "q8_0");
    expect_code(&s, 0);
    forget(&s);
    assert_int_equal(stat(file, &st), 0);
    assert_true(st.st_size > 100000000);
    base = peak_of("golden/tiny/v2-lite", "f32", &copied);
    assert_int_equal(copied, 0);
    peak = peak_of(file, "f32", &copied);
    if (copied < st.st_size * 9 / 10 || (double)(peak - base) > 1.05 * (double)st.st_size)
        fail_msg("a file of %lld bytes, %lld of them copied, takes %lld bytes", (long long)st.st_size, copied,
                 peak - base);
    peak = peak_of(dir, "q4", &copied);
    if (copied < st.st_size * 4 / 10 || (double)(peak - base) > 1.20 * (double)copied)
        fail_msg("%lld bytes quantized of a directory take %lld", copied, peak - base);
    remove_dir(dir);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repack_on_and_off_print_the_same_fingerprint),
        cmocka_unit_test(a_file_of_copies_serves_every_instruction_set),
        cmocka_unit_test(verify_says_identical_of_every_type),
        cmocka_unit_test(what_was_copied_is_told),
        cmocka_unit_test(what_is_not_known_or_cannot_be_is_refused),
        cmocka_unit_test(copies_do_not_double_the_memory),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
