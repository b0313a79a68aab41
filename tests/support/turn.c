/* tests/support/turn.c -- which cases of a long sweep this run tries. */
#include <stdlib.h>

#include "tests/support/turn.h"

int has_turn(size_t number, size_t shares)
{
    const char *turn = getenv("VERBATIM_TURN");
    return !turn || !*turn || number % shares == strtoull(turn, NULL, 10) % shares;
}
