/* ops/cuda/device.c -- what all kinds of devices share: twins of host memory, and the first failure. */
#include "ops/cuda/device.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int device_begin(struct device *d, const struct device_type *type, size_t memory)
{
    d->type = type;
    d->memory = memory;
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    int code = pthread_rwlock_init(&d->lock, NULL) || pthread_mutex_init(&d->work, &recursive);
    pthread_mutexattr_destroy(&recursive);
    return code ? -1 : 0;
}

void device_end(struct device *d)
{
    pthread_rwlock_destroy(&d->lock);
    pthread_mutex_destroy(&d->work);
    free(d->twins);
}

void device_close(struct device *d)
{
    if (d)
        d->type->close(d);
}

const char *device_failure(const struct device *d) { return *d->failure ? d->failure : NULL; }

/* Returns the number of the first twin whose range begins after this address. */
static size_t twin_after(const struct device *d, const char *host)
{
    size_t low = 0, high = d->twin_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (d->twins[middle].host <= host)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int insert(struct device *d, struct device_twin twin)
{
    if (d->twin_count == d->twin_room) {
        size_t room = d->twin_room ? 2 * d->twin_room : 256;
        struct device_twin *twins = realloc(d->twins, room * sizeof *twins);
        if (!twins)
            return -1;
        d->twins = twins;
        d->twin_room = room;
    }
    size_t at = twin_after(d, twin.host);
    assert(!at || d->twins[at - 1].host + d->twins[at - 1].bytes <= twin.host);
    assert(at == d->twin_count || twin.host + twin.bytes <= d->twins[at].host);
    memmove(d->twins + at + 1, d->twins + at, (d->twin_count - at) * sizeof *d->twins);
    d->twins[at] = twin;
    d->twin_count++;
    d->taken += twin.bytes;
    return 0;
}

int device_add(struct device *d, const void *host, size_t bytes)
{
    void *at;
    if (!bytes)
        return 0;
    if (bytes > d->memory - d->taken || d->type->allocate(d, &at, bytes)) {
        d->given = d->refused ? d->given : d->taken;
        d->refused = 1;
        return -1;
    }
    pthread_rwlock_wrlock(&d->lock);
    int code = insert(d, (struct device_twin){host, bytes, at});
    pthread_rwlock_unlock(&d->lock);
    if (code)
        d->type->release(d, at);
    return code;
}

int device_add_copy(struct device *d, const void *host, size_t bytes)
{
    if (device_add(d, host, bytes))
        return -1;
    device_write(d, host, bytes);
    return *d->failure ? -1 : 0;
}

void device_remove(struct device *d, const void *host)
{
    void *at = NULL;
    pthread_rwlock_wrlock(&d->lock);
    size_t i = twin_after(d, host);
    if (i && d->twins[i - 1].host == host) {
        at = d->twins[i - 1].at;
        d->taken -= d->twins[i - 1].bytes;
        memmove(d->twins + i - 1, d->twins + i, (d->twin_count - i) * sizeof *d->twins);
        d->twin_count--;
    }
    pthread_rwlock_unlock(&d->lock);
    if (at)
        d->type->release(d, at);
}

static char *find(struct device *d, const char *host)
{
    pthread_rwlock_rdlock(&d->lock);
    size_t i = twin_after(d, host);
    const struct device_twin *t = i ? &d->twins[i - 1] : NULL;
    char *at = t && host < t->host + t->bytes ? t->at + (host - t->host) : NULL;
    pthread_rwlock_unlock(&d->lock);
    return at;
}

void *device_at(struct device *d, const void *host)
{
    char *at = host ? find(d, host) : NULL;
    assert(at || !host);
    return at;
}

int device_has(struct device *d, const void *host) { return find(d, host) != NULL; }

/* Returns whether work can be given to the device. Then the caller ends with end_work. */
static int begin_work(struct device *d)
{
    pthread_mutex_lock(&d->work);
    if (!*d->failure)
        return 1;
    pthread_mutex_unlock(&d->work);
    return 0;
}

static void end_work(struct device *d) { pthread_mutex_unlock(&d->work); }

void device_put(struct device *d, const void *host, const void *from, size_t bytes)
{
    if (!bytes || !begin_work(d))
        return;
    assert(!d->records);
    d->type->write(d, device_at(d, host), from, bytes);
    end_work(d);
}

void device_get(struct device *d, void *to, const void *host, size_t bytes)
{
    if (!bytes || !begin_work(d))
        return;
    assert(!d->records);
    d->type->read(d, to, device_at(d, host), bytes);
    end_work(d);
}

void device_copy(struct device *d, void *to, const void *from, size_t bytes)
{
    if (!bytes || !begin_work(d))
        return;
    d->type->copy(d, device_at(d, to), device_at(d, from), bytes);
    end_work(d);
}

void device_launch(struct device *d, enum device_kernel kernel, size_t x, size_t y, size_t z, const void *args,
                   size_t size)
{
    const unsigned grid[3] = {(unsigned)x, (unsigned)y, (unsigned)z};
    if (!x || !y || !z || !begin_work(d))
        return;
    if (x > INT32_MAX || y > DEVICE_MOST_BLOCKS || z > DEVICE_MOST_BLOCKS)
        snprintf(d->failure, sizeof d->failure,
                 "%s: a kernel would need %zu x %zu x %zu blocks; compute fewer tokens in a pass", d->name, x, y, z);
    else
        d->type->launch(d, kernel, grid, args, size);
    end_work(d);
}

int device_open_gemm(struct device *d, char *message, size_t size)
{
    int code = 0;
    pthread_mutex_lock(&d->work);
    if (!d->type->open_gemm) {
        snprintf(message, size, "%s has no library of matrix products", d->name);
        code = -1;
    } else if (!d->gemm_memory) {
        code = d->type->open_gemm(d, message, size);
    }
    pthread_mutex_unlock(&d->work);
    return code;
}

void device_gemm(struct device *d, const struct gemm *g)
{
    if (!g->S || !g->N || !begin_work(d))
        return;
    assert(!d->records && d->gemm_memory);
    assert(((uintptr_t)g->w | (uintptr_t)g->x) % 16 == 0 && g->ldw % 8 == 0 && g->ldx % 8 == 0);
    d->type->gemm(d, g);
    end_work(d);
}

void device_lock(struct device *d) { pthread_mutex_lock(&d->work); }
void device_unlock(struct device *d) { pthread_mutex_unlock(&d->work); }

void device_record(struct device *d)
{
    pthread_mutex_lock(&d->work); /* until device_recorded */
    assert(!d->records);
    d->records = 1;
    if (!*d->failure)
        d->type->record(d);
}

void *device_recorded(struct device *d)
{
    void *recording = *d->failure ? NULL : d->type->recorded(d);
    d->records = 0;
    pthread_mutex_unlock(&d->work);
    return recording;
}

void device_replay(struct device *d, void *recording)
{
    if (!recording || !begin_work(d))
        return;
    d->type->replay(d, recording);
    end_work(d);
}

void device_forget(struct device *d, void *recording)
{
    if (recording)
        d->type->forget(d, recording);
}

int device_wait(struct device *d)
{
    if (begin_work(d)) {
        d->type->wait(d);
        end_work(d);
    }
    return *d->failure ? -1 : 0;
}
