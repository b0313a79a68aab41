/* tools/serve/json_memory.c -- memory for jansson: where it is missing, one request fails. */
#include "tools/serve/json_memory.h"

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>

/* Behind a number or a word jansson's parser takes back one character of its buffer, and asserts that it is the right
 * one. So the buffer has to grow to the length of a word even if memory is missing. It has 16 bytes at first and
 * doubles. Blocks of such sizes come from the reserve; another block may have the same size, so there is room for
 * several. */
#define LARGEST 128
#define IS_OF_BUFFER(size) ((size) >= 32 && (size) <= LARGEST && !((size) & ((size) - 1)))
_Static_assert(JSON_MEMORY_MOST_WORD + 2 <= LARGEST, "jansson's buffer holds a word, the character behind it, and a 0");

static _Thread_local struct {
    _Alignas(16) unsigned char bytes[4096];
    size_t used;
    int failed;
} reserve;

static void *take(size_t size)
{
    void *block = reserve.failed ? NULL : malloc(size);
    if (block)
        return block;
    reserve.failed = 1;
    if (!IS_OF_BUFFER(size) || sizeof reserve.bytes - reserve.used < size)
        return NULL;
    block = reserve.bytes + reserve.used;
    reserve.used += size;
    return block;
}

static void give(void *block)
{
    uintptr_t at = (uintptr_t)block - (uintptr_t)reserve.bytes;
    if (at >= sizeof reserve.bytes)
        free(block);
}

void json_memory_use(void) { json_set_alloc_funcs(take, give); }

void json_memory_begin(void)
{
    reserve.used = 0;
    reserve.failed = 0;
}

int json_memory_failed(void) { return reserve.failed; }
