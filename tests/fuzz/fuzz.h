/* tests/fuzz/fuzz.h -- what fuzz targets share. */
#ifndef VB_TEST_FUZZ_H
#define VB_TEST_FUZZ_H

#include "engine/base/utf8.h"
#include "engine/verbatim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The target: libFuzzer calls it, or tests/fuzz/fuzz_main.c. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void demand(int truth)
{
    if (!truth)
        abort();
}

/* A result and its sentence: one line of UTF-8 without control characters. */
static inline int check(int rc, const vb_error *err)
{
    demand(rc == VB_OK || (rc < 0 && rc == err->code && err->message[0]));
    for (const char *c = err->message; rc && *c; c++)
        demand((unsigned char)*c >= 0x20 && *c != 0x7f);
    demand(!rc || utf8_valid(err->message, strlen(err->message)) == strlen(err->message));
    return rc;
}

/* A file that lives in memory, by a path that can be opened; close its descriptor when done. */
static inline int memory_file(char path[64], const uint8_t *bytes, size_t size)
{
    int fd = memfd_create("fuzz", 0);
    demand(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

/* What the command says is not looked at. A sanitizer does not print through this FILE. */
static inline void be_silent(void)
{
    FILE *nowhere = fopen("/dev/null", "w");
    demand(nowhere != NULL);
    stderr = nowhere;
}

#endif
