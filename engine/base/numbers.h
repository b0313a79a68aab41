/* engine/base/numbers.h -- the former place of numbers/numbers.h and engine/base/seconds.h. */
#include "engine/base/seconds.h"
#include "numbers/numbers.h"
