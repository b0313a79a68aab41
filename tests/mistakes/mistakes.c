/* tests/mistakes/mistakes.c -- linked to every test program of the mistakes build (ops/mistake.h). Before main it takes from the
 * environment which mistake to make and which test to run: the library reads no environment, and tests need no change.
 *
 *     VERBATIM_MISTAKE=name VERBATIM_TEST=name PROGRAM     both optional; VERBATIM_MISTAKE=list prints the names */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/mistake.h"

#define NAME(name) #name,
static const char *const names[] = {"", MISTAKES(NAME)};

enum mistake the_mistake = NO_MISTAKE;

__attribute__((constructor)) static void choose(void)
{
    const char *mistake = getenv("VERBATIM_MISTAKE"), *test = getenv("VERBATIM_TEST");
    size_t count = sizeof names / sizeof *names, i = 0;
    if (test)
        cmocka_set_test_filter(test);
    if (!mistake)
        return;
    while (i < count && strcmp(names[i], mistake))
        i++;
    if (i < count) {
        the_mistake = (enum mistake)i;
        return;
    }
    for (i = 1; i < count; i++)
        puts(names[i]);
    exit(strcmp(mistake, "list") ? 2 : 0);
}
