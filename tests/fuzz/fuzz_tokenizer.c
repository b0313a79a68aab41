/* tests/fuzz/fuzz_tokenizer.c -- any bytes as tokenizer.json: opening it and encoding with it must end in a result or
 * in one sentence. The seed is golden/tokenizer/tokenizer.json. */
#include "tests/support/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "<|begin|>Hello wörld\u00a0 12345 <think> it's\r\n\t那年夏天 \U0001f44d\U0001f3fd!?  <|left|>x word.   ";
    struct vb_tokenizer *t;
    vb_error err;
    /* an input that holds a 0 byte is two files: the second is tokenizer_config.json */
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t json_size = zero ? (size_t)(zero - data) : size;
    const char *config = zero ? (const char *)zero + 1 : NULL;
    if (check(tokenizer_parse(&t, (const char *)data, json_size, config, zero ? size - json_size - 1 : 0,
                              "tokenizer.json", NULL, &err),
              &err))
        return 0;
    encode_both_ways(t, text, sizeof text - 1);
    tokenizer_close(t);
    return 0;
}
