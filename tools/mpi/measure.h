/* tools/mpi/measure.h -- how fast this rank reads memory, for `--ranks-weights measured`. */
#ifndef VB_MPI_MEASURE_H
#define VB_MPI_MEASURE_H

#include <stdint.h>

/* Reads a block of 256 MB with `threads` threads for a fifth of a second, and returns the speed in MB/s, at least 1.
 * Ranks of one machine should measure at the same time, because they share its memory. Returns 0 if there is no memory
 * for the block. */
uint32_t measure_read_speed(int threads);

#endif
