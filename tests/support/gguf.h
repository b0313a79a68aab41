/* tests/support/gguf.h -- writes GGUF files. A test can write any content, valid or not, or a model that was opened
 * from the Hugging Face layout. It shares no code with engine/files/gguf.c, because tests use these files to check that
 * code. */
#ifndef VB_TEST_GGUF_H
#define VB_TEST_GGUF_H

#include "tests/support/engine_support.h"

/* Types of metadata values, and of tensors. */
enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };
enum { TYPE_F32 = 0, TYPE_F16 = 1, TYPE_Q4_0 = 2, TYPE_Q8_0 = 8, TYPE_Q8_1 = 9, TYPE_BF16 = 30 };

/* A buffer that grows. */
struct bytes {
    char *data;
    size_t used, room;
};

/* put appends n bytes. put_number appends the low `size` bytes of x, little-endian. put_text appends a string as GGUF
 * stores it: its length in 8 bytes, then its bytes. */
void put(struct bytes *b, const void *data, size_t n);
void put_number(struct bytes *b, uint64_t x, size_t size);
void put_text(struct bytes *b, const char *s);

/* A file that is being written. Before the first call, the test sets all members to 0, and then `alignment` and
 * `without` if it needs them. */
struct gguf_writer {
    struct bytes keys, infos, data; /* the three parts of the file */
    uint64_t n_keys, n_tensors;
    size_t alignment;    /* of tensors; 0: 32 */
    const char *without; /* the name of a key that is left out; NULL: none */
    size_t keep;         /* while `dropping` is set: the offset in `keys` of the key that is left out */
    int dropping;
    const char *architecture; /* replaces "deepseek2" at the beginning of keys, also of `without`; NULL: nothing does */
};

/* ---- metadata ---- */

/* If the newest key is the one that `without` names, removes it. key() and gguf_bytes() call this function. */
void end_dropping(struct gguf_writer *w);

/* Writes the name and type of a key. The caller then appends the value to w->keys. */
void key(struct gguf_writer *w, const char *name, uint32_t type);

/* Write keys with their values. After key_array, the caller appends the `count` elements of the array to w->keys. */
void key_number(struct gguf_writer *w, const char *name, uint32_t type, uint64_t x);
void key_u32(struct gguf_writer *w, const char *name, int64_t x);
void key_string(struct gguf_writer *w, const char *name, const char *s);
void key_array(struct gguf_writer *w, const char *name, uint32_t type, uint64_t count);

/* ---- tensors ---- */

/* Adds a tensor. `extents` begins with the outermost dimension (GGUF stores the innermost one first). */
void tensor(struct gguf_writer *w, const char *name, uint32_t type, int ndim, const size_t *extents, const void *data,
            size_t bytes);

/* gguf_bytes returns the bytes of the finished file, which the caller frees. gguf_write writes these bytes to DIR/NAME.
 * Both leave the writer empty. */
char *gguf_bytes(struct gguf_writer *w, size_t *size);
void gguf_write(struct gguf_writer *w, const char *dir, const char *name);

/* ---- the file of a model ---- */

/* How a model is written. Converters of GGUF files differ in these points. For each value of each member, there is a
 * converter that writes files in this way. */
struct gguf_choice {
    /* 1: matrices are written as F32. 0: they keep their stored type, but FP8 becomes F32, which is exact */
    int all_f32;
    int unsplit;      /* 1: one tensor attn_kv_b instead of attn_k_b and attn_v_b, as older converters write it */
    int flat;         /* 1: attn_k_b and attn_v_b have two dimensions, as the converter of ik_llama.cpp writes them */
    int mixed;        /* 1: attn_v_b is F32, even if attn_k_b has another type */
    int no_groups;    /* 1: the keys expert_group_count and expert_group_used_count are missing */
    int no_gating;    /* 1: the key expert_gating_func is missing */
    int fused;        /* 1: one tensor ffn_gate_up_exps instead of ffn_gate_exps and ffn_up_exps */
    int no_types;     /* 1: the key attention.indexer.types is missing */
    size_t alignment; /* the alignment of tensors; 0: the key general.alignment is missing, and the alignment is 32 */
    const char *tokenizer; /* the directory of a tokenizer that is written to the file; NULL: the file has no
                              tokenizer */
};

/* put_matrix writes a tensor with the name PREFIX NAME ".weight", and put_vector one with the name PREFIX NAME. */
void put_matrix(struct gguf_writer *w, const char *prefix, const char *name, const struct weight_view *v, int all_f32);
void put_vector(struct gguf_writer *w, const char *prefix, const char *name, const float *v, size_t n);

/* put_layer writes the tensors of layer `index`, and put_model those of the whole model. */
void put_layer(struct gguf_writer *w, const struct config *c, const struct layer *l, int index,
               const struct gguf_choice *o);
void put_model(struct gguf_writer *w, const vb_model *m, const struct gguf_choice *o);

#define OF "deepseek2." /* the prefix of the architecture's keys, unless the writer has another architecture */

/* Writes the keys for the config. */
void put_config(struct gguf_writer *w, const vb_model *m, const struct gguf_choice *o);

/* Writes the keys for the tokenizer in `dir`, padded to `padded_to` tokens. `pre` is the value of tokenizer.ggml.pre.
 * The ids of BOS and EOS, 0 and 1, come from put_config. */
void put_tokenizer(struct gguf_writer *w, const char *dir, const char *pre, size_t padded_to);

/* Writes a whole model to DIR/NAME. */
void write_model(const char *dir, const char *name, const vb_model *m, const struct gguf_choice *o);

#endif
