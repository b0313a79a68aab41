/* tests/support/cli_files.h -- for tests of options that read and write files: files in the directory of the running
 * test. */
#ifndef VB_TEST_CLI_FILES_H
#define VB_TEST_CLI_FILES_H

#include "tests/support/cli.h"
#include "tests/support/temp_dir.h"

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, make_test_dir, remove_test_dir)

/* The path of the file NAME. It stays valid until the next call with the same i, from 0 to 7. */
const char *in_dir(int i, const char *name);

/* The run must have ended with exit code 0. Releases s. */
void done(struct said s);

void expect_equal_files(const char *a, const char *b);

#endif
