/* engine/base/options.h -- structs of a program that was compiled with another version of the public headers.
 *
 * A later version of a struct has more members at its end, and never other ones before. So one of the two sides knows
 * the first members alone. What it does not know is 0, which means the default. */
#ifndef VB_OPTIONS_H
#define VB_OPTIONS_H

#include "engine/verbatim.h"

/* The size that a struct of options had in version 0.1: up to the end of the member that was the last one. It is the
 * size of a struct whose member `size` is 0. This list never changes; a struct that is new in a later version gets a
 * line. No struct may end with padding, which a later member would take. */
#define FIRST_SIZE(type, last) (offsetof(type, last) + sizeof((type *)0)->last)
#define FIRST_SIZE_OF_vb_model_options FIRST_SIZE(vb_model_options, offload)
#define FIRST_SIZE_OF_vb_offload FIRST_SIZE(vb_offload, without_experts)
#define FIRST_SIZE_OF_vb_session_options FIRST_SIZE(vb_session_options, poison_cut_rows)
#define FIRST_SIZE_OF_vb_generate_options FIRST_SIZE(vb_generate_options, stop_count)
#define FIRST_SIZE_OF_vb_batch_options FIRST_SIZE(vb_batch_options, keep_apart)
#define FIRST_SIZE_OF_vb_request FIRST_SIZE(vb_request, context)
#define FIRST_SIZE_OF_vb_file_options FIRST_SIZE(vb_file_options, progress_context)
#define FIRST_SIZE_OF_vb_quantize_options FIRST_SIZE(vb_quantize_options, head_type)
#define FIRST_SIZE_OF_vb_ranks_options FIRST_SIZE(vb_ranks_options, isa)
#define FIRST_SIZE_OF_vb_trainer_options FIRST_SIZE(vb_trainer_options, draft_vocab_size)

/* Copies a program's options to *to, a struct of the same type as this library knows it. `options` may be NULL: all
 * zeros. Returns VB_BAD_ARGUMENT if no version has a struct of this size, or if a member that this library does not
 * know is not 0. */
#define OPTIONS_COPY(to, type, options, err) options_copy(to, sizeof(type), FIRST_SIZE_OF_##type, options, #type, err)
int options_copy(void *to, size_t known, size_t first, const void *options, const char *type, vb_error *err);

/* Returns VB_BAD_ARGUMENT if the member `reserved` of a program's struct is not 0: this library is older than the
 * program. The pointer may be NULL. */
#define OPTIONS_RESERVED(type, pointer, err) \
    ((pointer) ? options_reserved((pointer)->reserved, sizeof(pointer)->reserved, #type, err) : VB_OK)
int options_reserved(const void *reserved, size_t size, const char *type, vb_error *err);

/* Fills a struct of `size` bytes of a program with what the library knows, a struct of `known` bytes. */
void struct_fill(void *to, size_t size, const void *from, size_t known);

#endif
