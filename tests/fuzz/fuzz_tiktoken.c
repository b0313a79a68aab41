/* tests/fuzz/fuzz_tiktoken.c -- any bytes as tiktoken.model, or as tekken.json if they begin with '{': opening it and
 * encoding with it must end in a result or in one sentence. In golden/tiktoken/fuzz.seed, a 0 byte stands between
 * tiktoken.model and tokenizer_config.json; golden/tekken/fuzz.seed is a tekken.json. */
#include "tests/support/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "<|reserved_token_700|>Hello w\u00f6rld\u00a0 12345 it'S\r\n\t\u90a3\u5e74 ABC\u6c49def "
                               "\U0001f44d\U0001f3fd!?  x word.   ";
    static const char config[] = "{\"tokenizer_class\":\"TikTokenTokenizer\"}";
    struct vb_tokenizer *t;
    vb_error err;
    const char *zero = size ? memchr(data, 0, size) : NULL, *beside = zero ? zero + 1 : config;
    size_t model_size = zero ? (size_t)(zero - (const char *)data) : size,
           beside_size = zero ? size - model_size - 1 : sizeof config - 1;
    int rc = size && *data == '{' ? tokenizer_parse_tekken(&t, (const char *)data, size, "tekken.json", NULL, &err)
                                  : tokenizer_parse_tiktoken(&t, (const char *)data, model_size, beside, beside_size,
                                                             "tiktoken.model", NULL, &err);
    if (check(rc, &err))
        return 0;
    encode_both_ways(t, text, sizeof text - 1);
    tokenizer_close(t);
    return 0;
}
