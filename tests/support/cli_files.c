/* tests/support/cli_files.c -- files in the directory of the running test. */
#include "tests/support/cli_files.h"

const char *in_dir(int i, const char *name)
{
    static char paths[8][96];
    assert_in_range(i, 0, COUNT(paths) - 1);
    snprintf(paths[i], sizeof paths[i], "%s/%s", dir, name);
    return paths[i];
}

void done(struct said s)
{
    expect_code(&s, 0);
    forget(&s);
}

void expect_equal_files(const char *a, const char *b)
{
    size_t n, m;
    char *x = bytes_of(a, &n), *y = bytes_of(b, &m);
    if (n != m || memcmp(x, y, n))
        fail_msg("%s and %s differ", a, b);
    free(x);
    free(y);
}
