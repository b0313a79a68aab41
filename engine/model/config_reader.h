/* engine/model/config_reader.h -- typed values out of a config.json, and complaints about them: for the model's and for a draft head's. */
#ifndef VB_CONFIG_READER_H
#define VB_CONFIG_READER_H

#include "engine/model/config.h"
#include "engine/base/json.h"

#include <math.h>

#define NONE NAN     /* no such default: the file must say; or: null is not a value */
#define DIM 16777216 /* no dimension is more than 2^24, so that products of two, and sums of a few, fit 64 bits */

enum config_kind { INTEGER, BOOLEAN, REAL, SCORING, TOPK };

struct config_reader {
    struct config *c;
    json_t *root;
    const char *name; /* of the file, for messages */
    vb_error *err;
};

/* Reads an object that says what a config.json says. */
int config_from_json(struct config *out, json_t *root, const char *generation, size_t generation_size, const char *name,
                     vb_error *err);

/* `inside` is the object that holds the key, or NULL. FILE: KEY is VALUE, wanted WHAT. */
int config_bad(const struct config_reader *r, const char *inside, const char *key, const json_t *value, const char *wanted);
/* FILE: KEY VALUE is not supported, only KNOWN. */
int config_unsupported(const struct config_reader *r, const char *inside, const char *key, const json_t *value, const char *known);

int config_number(const struct config_reader *r, const char *inside, const char *key, const json_t *value, enum config_kind kind,
                  double least, double most, double *out);
/* A key that has one supported value; absent, it has that one (unless `needed`). */
int config_must_be(const struct config_reader *r, const char *inside, const json_t *object, const char *key, const char *wanted,
                   int needed);
/* null, false, 0 and an empty object or list switch a feature off. */
int config_switched_on(const json_t *value);

/* Old files have rope_scaling, new ones rope_parameters. */
json_t *config_rope_object(const struct config_reader *r);
int config_read_rope(const struct config_reader *r);
int config_read_quantization(const struct config_reader *r);

#endif
