/* tests/support/client.h -- for tests that use the library as a client does: verbatim.h is the only header of the
 * engine here. */
#ifndef VB_TEST_CLIENT_H
#define VB_TEST_CLIENT_H

#include "engine/verbatim.h"
#include "tests/support/test.h"

extern vb_error err; /* the error of the newest call */

/* The code must be VB_OK; else the test fails with the message of err. */
void ok(int code);
/* The code must be `wanted`, and the message of err must contain `part`. */
void refused(int code, int wanted, const char *part);

#endif
