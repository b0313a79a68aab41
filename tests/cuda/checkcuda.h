/* tests/cuda/checkcuda.h -- compares operators on an emulated device with the same operators on the CPU, bit by bit. */
#ifndef VB_CHECKCUDA_H
#define VB_CHECKCUDA_H

#include "tests/cuda/checked_device.h"
#include "tests/ops/checkops.h"

/* A loop over orders of blocks and lanes: `d` is an emulated device that runs them so. A GPU has an order of its own. */
#define FOR_EACH_ORDER(d)                                                                                                          \
    for (struct device *d = open_checked_device(), *d##_ = d; d##_; device_close(d), d##_ = NULL)                                   \
        for (int order_ = 0; order_ < (is_emulated() ? 3 : 1) && (set_order(d, order_), 1); order_++)

/* A buffer for tests (checkops.h: guarded memory) with a twin. The twin has the same contents. */
static inline void *with_twin(struct device *d, void *buffer, size_t bytes)
{
    device_remove(d, buffer);
    assert_int_equal(device_add_copy(d, buffer, bytes), 0);
    return buffer;
}

#endif
