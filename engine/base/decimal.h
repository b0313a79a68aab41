/* engine/base/decimal.h -- reads and prints numbers with a decimal point, even if the locale of the process uses a
 * comma. */
#ifndef VB_DECIMAL_H
#define VB_DECIMAL_H

#include <stdarg.h>
#include <stddef.h>

/* Does what strtod does in the C locale. */
double decimal_parse(const char *s, char **end);

/* Do what snprintf and vsnprintf do in the C locale. */
int decimal_print(char *out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
int decimal_vprint(char *out, size_t size, const char *format, va_list args) __attribute__((format(printf, 3, 0)));

#endif
