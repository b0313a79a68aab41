/* tools/demo_checkpoint.c -- generates a checkpoint with random weights that is larger than the CPU caches. It has BF16
 * weights, multi-head latent attention, dense layers, and one MTP module with a small mixture of experts. A pass of the
 * module costs about a fiftieth of a pass of the main model, as in DeepSeek-V3. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tools/cli/cli.h"
#include "tools/demo.h"
#include "numbers/numbers.h"

/* The model has 22 layers of 14 million weights. */
enum {
    LAYERS = 22, WIDTH = 1024, VOCABULARY = 2048, INNER = 4096, /* INNER: of the dense layers */
    HEADS = 8, NOPE = 64, ROPE = 32, VALUE = 64, Q_RANK = 384, KV_RANK = 256,
    EXPERTS = 4, EXPERT_INNER = 256
};

static const char config[] =
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"model_type\": \"deepseek_v3\", \"hidden_size\": %d, "
    "\"vocab_size\": %d,\n"
    "\"num_hidden_layers\": %d, \"first_k_dense_replace\": %d, \"num_nextn_predict_layers\": 1, \"moe_layer_freq\": "
    "1,\n"
    "\"intermediate_size\": %d, \"moe_intermediate_size\": %d, \"n_routed_experts\": %d, \"n_shared_experts\": 1,\n"
    "\"num_experts_per_tok\": 2, \"n_group\": 1, \"topk_group\": 1, \"norm_topk_prob\": true, "
    "\"routed_scaling_factor\": 1.0,\n"
    "\"scoring_func\": \"sigmoid\", \"topk_method\": \"noaux_tc\", \"num_attention_heads\": %d, "
    "\"num_key_value_heads\": %d,\n"
    "\"q_lora_rank\": %d, \"kv_lora_rank\": %d, \"qk_nope_head_dim\": %d, \"qk_rope_head_dim\": %d, \"v_head_dim\": "
    "%d,\n"
    "\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000, \"hidden_act\": \"silu\",\n"
    "\"tie_word_embeddings\": false, \"bos_token_id\": 0, \"eos_token_id\": 1, \"torch_dtype\": \"bfloat16\"}\n";

#define TENSORS 512
#define HEADER 65536 /* bytes: there are 300 tensors */
#define BLOCK ((size_t)1 << 19) /* numbers that are written at once */

struct layout {
    size_t count[TENSORS]; /* numbers of each tensor */
    int is_vector[TENSORS];
    int tensors;
    /* in a safetensors file, the length of the header comes first, in 8 bytes, and then the header as JSON */
    char header[HEADER];
    size_t size;
    size_t numbers;
};

/* cols 0: a vector */
static void add(struct layout *l, const char *prefix, const char *name, size_t rows, size_t cols)
{
    size_t n = rows * (cols ? cols : 1);
    char shape[48];
    snprintf(shape, sizeof shape, cols ? "%zu,%zu" : "%zu", rows, cols);
    l->is_vector[l->tensors] = !cols;
    l->count[l->tensors++] = n;
    l->size += (size_t)snprintf(l->header + l->size, sizeof l->header - l->size,
                                "%c\"%s%s.weight\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                                l->size == 8 ? '{' : ',', prefix, name, shape, 2 * l->numbers, 2 * (l->numbers + n));
    l->numbers += n;
}

static void add_mlp(struct layout *l, const char *layer, const char *name, size_t inner)
{
    char prefix[96];
    snprintf(prefix, sizeof prefix, "%s%s", layer, name);
    add(l, prefix, "gate_proj", inner, WIDTH);
    add(l, prefix, "up_proj", inner, WIDTH);
    add(l, prefix, "down_proj", WIDTH, inner);
}

static void add_layer(struct layout *l, int number)
{
    char layer[48], expert[32];
    snprintf(layer, sizeof layer, "model.layers.%d.", number);
    add(l, layer, "input_layernorm", WIDTH, 0);
    add(l, layer, "post_attention_layernorm", WIDTH, 0);
    add(l, layer, "self_attn.q_a_proj", Q_RANK, WIDTH);
    add(l, layer, "self_attn.q_a_layernorm", Q_RANK, 0);
    add(l, layer, "self_attn.q_b_proj", (size_t)HEADS * (NOPE + ROPE), Q_RANK);
    add(l, layer, "self_attn.kv_a_proj_with_mqa", KV_RANK + ROPE, WIDTH);
    add(l, layer, "self_attn.kv_a_layernorm", KV_RANK, 0);
    add(l, layer, "self_attn.kv_b_proj", (size_t)HEADS * (NOPE + VALUE), KV_RANK);
    add(l, layer, "self_attn.o_proj", WIDTH, (size_t)HEADS * VALUE);
    if (number < LAYERS) {
        add_mlp(l, layer, "mlp.", INNER);
        return;
    }
    add(l, layer, "mlp.gate", EXPERTS, WIDTH);
    for (int e = 0; e < EXPERTS; e++) {
        snprintf(expert, sizeof expert, "mlp.experts.%d.", e);
        add_mlp(l, layer, expert, EXPERT_INNER);
    }
    add_mlp(l, layer, "mlp.shared_experts.", EXPERT_INNER);
    add(l, layer, "enorm", WIDTH, 0);
    add(l, layer, "hnorm", WIDTH, 0);
    add(l, layer, "eh_proj", WIDTH, (size_t)2 * WIDTH);
    add(l, layer, "shared_head.norm", WIDTH, 0);
}

static void lay_out(struct layout *l)
{
    l->size = 8;
    add(l, "", "model.embed_tokens", VOCABULARY, WIDTH);
    for (int i = 0; i <= LAYERS; i++)
        add_layer(l, i);
    add(l, "", "model.norm", WIDTH, 0);
    add(l, "", "lm_head", VOCABULARY, WIDTH);
    /* the router's bias, which has no .weight in its name */
    l->size += (size_t)snprintf(l->header + l->size, sizeof l->header - l->size,
                                ",\"model.layers.%d.mlp.gate.e_score_correction_bias\":{\"dtype\":\"BF16\","
                                "\"shape\":[%d],\"data_offsets\":[%zu,"
                                "%zu]}}", LAYERS, EXPERTS, 2 * l->numbers, 2 * (l->numbers + EXPERTS));
    l->is_vector[l->tensors] = 1;
    l->count[l->tensors++] = EXPERTS;
    l->numbers += EXPERTS;
    while (l->size % 64)
        l->header[l->size++] = ' ';
    for (int i = 0; i < 8; i++)
        l->header[i] = (char)(((uint64_t)l->size - 8) >> 8 * i);
}

/* Fills matrices with random numbers whose magnitudes are between 2^-7 and 2^-5, and vectors, which are weights of
 * norms, with ones. */
static void fill(uint16_t *block, size_t count, int is_vector, uint64_t *state)
{
    for (size_t i = 0; i < count; i++) {
        *state = lcg_next(*state);
        block[i] = is_vector ? 0x3f80 : (uint16_t)(*state >> 48 & 0x80ff) | 0x3c00;
    }
}

/* Writes all tensors. Returns 1 if writing failed. A signal ends the writing early, but this is not a failure. */
static int write_tensors(FILE *f, const struct layout *l, uint16_t *block)
{
    uint64_t state = 1;
    size_t done = 0;
    int failed = fwrite(l->header, 1, l->size, f) != l->size;
    for (int t = 0; t < l->tensors; t++)
        for (size_t at = 0, n; at < l->count[t] && !failed && !cli_stopped(); at += n) {
            n = l->count[t] - at < BLOCK ? l->count[t] - at : BLOCK;
            fill(block, n, l->is_vector[t], &state);
            failed = fwrite(block, sizeof *block, n, f) != n;
            cli_progress("generating a checkpoint", done += n, l->numbers + 1);
        }
    cli_progress("", 1, 1);
    return failed;
}

static FILE *create(const struct demo_checkpoint *made, const char *name)
{
    char path[sizeof made->dir + 32];
    snprintf(path, sizeof path, "%s/%s", made->dir, name);
    return fopen(path, "wx");
}

static int write_files(const struct demo_checkpoint *made, const struct layout *l, uint16_t *block)
{
    FILE *text = create(made, "config.json"), *f = text ? create(made, "model.safetensors") : NULL;
    int failed = !text || !f;
    if (text) {
        fprintf(text, config, WIDTH, VOCABULARY, LAYERS, LAYERS, INNER, EXPERT_INNER, EXPERTS, HEADS, HEADS, Q_RANK,
                KV_RANK, NOPE, ROPE, VALUE);
        failed |= fclose(text) != 0;
    }
    if (f) {
        failed |= write_tensors(f, l, block);
        failed |= fclose(f) != 0;
    }
    return failed;
}

static int check_room(struct cli *c, const char *where, double bytes)
{
    struct statvfs s;
    if (statvfs(where, &s))
        return cli_fail(c, EXIT_OTHER, "%s: %s", where, strerror(errno));
    double free_bytes = (double)s.f_bavail * (double)s.f_frsize;
    if (free_bytes > 1.05 * bytes)
        return EXIT_DONE;
    return cli_fail(c, EXIT_OTHER,
                    "%s has %.0f MB free, the generated checkpoint takes %.0f MB; TMPDIR may name another folder",
                    where, free_bytes / 1e6, 1.05 * bytes / 1e6);
}

int demo_checkpoint_make(struct cli *c, struct demo_checkpoint *out)
{
    const char *where = getenv("TMPDIR");
    struct layout *l = calloc(1, sizeof *l);
    uint16_t *block = malloc(BLOCK * sizeof *block);
    int code = l && block ? EXIT_DONE : cli_fail(c, EXIT_OTHER, "no memory to make a checkpoint");
    where = where && *where ? where : "/tmp";
    if (code == EXIT_DONE) {
        lay_out(l);
        out->bytes = 2.0 * (double)l->numbers;
        out->layers = LAYERS;
        code = check_room(c, where, out->bytes);
    }
    int size = snprintf(out->dir, sizeof out->dir, "%s/verbatim-demo-XXXXXX", where);
    if (code == EXIT_DONE && (size >= (int)sizeof out->dir || !mkdtemp(out->dir)))
        code = cli_fail(c, EXIT_OTHER, "%s: %s", where,
                        size >= (int)sizeof out->dir ? "the name is too long" : strerror(errno));
    else if (code == EXIT_DONE) {
        if (write_files(out, l, block))
            code = cli_fail(c, EXIT_OTHER, "%s: %s", out->dir, strerror(errno));
        else
            code = demo_go_on(c);
        if (code != EXIT_DONE)
            demo_checkpoint_remove(out);
    }
    free(block);
    free(l);
    return code;
}

int demo_go_on(const struct cli *c)
{
    if (!cli_stopped())
        return EXIT_DONE;
    return cli_fail(c, EXIT_OTHER, "stopped by a signal (%s); the generated checkpoint is removed",
                    strsignal(cli_stopped()));
}

void demo_checkpoint_remove(const struct demo_checkpoint *made)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    char path[sizeof made->dir + 32];
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", made->dir, names[i]);
        unlink(path);
    }
    rmdir(made->dir);
}
