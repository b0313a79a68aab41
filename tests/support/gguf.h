/* tests/support/gguf.h -- writes GGUF files: of any content, valid or not, and of a model that was opened from the Hugging Face
 * layout. It shares no code with engine/files/gguf.c, because tests check that reader with these files. */
#ifndef VB_TEST_GGUF_H
#define VB_TEST_GGUF_H

#include "tests/support/engine_support.h"

/* Types of metadata values, and of tensors. */
enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };
enum { TYPE_F32 = 0, TYPE_F16 = 1, TYPE_Q4_0 = 2, TYPE_Q4_1 = 3, TYPE_Q8_0 = 8, TYPE_BF16 = 30 };

/* A buffer that grows. */
struct bytes {
    char *data;
    size_t used, room;
};

/* Appends bytes; the low `size` bytes of x, little-endian; a string of GGUF: its length in 8 bytes, then its bytes. */
void put(struct bytes *b, const void *data, size_t n);
void put_number(struct bytes *b, uint64_t x, size_t size);
void put_text(struct bytes *b, const char *s);

/* A file that is being written. Start with zeros; set `alignment` and `without` if wanted. */
struct gguf_writer {
    struct bytes keys, infos, data; /* the three parts of the file */
    uint64_t n_keys, n_tensors;
    size_t alignment;    /* of tensors; 0: 32 */
    const char *without; /* the key of this name is left out */
    size_t keep;         /* while `dropping`: where the key that is left out begins in `keys` */
    int dropping;
};

/* ---- metadata ---- */

/* Removes the newest key if it is the one to be left out. key() and gguf_bytes() call it. */
void end_dropping(struct gguf_writer *w);

/* Writes the name and type of a key. The caller then appends the value to w->keys. */
void key(struct gguf_writer *w, const char *name, uint32_t type);

/* Keys with their values; an array's `count` elements are appended to w->keys by the caller. */
void key_number(struct gguf_writer *w, const char *name, uint32_t type, uint64_t x);
void key_u32(struct gguf_writer *w, const char *name, int64_t x);
void key_string(struct gguf_writer *w, const char *name, const char *s);
void key_array(struct gguf_writer *w, const char *name, uint32_t type, uint64_t count);

/* ---- tensors ---- */

/* Adds a tensor. extents: outermost first (GGUF stores them innermost first). */
void tensor(struct gguf_writer *w, const char *name, uint32_t type, int ndim, const size_t *extents, const void *data,
            size_t bytes);

/* The bytes of the finished file, which the caller frees. The writer is empty afterwards. gguf_write: writes them to DIR/NAME. */
char *gguf_bytes(struct gguf_writer *w, size_t *size);
void gguf_write(struct gguf_writer *w, const char *dir, const char *name);

/* ---- the file of a model ---- */

/* How a model is written; the variants are those of different converters. */
struct gguf_choice {
    int all_f32;      /* matrices as F32. Else with the type that is stored, but FP8 as F32, which holds its values exactly */
    int unsplit;      /* one tensor attn_kv_b, as older converters write it, instead of attn_k_b and attn_v_b */
    int flat;         /* attn_k_b and attn_v_b with two dimensions, as the converter of ik_llama.cpp writes them */
    int mixed;        /* attn_v_b as F32, whatever type attn_k_b has */
    int no_groups;    /* without expert_group_count and expert_group_used_count */
    int no_gating;    /* without expert_gating_func */
    size_t alignment; /* 0: without general.alignment, which means 32 */
    const char *tokenizer; /* also write the tokenizer of this directory; NULL: none */
};

/* Tensors PREFIX NAME ".weight" and PREFIX NAME. */
void put_matrix(struct gguf_writer *w, const char *prefix, const char *name, const struct weight_view *v, int all_f32);
void put_vector(struct gguf_writer *w, const char *prefix, const char *name, const float *v, size_t n);

/* The tensors of layer `index`, and of the whole model. */
void put_layer(struct gguf_writer *w, const struct config *c, const struct layer *l, int index, const struct gguf_choice *o);
void put_model(struct gguf_writer *w, const vb_model *m, const struct gguf_choice *o);

#define OF "deepseek2." /* the prefix of the architecture's keys */

/* The keys of the config. */
void put_config(struct gguf_writer *w, const vb_model *m, const struct gguf_choice *o);

/* The keys of the tokenizer in `dir`, with `padded_to` tokens in all. `pre` is the value of tokenizer.ggml.pre. The ids of BOS
 * and EOS are written by put_config: 0 and 1. */
void put_tokenizer(struct gguf_writer *w, const char *dir, const char *pre, size_t padded_to);

/* Writes a whole model to DIR/NAME. */
void write_model(const char *dir, const char *name, const vb_model *m, const struct gguf_choice *o);

#endif
