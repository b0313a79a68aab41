/* engine/export/gguf_write_internal.h -- functions that the GGUF writer's own files share, mostly for building the
 * header. */
#ifndef VB_GGUF_WRITE_INTERNAL_H
#define VB_GGUF_WRITE_INTERNAL_H

#include "engine/files/gguf.h"
#include "engine/export/gguf_write.h"

struct gguf_bytes {
    const vb_allocator *a;
    unsigned char *data;
    size_t size, room;
    const char *architecture; /* general.architecture. It is put before keys that begin with a dot */
    uint64_t keys; /* number of keys written so far */
    int failed;    /* 1: an allocation failed, so the data are incomplete */
};

void gguf_put(struct gguf_bytes *b, const void *data, size_t size);
void gguf_put_number(struct gguf_bytes *b, uint64_t x, size_t bytes);
void gguf_put_text(struct gguf_bytes *b, const char *s, size_t size);

void gguf_put_key(struct gguf_bytes *b, const char *key, enum gguf_type type);
void gguf_put_u32(struct gguf_bytes *b, const char *key, int64_t x);
void gguf_put_bool(struct gguf_bytes *b, const char *key, int x);
void gguf_put_string(struct gguf_bytes *b, const char *key, const char *s);
void gguf_put_array(struct gguf_bytes *b, const char *key, enum gguf_type type, uint64_t count);

void gguf_note(struct vb_quantize *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
int gguf_no_memory(const struct vb_model *m, vb_error *err);

/* Writes the keys that describe the configuration (defined in gguf_write_config.c). */
int gguf_put_config(struct gguf_bytes *b, const struct vb_model *m, const struct gguf_write_options *o, vb_error *err);
/* Writes the keys of the tokenizer and the ids of special tokens (defined in gguf_write_tokenizer.c). If there is no
 * tokenizer, or the format cannot express it, the keys say that there is none, and a note is added to the plan. */
int gguf_put_tokenizer(struct gguf_bytes *b, struct vb_quantize *p, const char *dir, vb_error *err);
/* Fills p->tensors: the type, place and source of every tensor (defined in gguf_write_tensors.c). */
int gguf_plan_tensors(struct vb_quantize *p, const struct gguf_write_options *o, vb_error *err);

#endif
