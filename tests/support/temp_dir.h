/* tests/support/temp_dir.h -- a temporary directory for each test: cmocka's setup makes it, its teardown removes it. */
#ifndef VB_TEST_TEMP_DIR_H
#define VB_TEST_TEMP_DIR_H

extern char dir[64]; /* the directory of the running test */

/* Setup and teardown functions for cmocka_unit_test_setup_teardown. */
int make_test_dir(void **unused);
int remove_test_dir(void **unused);

#endif
