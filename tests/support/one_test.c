/* tests/support/one_test.c -- is linked to every test program: `VERBATIM_TEST=NAME build/tests/test_x` runs this test
 * alone. The name may be a pattern with * and ?. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

__attribute__((constructor)) static void choose_test(void)
{
    const char *name = getenv("VERBATIM_TEST");
    if (name)
        cmocka_set_test_filter(name);
}
