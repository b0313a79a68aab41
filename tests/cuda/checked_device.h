/* tests/cuda/checked_device.h -- the device that tests of kernels use. */
#ifndef VB_CHECKED_DEVICE_H
#define VB_CHECKED_DEVICE_H

#include <stdlib.h>
#include <string.h>

#include "ops/cuda/driver.h"
#include "tests/cuda/emulator.h"
#include "tests/support/test.h"

/* Opens an emulated device, or the GPU that the environment variable CHECKCUDA_DEVICE names: so `make gpu-check` runs
 * the same tests on a GPU. */
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

/* A GPU that has failed computes nothing any more: this is said, and not only that results differ. */
static inline void close_checked_device(struct device *d)
{
    char failure[sizeof d->failure] = "";
    if (device_wait(d))
        memcpy(failure, d->failure, sizeof failure);
    device_close(d);
    if (*failure)
        fail_msg("%s", failure);
}

static inline int is_emulated(void) { return !getenv("CHECKCUDA_DEVICE"); }

static inline void set_order(struct device *d, int order)
{
    if (is_emulated())
        emulator_order(d, (enum emulator_order)order, 1);
}

#endif
