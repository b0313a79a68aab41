/* tests/support/test.h -- cmocka with the headers that it needs, and two macros for all tests. */
#ifndef VB_TEST_TEST_H
#define VB_TEST_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

#endif
