/* engine/base/decimal.h -- decimal numbers with a point, whatever the locale of the process has instead. */
#ifndef VB_DECIMAL_H
#define VB_DECIMAL_H

#include <stdarg.h>
#include <stddef.h>

/* strtod of the C locale. */
double decimal_parse(const char *s, char **end);

/* snprintf and vsnprintf of the C locale. */
int decimal_print(char *out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
int decimal_vprint(char *out, size_t size, const char *format, va_list args) __attribute__((format(printf, 3, 0)));

#endif
