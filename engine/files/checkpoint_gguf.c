/* engine/files/checkpoint_gguf.c -- the tensors of a GGUF file under their names in the Hugging Face layout.
 *
 * Most tensors are the same matrices under other names, and are read from the mapped file. This includes the matrices
 * whose rows RoPE rotates: for these architectures, llama.cpp's converter does not permute these rows, and RoPE rotates
 * adjacent pairs. It does not permute the rows of the indexer either, nor multiply them by the Hadamard matrix. Some
 * tensors differ:
 *
 *   ffn_gate_exps [E, i, d], ffn_up_exps and ffn_down_exps contain the matrices of E experts, one after the other. Each
 *   matrix becomes a tensor of its own. A file may have ffn_gate_up_exps [E, 2i, d] instead of the first two. For each
 *   expert, it contains the rows of gate, then the rows of up. llama.cpp's converter writes this tensor for Mistral 4,
 *   and for other models if an option asks for it.
 *
 *   attn_k_b [H, c, n] and attn_v_b [H, v, c] replace kv_b_proj [H(n+v), c]; attn_k_b is W_uk of each attention head,
 *   transposed. When the checkpoint is opened, the two are copied into one kv_b_proj. Then attention adds over n in the
 *   same order as with any other file (ops/attention.h). Older files have attn_kv_b, which is kv_b_proj.
 *
 * A matrix of type NVFP4 may have a factor, NAME.scale, and a scale of its activations, NAME.input_scale. They get the
 * names that ModelOpt uses. For the matrices of experts, both are lists with one number for each expert.
 *
 * If attn_k_b or attn_v_b is quantized, they are not joined. They get names that no Hugging Face checkpoint has.
 * attn_v_b becomes v_b_proj [H v, c]. The blocks of a quantized attn_k_b run along n, so it cannot be transposed: it
 * becomes k_b_proj_transposed [H c, n]. An attn_k_b that is not quantized is transposed in a copy, which is k_b_proj [H
 * n, c]. */
#include "engine/files/checkpoint_internal.h"
#include "numbers/numbers.h"
#include "engine/files/gguf.h"
#include "engine/files/tensor_names.h"
#include "simd/decode.h"

#include <stdio.h>
#include <string.h>

/* Tensors with two matrices for each expert: the rows of gate, then those of up. */
static const char gate_up[] = "ffn_gate_up_exps.weight";
#define COUNT(array) (sizeof(array) / sizeof *(array))

#define MOST_EXPERTS 65536 /* the same limit as for n_routed_experts in a config.json */

struct reader {
    struct checkpoint *c;
    const struct gguf *g;
    int64_t heads;
    vb_error *err;
};

/* Fills *t with the tensor as the file stores it, except for the name, which the caller sets. t->file is a copy that
 * outlives g. */
static int begin(struct reader *r, struct tensor *t, const struct gguf_tensor *from)
{
    char types[300];
    *t = (struct tensor){.dtype = from->type->dtype, .ndim = from->ndim, .data = from->data, .bytes = from->bytes};
    if (from->type->dtype == DTYPE_OTHER)
        return vb_fail(r->err, VB_UNSUPPORTED, "%s: %.*s is %s; supported are %s", from->file, (int)from->name.size,
                       from->name.s, from->type->name, gguf_supported_types(types, sizeof types));
    memcpy(t->shape, from->shape, sizeof t->shape);
    snprintf(t->dtype_name, sizeof t->dtype_name, "%s", from->type->name);
    if (r->c->count && !strcmp(r->c->tensors[r->c->count - 1].file, from->file)) /* often the same file as before */
        t->file = r->c->tensors[r->c->count - 1].file;
    else
        t->file = checkpoint_keep_text(r->c, from->file);
    return t->file ? VB_OK : checkpoint_no_memory(r->c, r->err);
}

static int add(struct reader *r, struct tensor *t, const char *name)
{
    t->name = name;
    return checkpoint_add(r->c, t, r->err);
}

static int add_as(struct reader *r, const struct gguf_tensor *from, const char *prefix, const char *name)
{
    char whole[2 * TENSOR_MAX_NAME];
    struct tensor t;
    int rc = begin(r, &t, from);
    snprintf(whole, sizeof whole, "%s%s", prefix, name);
    return rc ? rc : add(r, &t, whole);
}

/* Adds *t under its name in Hugging Face's layout, in which `end` replaces "weight" if it is not NULL. */
static int add_named(struct reader *r, struct tensor *t, const char *prefix, enum model_tensor name, size_t expert,
                     const char *end)
{
    char part[TENSOR_MAX_NAME + 1], whole[TENSOR_MAX_NAME + 64];
    tensor_name(part, sizeof part, tensor_names[name].hf, expert, end);
    snprintf(whole, sizeof whole, "%s%s", prefix, part);
    return add(r, t, whole);
}

/* ---- experts ---- */

/* The matrices of all experts of a layer. `parts`: how many matrices each of them has, `first` and maybe the next
 * one. */
static int add_experts(struct reader *r, const struct gguf_tensor *from, const char *prefix, enum model_tensor first,
                       int parts)
{
    struct tensor t;
    int rc = begin(r, &t, from);
    if (rc)
        return rc;
    if (from->ndim != 3 || from->shape[0] > MOST_EXPERTS || from->shape[1] % parts)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %.*s is not %s for each of up to %d experts", t.file,
                       (int)from->name.size, from->name.s, parts == 1 ? "one matrix" : "two matrices of one size",
                       MOST_EXPERTS);
    int64_t matrices = from->shape[0] * parts;
    t.ndim = 2;
    t.shape[0] = from->shape[1] / parts;
    t.shape[1] = from->shape[2];
    t.shape[2] = 0;
    t.bytes /= (size_t)matrices;
    for (int64_t i = 0; !rc && i < matrices; i++) {
        t.data = from->data + (size_t)i * t.bytes;
        rc = add_named(r, &t, prefix, (enum model_tensor)(first + i % parts), (size_t)(i / parts), NULL);
    }
    return rc;
}

/* Adds a tensor for the number of each expert in the list `from`, which belongs to the matrix `of`. `end` replaces
 * "weight" in its name. `matrices` is the tensor of the matrices, or NULL if there is none. */
static int add_expert_scales(struct reader *r, const struct gguf_tensor *from, const struct gguf_tensor *matrices,
                             const char *prefix, enum model_tensor of, const char *end)
{
    struct tensor t;
    int rc = begin(r, &t, from);
    if (rc)
        return rc;
    if (from->ndim != 1 || t.dtype != DTYPE_F32 || !matrices || matrices->ndim != 3 ||
        from->shape[0] != matrices->shape[0])
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %.*s is not one F32 number for each expert", t.file,
                       (int)from->name.size, from->name.s);
    t.ndim = 2;
    t.shape[0] = t.shape[1] = 1;
    t.bytes = sizeof(float);
    for (int64_t e = 0; !rc && e < from->shape[0]; e++) {
        t.data = from->data + (size_t)e * sizeof(float);
        rc = add_named(r, &t, prefix, of, (size_t)e, end);
    }
    return rc;
}

/* ---- the two parts of kv_b_proj ---- */

struct part { /* [H, rows, cols] */
    const unsigned char *data;
    size_t rows, cols, size; /* size: bytes of one number, if the part is not quantized */
    enum dtype dtype;
};

/* Fills *p. The shape of *t is [H, rows, cols], or [H rows, cols] in files of ik_llama.cpp's converter. */
static int read_part(const struct reader *r, const struct gguf_tensor *t, struct part *p)
{
    size_t H = (size_t)r->heads;
    size_t rows = t->ndim > 1 ? (size_t)t->shape[t->ndim - 2] : 0, cols = (size_t)t->shape[t->ndim - 1];
    int good = t->ndim == 3 ? t->shape[0] == r->heads : t->ndim == 2 && rows % H == 0;
    *p = (struct part){t->data, t->ndim == 3 ? rows : rows / H, cols, t->type->bytes, t->type->dtype};
    if (good)
        return VB_OK;
    return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %.*s is not one matrix for each of %lld heads", t->file,
                   (int)t->name.size, t->name.s, (long long)r->heads);
}

/* Returns the matrix of attention head h. If its numbers have `size` bytes, this is the stored matrix. Otherwise the
 * numbers are converted to f32 in `wide`. */
static const unsigned char *head_of(const struct part *p, size_t h, size_t size, float *wide)
{
    size_t numbers = p->rows * p->cols;
    const unsigned char *head = p->data + h * numbers * p->size;
    if (size == p->size)
        return head;
    struct weight_view w = {.type = p->dtype == DTYPE_F16 ? WEIGHT_F16 : WEIGHT_BF16, .data = head, .rows = 1,
                            .cols = numbers, .stride = numbers};
    decode_weights(wide, &w, 0, 0, numbers);
    return (const unsigned char *)wide;
}

#define TILE 32 /* rows and columns: small enough that cache lines read along a column are used completely */

/* Writes the transpose of from [C, N] to to [N, C]. `size` is the size of a number in bytes. */
static inline void transpose_numbers(unsigned char *to, const unsigned char *from, size_t C, size_t N, size_t size)
{
    for (size_t c0 = 0; c0 < C; c0 += TILE)
        for (size_t n0 = 0; n0 < N; n0 += TILE)
            for (size_t n = n0; n < N && n < n0 + TILE; n++)
                for (size_t c = c0; c < C && c < c0 + TILE; c++)
                    memcpy(to + (n * C + c) * size, from + (c * N + n) * size, size);
}

static void transpose(unsigned char *to, const unsigned char *from, size_t C, size_t N, size_t size)
{
    if (size == 2) /* with a constant size, the compiler turns memcpy into one move */
        transpose_numbers(to, from, C, N, 2);
    else
        transpose_numbers(to, from, C, N, 4);
}

/* Writes to [H, n + v, c]: for each attention head, the transpose of k [c, n], and then v [v, c]. */
static void join(unsigned char *to, size_t size, const struct part *k, const struct part *v, size_t heads, float *wide)
{
    size_t C = k->rows, N = k->cols;
    for (size_t h = 0; h < heads; h++) {
        transpose(to, head_of(k, h, size, wide), C, N, size);
        to += N * C * size;
        memcpy(to, head_of(v, h, size, wide), v->rows * C * size);
        to += v->rows * C * size;
    }
}

/* Sets the shape to [H rows, cols]. */
static void set_shape(struct reader *r, struct tensor *t, size_t rows, size_t cols)
{
    t->ndim = 2;
    t->shape[0] = r->heads * (int64_t)rows;
    t->shape[1] = (int64_t)cols;
    t->shape[2] = 0;
}

/* Allocates the memory for a copy of *t, with `size` bytes for each number, and sets t->data and t->bytes. Returns NULL
 * if there is no memory. */
static void *begin_copy(struct reader *r, struct tensor *t, size_t size)
{
    size_t numbers;
    if (__builtin_mul_overflow((size_t)t->shape[0], (size_t)t->shape[1], &numbers) ||
        __builtin_mul_overflow(numbers, size, &t->bytes))
        return NULL;
    void *copy = checkpoint_keep_copy(r->c, t->bytes);
    t->data = copy;
    return copy;
}

/* Adds the copy of both parts as kv_b_proj. If the parts have different types, the copy is F32, which represents both
 * types exactly. */
static int add_joined(struct reader *r, struct tensor *t, const struct part *k, const struct part *v,
                      const char *prefix)
{
    float *wide = NULL;
    set_shape(r, t, k->cols + v->rows, k->rows);
    if (k->dtype != v->dtype) {
        t->dtype = DTYPE_F32;
        strcpy(t->dtype_name, "F32");
        wide = vb_alloc(&r->c->allocator, max_size(k->cols, v->rows) * k->rows, sizeof *wide);
    }
    size_t size = t->dtype == DTYPE_F32 ? 4 : 2;
    unsigned char *copy = k->dtype == v->dtype || wide ? begin_copy(r, t, size) : NULL;
    if (copy)
        join(copy, size, k, v, (size_t)r->heads, wide);
    vb_free(&r->c->allocator, wide);
    return copy ? add_named(r, t, prefix, TENSOR_KV_B_PROJ, 0, NULL) : checkpoint_no_memory(r->c, r->err);
}

/* Adds a transposed copy of an attn_k_b that is not quantized, for use with a quantized attn_v_b. */
static int add_turned(struct reader *r, struct tensor *t, const struct part *k, const char *prefix)
{
    size_t head = k->rows * k->cols * k->size;
    set_shape(r, t, k->cols, k->rows);
    unsigned char *copy = begin_copy(r, t, k->size);
    for (size_t h = 0; copy && h < (size_t)r->heads; h++)
        transpose(copy + h * head, k->data + h * head, k->rows, k->cols, k->size);
    return copy ? add_named(r, t, prefix, TENSOR_K_B_PROJ, 0, NULL) : checkpoint_no_memory(r->c, r->err);
}

static int add_pair(struct reader *r, const struct gguf_tensor *k_b, const struct gguf_tensor *v_b, const char *prefix)
{
    struct part k, v;
    struct tensor keys, values;
    int rc = begin(r, &keys, k_b);
    if (rc || (rc = begin(r, &values, v_b)) || (rc = read_part(r, k_b, &k)) || (rc = read_part(r, v_b, &v)))
        return rc;
    if (k.rows != v.cols)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %.*s has a latent of %zu numbers, attn_v_b one of %zu",
                       keys.file, (int)k_b->name.size, k_b->name.s, k.rows, v.cols);
    if (!dtype_is_quantized(k.dtype) && !dtype_is_quantized(v.dtype))
        return add_joined(r, &keys, &k, &v, prefix);
    set_shape(r, &keys, k.rows, k.cols);
    set_shape(r, &values, v.rows, v.cols);
    rc = dtype_is_quantized(k.dtype) ? add_named(r, &keys, prefix, TENSOR_K_B_TRANSPOSED, 0, NULL)
                                     : add_turned(r, &keys, &k, prefix);
    return rc ? rc : add_named(r, &values, prefix, TENSOR_V_B_PROJ, 0, NULL);
}

/* Returns the tensor of this layer with this name, or NULL. */
static const struct gguf_tensor *in_block(const struct reader *r, const char *block, const char *rest)
{
    char name[TENSOR_MAX_NAME + 32];
    snprintf(name, sizeof name, "%s%s", block, rest);
    return gguf_find_tensor(r->g, name);
}

/* Adds attn_k_b or attn_v_b. If the layer has both and no attn_kv_b, they are added together, with the first. */
static int add_one_of_pair(struct reader *r, const struct gguf_tensor *t, const char *block, const char *rest,
                           const char *prefix)
{
    const struct gguf_tensor *k_b = in_block(r, block, tensor_names[TENSOR_K_B_TRANSPOSED].gguf);
    const struct gguf_tensor *v_b = in_block(r, block, tensor_names[TENSOR_V_B_PROJ].gguf);
    if (in_block(r, block, tensor_names[TENSOR_KV_B_PROJ].gguf) || !k_b || !v_b)
        return add_as(r, t, block, rest);
    return t == k_b ? add_pair(r, k_b, v_b, prefix) : VB_OK;
}

/* ---- names ---- */

/* Returns the tensor of a layer (or, if `layer` is 0, one outside of all layers) that GGUF calls `name`; else
 * MODEL_TENSORS. */
static enum model_tensor tensor_called(const char *name, int layer)
{
    enum model_tensor t = layer ? 0 : TENSORS_OUTSIDE, end = layer ? TENSORS_OUTSIDE : MODEL_TENSORS;
    while (t < end && (!tensor_names[t].gguf || strcmp(tensor_names[t].gguf, name)))
        t++;
    return t < end ? t : MODEL_TENSORS;
}

static int is_of_experts(enum model_tensor t) { return t >= TENSOR_EXPERT_GATE_PROJ && t <= TENSOR_EXPERT_DOWN_PROJ; }

/* If `rest` names the scale of a matrix or of its activations, adds it, sets *rc to the result, and returns 1. Else
 * returns 0. */
static int add_scale(struct reader *r, const struct gguf_tensor *t, const char *rest, const char *block,
                     const char *prefix, int *rc)
{
    static const struct {
        const char *gguf, *hf;
    } ends[] = {{".input_scale", "input_scale"}, {".scale", "weight_scale_2"}};
    char matrix[TENSOR_MAX_NAME + 16];
    struct tensor scale;
    size_t k = 0;
    while (k < COUNT(ends) && !vb_ends_with(rest, ends[k].gguf))
        k++;
    if (k == COUNT(ends))
        return 0;
    snprintf(matrix, sizeof matrix, "%.*s.weight", (int)(strlen(rest) - strlen(ends[k].gguf)), rest);
    int both = *block && !strcmp(matrix, gate_up);
    enum model_tensor of = both ? TENSOR_EXPERT_GATE_PROJ : tensor_called(matrix, *block);
    if (of == MODEL_TENSORS)
        return 0;
    if (!is_of_experts(of)) {
        *rc = begin(r, &scale, t);
        *rc = *rc ? *rc : add_named(r, &scale, prefix, of, 0, ends[k].hf);
        return 1;
    }
    *rc = add_expert_scales(r, t, in_block(r, block, matrix), prefix, of, ends[k].hf);
    if (both && !*rc)
        *rc = add_expert_scales(r, t, in_block(r, block, matrix), prefix, TENSOR_EXPERT_UP_PROJ, ends[k].hf);
    return 1;
}

/* Adds the tensor `rest` of a layer or, if `block` is empty, one outside of all layers. A tensor with an unknown name
 * keeps it. Opening the model then fails, because no part of the model uses this tensor. */
static int add_known(struct reader *r, const struct gguf_tensor *from, const char *block, const char *rest,
                     const char *prefix)
{
    enum model_tensor name = tensor_called(rest, *block);
    struct tensor t;
    int rc;
    if (*block && !strcmp(rest, gate_up))
        return add_experts(r, from, prefix, TENSOR_EXPERT_GATE_PROJ, 2);
    if (is_of_experts(name))
        return add_experts(r, from, prefix, name, 1);
    if (name == TENSOR_K_B_TRANSPOSED || name == TENSOR_V_B_PROJ)
        return add_one_of_pair(r, from, block, rest, prefix);
    if (name != MODEL_TENSORS)
        return (rc = begin(r, &t, from)) ? rc : add_named(r, &t, prefix, name, 0, NULL);
    return add_scale(r, from, rest, block, prefix, &rc) ? rc : add_as(r, from, block, rest);
}

static int add_tensor(struct reader *r, const struct gguf_tensor *t)
{
    char name[TENSOR_MAX_NAME + 1], block[32], prefix[32];
    int layer, at = 0;
    memcpy(name, t->name.s, t->name.size);
    name[t->name.size] = 0;
    if (sscanf(name, "blk.%6d.%n", &layer, &at) < 1 || !at || layer < 0)
        return add_known(r, t, "", name, "");
    snprintf(block, sizeof block, "blk.%d.", layer);
    snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    if (strncmp(name, block, (size_t)at) || strlen(block) != (size_t)at) /* names such as blk.+1. or blk.01. are unknown
                                                                          */
        return add_as(r, t, "", name);
    return add_known(r, t, block, name + at, prefix);
}

int checkpoint_from_gguf(struct checkpoint **out, struct gguf *g, const vb_allocator *a, vb_error *err)
{
    struct checkpoint *c = NULL;
    int rc = checkpoint_create(&c, gguf_path(g), a, err);
    if (rc)
        return rc;
    struct reader r = {.c = c, .g = g, .err = err};
    struct gguf_text of = {"", 0};
    char heads[64];
    gguf_string(gguf_find(g, "general.architecture"), &of);
    snprintf(heads, sizeof heads, "%.*s.attention.head_count", of.size < 32 ? (int)of.size : 32, of.s);
    if (!gguf_integer(gguf_find(g, heads), &r.heads) || r.heads < 1)
        rc = vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s is missing or no count", gguf_name(g), heads);
    c->mappings = gguf_take_mappings(g);
    for (size_t i = 0; !rc && i < gguf_tensors(g); i++)
        rc = add_tensor(&r, gguf_tensor(g, i));
    return checkpoint_finish(out, c, rc, err);
}
