/* tests/support/fail_memory.c -- preloaded into `verbatim serve` (LD_PRELOAD): allocations fail when a test says so,
 * those of shared libraries too. FAIL_MEMORY names a file of four 64-bit numbers, which the test maps and changes while
 * the server runs:
 *
 *   next     how many allocations succeed before one fails
 *   burst    how many fail then, one after the other
 *   calls    how many allocations there were
 *   alive    how many blocks are in use
 *
 * Works on top of the AddressSanitizer of gcc, too. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct control {
    atomic_long next, burst, calls, alive;
};

static struct control *control;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("FAIL_MEMORY");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (map != MAP_FAILED)
        control = map;
}

/* Real functions: AddressSanitizer's where it is there, else those of glibc. */
#define ASAN(type, name, parameters) extern type __interceptor_##name parameters __attribute__((weak))
ASAN(void *, malloc, (size_t));
ASAN(void *, calloc, (size_t, size_t));
ASAN(void *, realloc, (void *, size_t));
ASAN(void *, memalign, (size_t, size_t));
ASAN(void, free, (void *));
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);
#define REAL(name) (__interceptor_##name ? __interceptor_##name : __libc_##name)

static int no_memory(void)
{
    if (!control)
        return 0;
    control->calls++;
    long next = control->next--;
    if (next > 0 || next <= -control->burst)
        return 0;
    errno = ENOMEM;
    return 1;
}

static void *made(void *block)
{
    if (control && block)
        control->alive++;
    return block;
}

void *malloc(size_t size) { return no_memory() ? NULL : made(REAL(malloc)(size)); }
void *calloc(size_t n, size_t size) { return no_memory() ? NULL : made(REAL(calloc)(n, size)); }
void *memalign(size_t to, size_t size) { return no_memory() ? NULL : made(REAL(memalign)(to, size)); }
void *aligned_alloc(size_t to, size_t size) { return memalign(to, size); }

int posix_memalign(void **out, size_t to, size_t size)
{
    void *block = memalign(to, size);
    *out = block ? block : *out;
    return block ? 0 : ENOMEM;
}

void *realloc(void *block, size_t size)
{
    if (no_memory())
        return NULL;
    void *moved = REAL(realloc)(block, size);
    return block ? moved : made(moved);
}

void free(void *block)
{
    if (control && block)
        control->alive--;
    REAL(free)(block);
}
