/* engine/base/options.c -- structs of a program that was compiled with another version of the public headers. */
#include "engine/base/options.h"

#include "engine/base/support.h"

#include <string.h>

#define LARGEST 65536 /* bytes that no struct will ever have. A member `size` that was not initialised has more */

static int is_zero(const unsigned char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (bytes[i])
            return 0;
    return 1;
}

int options_copy(void *to, size_t known, size_t first, const void *options, const char *type, vb_error *err)
{
    size_t size = 0;
    if (options)
        memcpy(&size, options, sizeof size);
    if (size && (size < first || size > LARGEST))
        return vb_fail(err, VB_BAD_ARGUMENT, "%s.size is %zu, wanted 0 or the size of the struct, at least %zu", type,
                       size, first);
    if (size > known && !is_zero((const unsigned char *)options + known, size - known))
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "%s.size is %zu, and libverbatim %s knows %zu bytes: a member after them is not 0", type, size,
                       VB_VERSION, known);
    memset(to, 0, known);
    if (options)
        memcpy(to, options, !size ? first : size < known ? size : known);
    memcpy(to, &known, sizeof known);
    return VB_OK;
}

int options_reserved(const void *reserved, size_t size, const char *type, vb_error *err)
{
    if (is_zero(reserved, size))
        return VB_OK;
    return vb_fail(err, VB_BAD_ARGUMENT, "%s.reserved is not 0: libverbatim %s has no members there", type, VB_VERSION);
}

void struct_fill(void *to, size_t size, const void *from, size_t known)
{
    memcpy(to, from, size < known ? size : known);
    if (size > known)
        memset((unsigned char *)to + known, 0, size - known);
}
