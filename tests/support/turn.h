/* tests/support/turn.h -- `make test` tries a share of the cases of a long sweep, and each commit has another share's
 * turn. The environment variable VERBATIM_TURN is a number that tests/tests.mk makes of the commit, so that a run can
 * be repeated. Without it, as in `make test-all`, `make mistakes`, and a program started by hand, every case has its
 * turn. */
#ifndef VB_TEST_TURN_H
#define VB_TEST_TURN_H

#include <stddef.h>

/* Whether case `number` of a sweep is in the share that has its turn, when there are so many shares. Each case is in
 * one of `shares` shares; `shares` turns that follow each other try all. */
int has_turn(size_t number, size_t shares);

#endif
