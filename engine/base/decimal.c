/* engine/base/decimal.c -- decimal numbers without the locale. A program that uses the library may have chosen any
 * locale, for all of its threads. */
#include "engine/base/decimal.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/* In glibc and musl this locale is a constant: newlocale allocates nothing, and nothing has to be freed. */
static locale_t c_locale(void)
{
    return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

double decimal_parse(const char *s, char **end)
{
    return strtod_l(s, end, c_locale());
}

int decimal_vprint(char *out, size_t size, const char *format, va_list args)
{
    locale_t before = uselocale(c_locale()); /* changes the locale of this thread only */
    int n = vsnprintf(out, size, format, args);
    uselocale(before);
    return n;
}

int decimal_print(char *out, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = decimal_vprint(out, size, format, args);
    va_end(args);
    return n;
}
