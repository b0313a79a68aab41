/* tests/support/runs.h -- for tests of `verbatim train`: a folder for each test, texts, and files of runs. */
#ifndef VB_TEST_RUNS_H
#define VB_TEST_RUNS_H

#include "tests/support/cli.h"

#define MTP3 TINY "v3-mtp3"
#define TALE "golden/tale"

/* Options for short runs. */
#define SMALL "--seq-length", "24", "--batch-tokens", "64", "--log-interval", "1", "--eval-prompts", "1"

/* The folder of the present test, from runs_begin to runs_end. */
extern char runs_dir[64];
int runs_begin(void **unused);
int runs_end(void **unused);
#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, runs_begin, runs_end)

/* The path of a file in the folder. It is valid for the next seven calls. */
const char *run_file(const char *name);
void remove_tree(const char *path);

/* Texts of random tokens of a tiny vocabulary, as JSON Lines. */
void write_data(const char *name, int documents, uint32_t seed);
void write_masked_data(const char *name, int documents, uint32_t seed); /* with loss masks */

int same_file(const char *a, const char *b);
void expect_same_file(const char *a, const char *b);

#endif
