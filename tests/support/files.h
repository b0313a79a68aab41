/* tests/support/files.h -- a directory of its own for a test, and safetensors files written byte by byte, right or wrong.
 * Include after cmocka.h. */
#ifndef VB_TEST_FILES_H
#define VB_TEST_FILES_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A new directory; `path` has room for 64 bytes. */
static inline void make_dir(char path[64])
{
    strcpy(path, "/tmp/verbatim-test-XXXXXX");
    assert_non_null(mkdtemp(path));
}

static inline void remove_dir(const char *path)
{
    DIR *d = opendir(path);
    char file[512];
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            assert_int_equal(unlink(file), 0);
    }
    closedir(d);
    assert_int_equal(rmdir(path), 0);
}

static inline void write_file(const char *dir, const char *name, const void *data, size_t size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static inline void write_text(const char *dir, const char *name, const char *text)
{
    write_file(dir, name, text, strlen(text));
}

/* length of `header` | header | size bytes of data. The caller frees the result. */
static inline char *safetensors_bytes(const char *header, const void *data, size_t size, size_t *total)
{
    uint64_t n = strlen(header);
    char *bytes = malloc(8 + n + size + 1);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(n >> 8 * i);
    memcpy(bytes + 8, header, n);
    if (size)
        memcpy(bytes + 8 + n, data, size);
    *total = 8 + n + size;
    return bytes;
}

static inline void write_safetensors(const char *dir, const char *name, const char *header, const void *data, size_t size)
{
    size_t total;
    char *bytes = safetensors_bytes(header, data, size, &total);
    write_file(dir, name, bytes, total);
    free(bytes);
}

/* Cuts "line 1, column 7: " out of a message: where the JSON parser noticed is its own affair. */
static inline void forget_place(char *message)
{
    char *line = strstr(message, "line "), *end = line ? strstr(line, ": ") : NULL;
    if (end && strstr(line, ", column ") && strstr(line, ", column ") < end)
        memmove(line, end + 2, strlen(end + 2) + 1);
}

/* An allocator that counts what is alive and refuses the request number `fail` (from 0; -1: none). */
struct counted {
    long requests, alive, fail;
};

static inline void *counted_alloc(void *context, size_t size)
{
    struct counted *c = context;
    if (c->requests++ == c->fail)
        return NULL;
    c->alive++;
    return malloc(size);
}

static inline void counted_free(void *context, void *block)
{
    if (block)
        ((struct counted *)context)->alive--;
    free(block);
}

#endif
