/* tests/support/fuzz.h -- for fuzz targets: checks that abort, files in memory. It needs no cmocka. */
#ifndef VB_TEST_FUZZ_H
#define VB_TEST_FUZZ_H

#include "engine/text/tokenizer.h"
#include "engine/verbatim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The target. libFuzzer or tests/fuzz/fuzz_main.c calls it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Aborts unless `truth`. */
void demand(int truth);

/* Returns rc, which must be VB_OK or an error code. An error needs a message: one line of UTF-8 without control
 * characters. */
int check(int rc, const vb_error *err);

/* Makes a file in memory and writes a path to it into `path`. The file is gone when the returned descriptor is
 * closed. */
int memory_file(char path[64], const uint8_t *bytes, size_t size);

/* Encodes a text with and without special tokens. If that succeeds, tokenizer_piece must know each id. */
void encode_both_ways(const struct vb_tokenizer *t, const char *text, size_t size);

/* Discards what the program prints to stderr. Reports of sanitizers still appear, because sanitizers do not use the
 * FILE stderr. */
void be_silent(void);

#endif
