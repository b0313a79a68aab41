/* tests/support/temp_dir.c -- a temporary directory for each test. */
#include "tests/support/temp_dir.h"

#include "tests/support/files.h"

char dir[64];

int make_test_dir(void **unused)
{
    (void)unused;
    make_dir(dir);
    return 0;
}

int remove_test_dir(void **unused)
{
    (void)unused;
    remove_dir(dir);
    return 0;
}
