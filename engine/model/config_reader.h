/* engine/model/config_reader.h -- reads typed values from a config.json and reports errors in them.
 *
 * The readers of a model's configuration and of a draft head's configuration share these functions. */
#ifndef VB_CONFIG_READER_H
#define VB_CONFIG_READER_H

#include "engine/model/config.h"
#include "engine/base/json.h"

#include <math.h>

#define NONE NAN     /* in the table of keys, as a default: the key has no default; as the value for null: the key must
                        not be null */
#define DIM 16777216 /* largest dimension, 2^24: a product of two dimensions, or a sum of a few such products, fits 64
                        bits */

enum config_kind { INTEGER, BOOLEAN, REAL, SCORING, TOPK };

struct config_reader {
    struct config *c;
    json_t *root;
    const char *name; /* file name for error messages */
    vb_error *err;
    int scales_queries; /* 1: the RoPE settings of the family have llama_4_scaling_beta (Mistral 4) */
};

/* Does what config_parse does, but from a JSON object that is already parsed. */
int config_from_json(struct config *out, json_t *root, const char *generation, size_t generation_size, const char *name,
                     vb_error *err);

/* Replaces the keys of Mistral's params.json by those of a config.json (config_params.c). `name` is the file name for
 * error messages. */
int config_convert_params(json_t *root, const char *name, vb_error *err);

/* Returns VB_BAD_CHECKPOINT with the message "FILE: KEY is VALUE, wanted WHAT". `inside` is the name of the object that
 * has the key, or NULL for the top level; the message writes both as INSIDE.KEY. */
int config_bad(const struct config_reader *r, const char *inside, const char *key, const json_t *value,
               const char *wanted);
/* Returns VB_UNSUPPORTED with the message "FILE: KEY VALUE is not supported, only KNOWN". */
int config_unsupported(const struct config_reader *r, const char *inside, const char *key, const json_t *value,
                       const char *known);

/* Checks that `value` has type `kind` and lies in [least, most], and writes it to *out. Returns VB_BAD_CHECKPOINT if
 * the type is wrong or the value is out of range. */
int config_number(const struct config_reader *r, const char *inside, const char *key, const json_t *value,
                  enum config_kind kind, double least, double most, double *out);
/* Checks a key for which only one value, `wanted`, is supported. A missing key is accepted as well, unless `needed`
 * is 1. */
int config_must_be(const struct config_reader *r, const char *inside, const json_t *object, const char *key,
                   const char *wanted, int needed);
/* Returns 0 if `value` switches a feature off: it is missing (NULL), null, false, 0, or an empty object or list.
 * Returns 1 for every other value. */
int config_switched_on(const json_t *value);

/* Returns why models of this architecture are refused, or NULL if the architecture is not one of those that users are
 * likely to try. `name` has `size` bytes. If `gguf` is 1, it is general.architecture of a GGUF file, otherwise a name
 * of config.json. */
const char *config_why_refused(const char *name, size_t size, int gguf);

/* Returns the JSON object with the RoPE settings: rope_scaling in old files, rope_parameters in new ones. */
json_t *config_rope_object(const struct config_reader *r);
int config_read_rope(const struct config_reader *r);
int config_read_quantization(const struct config_reader *r);
/* Reads the description of a model that ModelSlim has quantized, if the directory has one (config_modelslim.c). Returns
 * VB_UNSUPPORTED, with a message that names the first such matrix, if the scheme of a matrix is not supported. */
int config_read_description(struct config *c, const char *dir, const vb_allocator *a, vb_error *err);
/* Reads which layers are shared, for a model with an indexer, and checks the sizes of the indexer
 * (config_indexer.c). */
int config_read_indexer(const struct config_reader *r);

#endif
