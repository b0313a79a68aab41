/* tests/support/client.c -- what tests of the public interface expect of a call. */
#include "tests/support/client.h"

#include <string.h>

vb_error err;

void ok(int code)
{
    if (code)
        fail_msg("%d: %s", code, err.message);
}

void refused(int code, int wanted, const char *part)
{
    assert_int_equal(code, wanted);
    assert_int_equal(err.code, wanted);
    if (!strstr(err.message, part))
        fail_msg("\"%s\" does not say \"%s\"", err.message, part);
}
