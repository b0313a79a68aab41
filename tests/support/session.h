/* tests/support/session.h -- repairs the checksums of a session file with any content. So tests reach the code that
 * runs after the checksums are checked (format: engine/pass/session_file.h). */
#ifndef VB_TEST_SESSION_H
#define VB_TEST_SESSION_H

#include <stddef.h>
#include <stdint.h>

#define SESSION_HEAD 224
#define SESSION_TABLE 72
#define SESSION_SECTIONS 6

/* Changes the sizes in the section table so that the sections fill the file: a size that is too large is reduced, and
 * the last section gets all bytes that remain. Then writes all checksums. size must be at least SESSION_HEAD. */
void make_checksums_fit(uint8_t *bytes, size_t size);

#endif
