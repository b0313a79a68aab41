/* engine/open.c -- the public functions about a model. */
#include <string.h>

#include "../simd/fpenv.h"
#include "model.h"

int vb_model_open(vb_model **out, const char *dir, const vb_model_options *options, vb_error *err)
{
    const char *precision = options && options->precision ? options->precision : "f32";
    *out = NULL;
    if (strcmp(precision, "f32"))
        return vb_fail(err, VB_BAD_ARGUMENT, "unknown precision %s; known is f32", precision);
    struct fpenv env = fpenv_enter();
    int code = model_open(out, dir, options ? &options->allocator : NULL, err);
    fpenv_leave(env);
    return code;
}

void vb_model_close(vb_model *model) { model_close(model); }
int32_t vb_vocab_size(const vb_model *model) { return model->config.vocab_size; }
int32_t vb_hidden_size(const vb_model *model) { return model->config.hidden_size; }
int32_t vb_mtp_modules(const vb_model *model) { return model->num_mtp; }
int32_t vb_max_positions(const vb_model *model) { return model->config.max_position_embeddings; }

int vb_is_end_token(const vb_model *model, int32_t token)
{
    for (int i = 0; i < model->config.num_eos; i++)
        if (model->config.eos_token_ids[i] == token)
            return 1;
    return 0;
}
