/* tests/support/small_eagle.c -- generated EAGLE heads, and variants of a golden one. */
#include "tests/support/small_eagle.h"

#include "tests/support/engine_support.h"
#include "tests/support/files.h"
#include "tests/support/golden.h"
#include "tests/support/random.h"

#include <math.h>

struct writer {
    char header[1 << 13];
    float *data;
    size_t used, count;
    uint64_t state;
};

static void describe(struct writer *w, const char *name, const char *dtype, const char *shape, size_t bytes)
{
    assert_true(w->used + 200 < sizeof w->header);
    w->used += (size_t)sprintf(w->header + w->used,
                               "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                               w->used ? "," : "{", name, dtype, shape, 4 * w->count, 4 * w->count + bytes);
    w->data = realloc(w->data, 4 * w->count + bytes);
    assert_non_null(w->data);
}

/* rows 0: a vector with cols numbers. Norms are about 1; matrices keep the size of a row, because nothing normalises
 * those of an EAGLE-1. */
static void put(struct writer *w, const char *prefix, const char *part, int rows, int cols)
{
    char name[96], shape[64];
    size_t n = (size_t)(rows ? rows : 1) * (size_t)cols;
    snprintf(name, sizeof name, "%s%s", prefix, part);
    if (rows)
        snprintf(shape, sizeof shape, "[%d,%d]", rows, cols);
    else
        snprintf(shape, sizeof shape, "[%d]", cols);
    uint32_t most = rows && strcmp(part, "embed_tokens.weight") ? (uint32_t)(1400 / sqrt(cols + 1)) : 511;
    describe(w, name, "F32", shape, n * sizeof *w->data);
    for (size_t i = 0; i < n; i++) {
        double x = ((double)random_below(&w->state, 2 * most + 1) - most) / 1024;
        w->data[w->count++] = (float)(rows || !strcmp(part, "fc.bias") ? x : 1 + x);
    }
}

int small_eagle_token(const struct small_eagle *c, int id) { return 1 + id * (c->target_vocab - 1) / c->vocab; }

static void put_d2t(struct writer *w, const struct small_eagle *c)
{
    char shape[32];
    snprintf(shape, sizeof shape, "[%d]", c->vocab);
    describe(w, "d2t", "I64", shape, (size_t)c->vocab * sizeof(int64_t));
    for (int id = 0; id < c->vocab; id++, w->count += 2) {
        int64_t offset = small_eagle_token(c, id) - id;
        memcpy(w->data + w->count, &offset, sizeof offset);
    }
}

void small_eagle(char dir[64], const struct small_eagle *c, uint64_t seed)
{
    struct writer w = {.state = seed};
    char config[1024];
    int three = c->version == 3, d = c->d, in = three ? 2 * d : d, HD = c->heads * c->dim, GD = c->groups * c->dim;
    const char *layer = three ? "midlayer." : "layers.0.";
    make_dir(dir);
    if (c->embeds)
        put(&w, "", "embed_tokens.weight", c->target_vocab, d);
    for (int i = 0; i < c->feature_norms; i++) {
        char name[32] = "input_norm.weight";
        if (c->feature_norms == 3)
            snprintf(name, sizeof name, "fc_norm.%d.weight", i);
        put(&w, "", name, 0, 3 / c->feature_norms * c->target_width);
    }
    put(&w, "", "fc.weight", d, three ? 3 * c->target_width : 2 * d);
    if (c->bias)
        put(&w, "", "fc.bias", 0, d);
    put(&w, layer, "self_attn.q_proj.weight", HD, in);
    put(&w, layer, "self_attn.k_proj.weight", GD, in);
    put(&w, layer, "self_attn.v_proj.weight", GD, in);
    put(&w, layer, "self_attn.o_proj.weight", d, HD);
    put(&w, layer, "mlp.gate_proj.weight", c->intermediate, d);
    put(&w, layer, "mlp.up_proj.weight", c->intermediate, d);
    put(&w, layer, "mlp.down_proj.weight", d, c->intermediate);
    put(&w, layer, "post_attention_layernorm.weight", 0, d);
    if (three) {
        put(&w, layer, "input_layernorm.weight", 0, d);
        put(&w, layer, "hidden_norm.weight", 0, d);
        put(&w, "", "norm.weight", 0, d);
        put(&w, "", "lm_head.weight", c->vocab ? c->vocab : c->target_vocab, d);
        if (c->vocab)
            put_d2t(&w, c);
    }
    strcpy(w.header + w.used, "}");
    write_safetensors(dir, "model.safetensors", w.header, w.data, w.count * sizeof *w.data);
    free(w.data);
    snprintf(config, sizeof config,
             "{\"architectures\":[\"LlamaForCausalLM\"],%s\"hidden_act\":\"silu\",\"hidden_size\":%d,"
             "\"intermediate_size\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,"
             "\"num_hidden_layers\":1,\"rms_norm_eps\":0.001,\"rope_theta\":10000.0,\"max_position_embeddings\":512,"
             "\"draft_vocab_size\":%d,\"vocab_size\":%d}",
             c->keys ? c->keys : "", d, c->intermediate, c->heads, c->groups, c->dim,
             c->vocab ? c->vocab : c->target_vocab, c->target_vocab);
    write_text(dir, "config.json", config);
}

const struct eagle_variant eagle_variants[] = {
    {"residual", {"norm_before_residual"}},
    {"before_fc", {"norm_before_residual", "norm_before_fc", "norm_output"}},
    {"fc_norm", {"fc_norm", "norm_output"}},
};
const size_t eagle_variant_count = COUNT(eagle_variants);

/* Adds F32 vectors with 192 numbers in all, one after the other, to DIR/model.safetensors. */
static void add_norms(const char *dir, const char *const *names, size_t count)
{
    char path[96];
    float x[192];
    struct golden g;
    uint64_t length;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    g = golden_read(path);
    memcpy(&length, g.bytes, sizeof length);
    size_t size = g.size - 8 - length, each = sizeof x / count;
    for (int i = 0; i < 192; i++)
        x[i] = 1 + (float)(29 * i % 61 - 30) / 128;
    for (size_t i = 0; i < count; i++)
        json_object_set_new(g.header, names[i],
                            json_pack("{s:s,s:[i],s:[I,I]}", "dtype", "F32", "shape", (int)(each / sizeof *x),
                                      "data_offsets", (json_int_t)(size + i * each),
                                      (json_int_t)(size + (i + 1) * each)));
    char *header = json_dumps(g.header, 0), *data = malloc(size + sizeof x);
    assert_true(header && data);
    memcpy(data, g.bytes + 8 + length, size);
    memcpy(data + size, x, sizeof x);
    write_safetensors(dir, "model.safetensors", header, data, size + sizeof x);
    free(header);
    free(data);
    golden_close(&g);
}

void eagle_variant(char dir[64], const struct eagle_variant *v)
{
    char path[96];
    copy_checkpoint(dir, "golden/eagle/eagle3-v3");
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *config = json_load_file(path, 0, NULL);
    for (size_t i = 0; i < COUNT(v->keys) && v->keys[i]; i++)
        json_object_set_new(config, v->keys[i], json_true());
    if (json_object_get(config, "norm_before_fc"))
        add_norms(dir, (const char *const[]){"input_norm.weight"}, 1);
    if (json_object_get(config, "fc_norm"))
        add_norms(dir, (const char *const[]){"fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"}, 3);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
}
