/* tests/support/thread_stacks.c -- is linked to the tests of a build with ThreadSanitizer, which takes most of a small stack for
 * itself: whoever asks for less gets 8 MB. */
#include <dlfcn.h>
#include <pthread.h>

#define ENOUGH ((size_t)8 << 20)

int pthread_attr_setstacksize(pthread_attr_t *attr, size_t size)
{
    int (*set)(pthread_attr_t *, size_t);
    *(void **)&set = dlsym(RTLD_NEXT, "pthread_attr_setstacksize");
    return set(attr, size < ENOUGH ? ENOUGH : size);
}
