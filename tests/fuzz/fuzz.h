/* tests/fuzz/fuzz.h -- helpers that all fuzz targets use. */
#ifndef VB_TEST_FUZZ_H
#define VB_TEST_FUZZ_H

#include "engine/base/utf8.h"
#include "engine/verbatim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Every fuzz target defines this function. libFuzzer calls it, or tests/fuzz/fuzz_main.c. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the process, which the fuzzer counts as a crash, if the condition is false. */
static inline void demand(int truth)
{
    if (!truth)
        abort();
}

/* Checks a return code and its error message, which must be one line of UTF-8 without control characters. Returns the code. */
static inline int check(int rc, const vb_error *err)
{
    demand(rc == VB_OK || (rc < 0 && rc == err->code && err->message[0]));
    for (const char *c = err->message; rc && *c; c++)
        demand((unsigned char)*c >= 0x20 && *c != 0x7f);
    demand(!rc || utf8_valid(err->message, strlen(err->message)) == strlen(err->message));
    return rc;
}

/* Creates a file in memory and sets `path` to a name under which it can be opened. Returns its descriptor, which the caller
 * closes. */
static inline int memory_file(char path[64], const uint8_t *bytes, size_t size)
{
    int fd = memfd_create("fuzz", 0);
    demand(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

/* Discards what the command prints on stderr. The reports of sanitizers still appear, because they do not use this FILE. */
static inline void be_silent(void)
{
    FILE *nowhere = fopen("/dev/null", "w");
    demand(nowhere != NULL);
    stderr = nowhere;
}

#endif
