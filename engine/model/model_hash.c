/* engine/model/model_hash.c -- a hash of all weights, at the speed of memory or of the disk. */
#include "engine/base/hash64.h"
#include "numbers/numbers.h"
#include "engine/model/model.h"
#include "ops/op.h"

#include <string.h>

#define PIECE ((size_t)1 << 20) /* bytes that one thread hashes at a time: the result does not depend on the threads */

struct hashing {
    const struct tensor *t;
    uint64_t *pieces; /* [pieces of the largest tensor] */
};

static size_t pieces_of(const struct tensor *t) { return (t->bytes + PIECE - 1) / PIECE; }

static void hash_piece(void *arg, size_t task, int thread)
{
    const struct hashing *h = arg;
    (void)thread;
    h->pieces[task] = hash64(task, (const char *)h->t->data + task * PIECE,
                             min_size(h->t->bytes - task * PIECE, PIECE));
}

static uint64_t hash_tensor(const struct op_ctx *cx, struct hashing *h, uint64_t sum)
{
    const struct tensor *t = h->t;
    size_t pieces = pieces_of(t);
    op_parallel(cx, pieces, (double)t->bytes / 4, hash_piece, h); /* two multiplications for eight bytes */
    sum = hash64(sum, t->name, strlen(t->name));
    sum = hash64(sum, t->dtype_name, strlen(t->dtype_name));
    sum = hash64(sum, t->shape, (size_t)t->ndim * sizeof *t->shape);
    return hash64(sum, h->pieces, pieces * sizeof *h->pieces);
}

int model_hash_weights(const struct vb_model *m, int threads, uint64_t *out, vb_error *err)
{
    const struct checkpoint *c = m->checkpoint;
    struct op_ctx cx = {.threads = threads ? threads : vb_processors()};
    struct hashing h = {0};
    size_t most = 1;
    uint64_t sum = 0;
    for (size_t i = 0; i < checkpoint_count(c); i++)
        most = max_size(most, pieces_of(checkpoint_at(c, i)));
    h.pieces = vb_alloc_unset(m->allocator, most * sizeof *h.pieces);
    if (!h.pieces)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the fingerprint of %s", checkpoint_dir(c));
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        h.t = checkpoint_at(c, i);
        if (!h.t->taken || !h.t->data)
            continue;
        sum = hash_tensor(&cx, &h, sum);
        if (h.t->copied) /* the model itself does not read it again */
            checkpoint_release(c, h.t->data, h.t->bytes);
    }
    vb_free(m->allocator, h.pieces);
    *out = sum;
    return VB_OK;
}
