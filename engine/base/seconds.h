/* engine/base/seconds.h -- a clock. */
#ifndef VB_SECONDS_H
#define VB_SECONDS_H

/* Returns the seconds since a fixed moment in the past. The result never decreases. */
double monotonic_seconds(void);

#endif
