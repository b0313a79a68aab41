/* tests/support/files.h -- temporary directories, files in them, safetensors files with any content (valid or not), and
 * an allocator that counts and can fail. */
#ifndef VB_TEST_FILES_H
#define VB_TEST_FILES_H

#include "tests/support/test.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Makes a new directory under /tmp and writes its path to `path`. */
void make_dir(char path[64]);

/* Removes a directory and the files in it. The directory must not have subdirectories. */
void remove_dir(const char *path);

/* Writes the file DIR/NAME; an existing file is replaced. */
void write_file(const char *dir, const char *name, const void *data, size_t size);
void write_text(const char *dir, const char *name, const char *text);

/* The bytes of a safetensors file: the length of `header` in 8 bytes, the header, then `size` bytes of data. Neither
 * header nor data is checked. The caller frees the result. */
char *safetensors_bytes(const char *header, const void *data, size_t size, size_t *total);
void write_safetensors(const char *dir, const char *name, const char *header, const void *data, size_t size);

/* Removes "line 1, column 7: " from a message: tests do not check the place at which the JSON parser reports an
 * error. */
void forget_place(char *message);

/* The state of an allocator (the `context` of the two functions below). Requests for memory are numbered from 0, and
 * request number `fail` gets NULL. If `fail` is -1, no request fails. */
struct counted {
    long requests, alive, fail; /* alive: blocks that were allocated and not freed */
};

void *counted_alloc(void *context, size_t size);
void counted_free(void *context, void *block);

#endif
