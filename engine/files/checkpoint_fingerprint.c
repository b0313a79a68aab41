/* engine/files/checkpoint_fingerprint.c -- a checksum that tells two checkpoints apart without reading all of them. */
#include "engine/files/checkpoint_internal.h"
#include "engine/base/hash64.h"
#include "numbers/numbers.h"
#include "engine/base/crc64.h"

#include <string.h>

#define PLACES 256 /* number of places in the matrices whose bytes are read */
#define BYTES 64   /* bytes that are read at each place */

static size_t matrix_bytes(const struct tensor *t) { return t->ndim > 1 && t->data ? t->bytes : 0; }

/* Adds the bytes at some places of matrix *t to the checksum. Place j is byte j * total / PLACES of all matrices
 * together; *t begins at byte `begin`. Places outside *t are skipped. */
static uint64_t look_at(const struct crc64 *crc, uint64_t sum, const struct tensor *t, size_t begin, size_t total)
{
    for (uint64_t j = 0; j < PLACES; j++) {
        size_t place = (size_t)((double)total / PLACES * (double)j);
        if (place < begin || place - begin >= t->bytes)
            continue;
        size_t rest = t->bytes - (place - begin);
        sum = crc64(crc, sum, (const char *)t->data + (place - begin), min_size(rest, BYTES));
    }
    return sum;
}

uint64_t checkpoint_fingerprint(const struct checkpoint *c)
{
    struct crc64 crc;
    uint64_t sum = 0;
    size_t total = 0, begin = 0;
    crc64_open(&crc);
    checkpoint_read_ahead(c, 0);
    for (size_t i = 0; i < checkpoint_count(c); i++)
        total += matrix_bytes(checkpoint_at(c, i));
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct tensor *t = checkpoint_at(c, i);
        sum = crc64(&crc, sum, t->name, strlen(t->name) + 1);
        sum = crc64(&crc, sum, t->dtype_name, strlen(t->dtype_name) + 1);
        sum = crc64(&crc, sum, t->shape, (size_t)t->ndim * sizeof *t->shape);
        if (matrix_bytes(t))
            sum = look_at(&crc, sum, t, begin, total);
        else if (t->data)
            sum = crc64(&crc, sum, t->data, t->bytes);
        begin += matrix_bytes(t);
    }
    checkpoint_read_ahead(c, 1);
    return sum;
}

uint64_t checkpoint_stamp(const struct checkpoint *c)
{
    uint64_t stamp = 0;
    for (const struct mapping *m = c->mappings; m; m = m->next) {
        const uint64_t file[] = {m->size, m->changed};
        stamp = hash64(stamp, file, sizeof file);
    }
    return stamp;
}
