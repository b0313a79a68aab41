/* tests/fuzz/fuzz_safetensors.c -- the safetensors header. The input is a whole file; odd sizes also stand for one that
 * is longer than what is at hand, as when only the beginning was read. Every entry that comes out must lie inside the
 * file, in order, and its shape must make its bytes. */
#include "engine/files/checkpoint.h"
#include "tests/support/fuzz.h"

struct seen {
    size_t file_size, at;
    int first;
};

static int see(void *context, const struct safetensors_entry *e, vb_error *err)
{
    static const size_t item[] = {4, 2, 2, 1};
    struct seen *s = context;
    size_t numbers = 1;
    (void)err;
    demand(e->begin >= 8 && e->begin <= e->end && e->end <= s->file_size);
    demand(s->first || e->begin == s->at);
    demand(e->tensor.name[0] && strlen(e->tensor.name) <= TENSOR_MAX_NAME && e->tensor.bytes == e->end - e->begin);
    demand(e->tensor.ndim >= 0 && e->tensor.ndim <= TENSOR_MAX_DIMS);
    for (int d = 0; d < e->tensor.ndim; d++)
        numbers *= (size_t)e->tensor.shape[d];
    demand(e->tensor.dtype == DTYPE_OTHER || numbers * item[e->tensor.dtype] == e->tensor.bytes);
    s->at = e->end;
    s->first = 0;
    return VB_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct seen s = {.file_size = size + (size % 2 ? 4096 : 0), .first = 1};
    vb_error err = {0};
    int rc = safetensors_parse((const char *)data, size, s.file_size, "fuzz", see, &s, NULL, &err);
    demand(rc == err.code);
    demand(check(rc, &err) || s.first || s.at == s.file_size);
    return 0;
}
