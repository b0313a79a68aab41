/* tests/cuda/checked_device.h -- the device that tests of kernels use. */
#ifndef VB_CHECKED_DEVICE_H
#define VB_CHECKED_DEVICE_H

#include <stdlib.h>

#include "ops/cuda/driver.h"
#include "tests/cuda/emulator.h"
#include "tests/support/test.h"

/* Opens an emulated device, or the GPU that the environment variable CHECKCUDA_DEVICE names: so `make gpu-check` runs the same tests on a GPU. */
static inline struct device *open_checked_device(void)
{
    const char *name = getenv("CHECKCUDA_DEVICE");
    char message[256] = "";
    int number;
    if (!name)
        return emulator_open((size_t)1 << 30);
    struct device *d = driver_parse(&number, name) ? driver_open(number, message, sizeof message) : NULL;
    if (!d)
        fail_msg("%s: %s", name, message);
    return d;
}

static inline int is_emulated(void) { return !getenv("CHECKCUDA_DEVICE"); }

static inline void set_order(struct device *d, int order)
{
    if (is_emulated())
        emulator_order(d, (enum emulator_order)order, 1);
}

#endif
