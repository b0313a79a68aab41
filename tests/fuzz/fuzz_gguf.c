/* tests/fuzz/fuzz_gguf.c -- a GGUF file from memory, and all that is made of it: config, tokenizer, tensors, the bound
 * model, its copies, a few tokens. Every tensor must lie inside the file or in a copy, and its shape must make its
 * bytes; what is accepted must open, and compute numbers or say that they are none. */
#include "engine/files/gguf.h"
#include "engine/model/model.h"
#include "tests/support/fuzz.h"

static void check_tensors(const struct gguf *g, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < gguf_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor(g, i);
        size_t numbers = 1;
        for (int d = 0; d < t->ndim; d++)
            numbers *= (size_t)t->shape[d];
        demand(numbers / t->type->numbers * t->type->bytes == t->bytes && t->bytes);
        demand(t->data >= data && t->data <= data + size && t->bytes <= (size_t)(data + size - t->data));
    }
}

static unsigned read_first_and_last(const struct checkpoint *c)
{
    unsigned sum = 0;
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct tensor *t = checkpoint_at(c, i);
        sum += *(const unsigned char *)t->data + ((const unsigned char *)t->data)[t->bytes - 1];
    }
    return sum;
}

static void compute(struct vb_model *m)
{
    vb_session *s;
    vb_result r;
    vb_error err = {0};
    vb_session_options o = {.context = 5, .threads = 1, .drafting.method = m->num_mtp ? "mtp-vanilla" : "none"};
    if (m->config.max_position_embeddings < 5 || m->config.vocab_size < 3)
        return;
    demand(!check(vb_session_open(&s, m, &o, &err), &err));
    demand(!check(vb_append(s, (const int32_t[]){1, 2}, 2, &err), &err));
    int rc = check(vb_generate(s, &(vb_generate_options){.max_tokens = 3, .ignore_eos = 1}, &r, &err), &err);
    demand(!rc || rc == VB_NOT_FINITE);
    vb_session_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct config config;
    struct checkpoint *checkpoint;
    struct vb_tokenizer *tokenizer;
    struct vb_model *model;
    vb_error err = {0};
    int32_t *ids;
    size_t count;
    if (check(gguf_parse(&g, data, size, "fuzz", NULL, &err), &err))
        return 0;
    check_tensors(g, data, size);
    if (!check(tokenizer_parse_gguf(&tokenizer, g, NULL, &err), &err)) {
        if (!check(tokenizer_encode(tokenizer, "the <think> abc", 15, 1, &ids, &count, &err), &err))
            vb_free(NULL, ids);
        tokenizer_close(tokenizer);
    }
    int known = !check(config_from_gguf(&config, g, &err), &err);
    if (!check(checkpoint_from_gguf(&checkpoint, g, NULL, &err), &err)) {
        demand(read_first_and_last(checkpoint) <= 510 * checkpoint_count(checkpoint));
        config.precision = (enum precision)(data[size - 1] % 4); /* of all by turns */
        if (!known) {
            checkpoint_close(checkpoint);
        } else if (!check(model_bind(&model, &config, checkpoint, NULL, &err), &err)) {
            check(model_check(model, NULL, NULL, &err), &err);
            compute(model);
            model_close(model);
        }
    }
    gguf_close(g);
    return 0;
}
