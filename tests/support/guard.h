/* tests/support/guard.h -- the protection for a page that the code under test must not touch.
 *
 * A masked vector load does not read the elements that its mask leaves out, and our kernels read the ends of arrays
 * with such loads. qemu, at least up to version 7.2, reads the whole vector. Under qemu the guard pages are therefore
 * readable: a test then notices only writes to them, and prints one line that says so. */
#ifndef VB_TEST_GUARD_H
#define VB_TEST_GUARD_H

/* Returns PROT_NONE, or PROT_READ if masked loads read the whole vector on this machine. */
int guard_protection(void);

#endif
