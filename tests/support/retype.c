/* tests/support/retype.c -- writes a checkpoint again with other dtypes. */
#include "tests/support/retype.h"

#include "simd/decode.h"

static int is_linear(const struct tensor *t)
{
    return t->ndim == 2 && !strstr(t->name, "embed_tokens") && !strstr(t->name, "mlp.gate.weight") &&
           !strstr(t->name, "_scale_inv");
}

/* Number i of a tensor as f32. block: how many rows and columns share one scale of an FP8 tensor. */
static float stored_number(const struct checkpoint *c, const struct tensor *t, const int block[2], size_t i)
{
    struct weight_view v = {.type = t->dtype == DTYPE_F32 ? WEIGHT_F32
                                    : t->dtype == DTYPE_F16 ? WEIGHT_F16
                                    : WEIGHT_BF16,
                            .data = t->data, .rows = 1, .cols = t->bytes, .stride = 0};
    char name[TENSOR_MAX_NAME + 16];
    float x, scale;
    if (t->dtype != DTYPE_F8_E4M3) {
        decode_weights(&x, &v, 0, i, 1);
        return x;
    }
    snprintf(name, sizeof name, "%s_scale_inv", t->name);
    const struct tensor *s = checkpoint_find(c, name);
    assert_non_null(s);
    size_t row = i / (size_t)t->shape[1] / (size_t)block[0], col = i % (size_t)t->shape[1] / (size_t)block[1];
    memcpy(&scale, (const char *)s->data + (row * (size_t)s->shape[1] + col) * sizeof scale, sizeof scale);
    return e4m3_to_f32(((const uint8_t *)t->data)[i]) * scale;
}

/* A finite number rounded to nearest, ties to even. */
static uint16_t nearest_bf16(float x)
{
    uint32_t bits = f32_to_bits(x), low = bits & 0xffff, high = bits >> 16;
    return (uint16_t)(high + (low > 0x8000 || (low == 0x8000 && high % 2)));
}

static size_t retype_tensor(char *to, const struct retype *r, const struct checkpoint *c, const struct tensor *t,
                            const int block[2], enum dtype dtype, uint64_t *seed)
{
    size_t n = 1;
    for (int d = 0; d < t->ndim; d++)
        n *= (size_t)t->shape[d];
    if (dtype == t->dtype && !(dtype == DTYPE_F32 && r->noise > 0 && t->ndim == 2)) {
        memcpy(to, t->data, t->bytes);
    } else {
        for (size_t i = 0; i < n; i++) {
            double u = (double)(next_random(seed) >> 11) * 0x1p-52 - 1.0;
            float x = stored_number(c, t, block, i);
            x = dtype == DTYPE_F32 ? (float)((double)x * (1.0 + r->noise * u)) : x;
            uint16_t half = nearest_bf16(x);
            memcpy(to + i * (dtype == DTYPE_F32 ? 4 : 2), dtype == DTYPE_F32 ? (void *)&x : &half,
                   dtype == DTYPE_F32 ? 4 : 2);
        }
    }
    if (r->tiny && !strcmp(r->tiny, t->name)) {
        uint16_t tiny = (127 - 60) << 7;
        assert_true(dtype == DTYPE_BF16);
        memcpy(to + n / 2 * sizeof tiny, &tiny, sizeof tiny);
    }
    return dtype == t->dtype ? t->bytes : n * (dtype == DTYPE_F32 ? 4 : 2);
}

void retype(char dir[64], const struct retype *r, size_t *was, size_t *is)
{
    static const char *const names[] = {"F32", "F16", "BF16", "F8_E4M3"};
    struct checkpoint *c;
    char path[512], *header, *data;
    json_t *all = json_object(), *config;
    size_t used = 0, room = 0;
    uint64_t seed = 17;
    int block[2] = {1, 1};
    OK(checkpoint_open(&c, r->from, NULL, &err));
    snprintf(path, sizeof path, "%s/config.json", r->from);
    assert_non_null(config = json_load_file(path, 0, NULL));
    json_t *fp8 = json_object_get(json_object_get(config, "quantization_config"), "weight_block_size");
    for (size_t i = 0; fp8 && i < 2; i++)
        block[i] = (int)json_integer_value(json_array_get(fp8, i));
    for (size_t i = 0; i < checkpoint_count(c); i++)
        room += checkpoint_at(c, i)->bytes * 4;
    assert_non_null(data = malloc(room));
    *was = *is = 0;
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct tensor *t = checkpoint_at(c, i);
        if (strstr(t->name, "_scale_inv")) /* the new file has no FP8 */
            continue;
        enum dtype wanted = is_linear(t) ? r->linear : t->ndim == 2 ? r->others : DTYPE_OTHER;
        enum dtype dtype = wanted == DTYPE_OTHER ? t->dtype : wanted;
        assert_true(dtype != DTYPE_F8_E4M3);
        size_t bytes = retype_tensor(data + used, r, c, t, block, dtype, &seed),
               n = bytes / (dtype == DTYPE_F32 ? 4 : 2);
        *was += is_linear(t) && t->dtype != DTYPE_BF16 ? n : 0;
        *is += is_linear(t) && dtype != DTYPE_BF16 ? n : 0;
        json_t *shape = json_array();
        for (int d = 0; d < t->ndim; d++)
            json_array_append_new(shape, json_integer(t->shape[d]));
        json_object_set_new(all, t->name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", names[dtype], "shape", shape, "data_offsets",
                                      (json_int_t)used, (json_int_t)(used + bytes)));
        used += bytes;
    }
    make_dir(dir);
    json_object_del(config, "quantization_config");
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    header = json_dumps(all, JSON_COMPACT);
    write_safetensors(dir, "model.safetensors", header, data, used);
    free(header);
    free(data);
    json_decref(all);
    json_decref(config);
    checkpoint_close(c);
}
