/* tests/support/fuzz.c -- for fuzz targets: checks that abort, files in memory. */
#include "tests/support/fuzz.h"

#include "engine/base/utf8.h"

#include <sys/mman.h>

void demand(int truth)
{
    if (!truth)
        abort();
}

int check(int rc, const vb_error *err)
{
    demand(rc == VB_OK || (rc < 0 && rc == err->code && err->message[0]));
    for (const char *c = err->message; rc && *c; c++)
        demand((unsigned char)*c >= 0x20 && *c != 0x7f);
    demand(!rc || utf8_valid(err->message, strlen(err->message)) == strlen(err->message));
    return rc;
}

int memory_file(char path[64], const uint8_t *bytes, size_t size)
{
    int fd = memfd_create("fuzz", 0);
    demand(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

void encode_both_ways(const struct vb_tokenizer *t, const char *text, size_t size)
{
    for (int special = 0; special < 2; special++) {
        int32_t *ids;
        size_t n, piece_size;
        vb_error err;
        if (tokenizer_encode(t, text, size, special, &ids, &n, &err))
            continue;
        for (size_t i = 0; i < n; i++)
            demand(tokenizer_piece(t, ids[i], &piece_size) != NULL);
        vb_free(NULL, ids);
    }
}

void be_silent(void)
{
    FILE *nowhere = fopen("/dev/null", "w");
    demand(nowhere != NULL);
    stderr = nowhere;
}
