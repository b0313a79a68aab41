/* engine/export/gguf_write_internal.h -- what the files of the GGUF writer share: the header while it grows. */
#ifndef VB_GGUF_WRITE_INTERNAL_H
#define VB_GGUF_WRITE_INTERNAL_H

#include "engine/files/gguf.h"
#include "engine/export/gguf_write.h"

struct gguf_bytes {
    const vb_allocator *a;
    unsigned char *data;
    size_t size, room;
    uint64_t keys; /* written so far */
    int failed;    /* there was no memory: what is here is of no use */
};

void gguf_put(struct gguf_bytes *b, const void *data, size_t size);
void gguf_put_number(struct gguf_bytes *b, uint64_t x, size_t bytes);
void gguf_put_text(struct gguf_bytes *b, const char *s, size_t size);

void gguf_put_key(struct gguf_bytes *b, const char *key, enum gguf_type type);
void gguf_put_u32(struct gguf_bytes *b, const char *key, int64_t x);
void gguf_put_bool(struct gguf_bytes *b, const char *key, int x);
void gguf_put_string(struct gguf_bytes *b, const char *key, const char *s);
void gguf_put_array(struct gguf_bytes *b, const char *key, enum gguf_type type, uint64_t count);

/* The gate, up or down matrix (`which` 0, 1, 2) of expert e. */
static inline const struct weight_view *gguf_expert_matrix(const struct mlp *experts, size_t e, int which)
{
    return which == 0 ? &experts[e].gate_proj : which == 1 ? &experts[e].up_proj : &experts[e].down_proj;
}

void gguf_note(struct gguf_plan *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
int gguf_no_memory(const struct model *m, vb_error *err);

/* gguf_write_config.c */
int gguf_put_config(struct gguf_bytes *b, const struct model *m, const struct gguf_write_options *o, vb_error *err);
/* gguf_write_tokenizer.c: the tokenizer, or that there is none, and the special ids. */
int gguf_put_tokenizer(struct gguf_bytes *b, struct gguf_plan *p, const char *dir, vb_error *err);
/* gguf_write_tensors.c: p->tensors, without memory for data. */
int gguf_plan_tensors(struct gguf_plan *p, const struct gguf_write_options *o, vb_error *err);

#endif
