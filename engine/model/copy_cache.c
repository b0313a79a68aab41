/* engine/model/copy_cache.c -- keeps the copies of matrices in a file, so that the next process maps them.
 *
 * The file consists of a page with struct copies_header and then the block of all copies as it is in memory. Its name
 * depends on the model's checksum and on the copies, which the precision decides. The copies are the same for all
 * instruction sets. The header also has the sizes and the times of the last change of the model's files: the checksum
 * misses most changes of single weights.
 *
 * The bytes behind the header are not checked when the file is mapped. A file appears under its name only when it is
 * complete and on the disk. Processes that write it at the same time write the same bytes. */
#include "engine/base/hash64.h"
#include "engine/base/new_file.h"
#include "engine/model/model_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ops/weights.h"

#define LAYOUT 4          /* to be increased when the bytes of a copy change: panels, rounding, quantization, numbers of
                             types */
#define HEADER_BYTES 4096 /* the copies begin at the second page */

static const char magic[16] = "verbatim copies";

struct copies_header {
    char magic[16];
    uint64_t layout, identity, stamp, bytes; /* bytes: of the block of copies */
    uint64_t hash;                           /* of the fields above */
};

static uint64_t hash_of(const struct copies_header *h)
{
    return hash64(LAYOUT, h, offsetof(struct copies_header, hash));
}

static uint64_t hash_number(uint64_t seed, uint64_t number) { return hash64(seed, &number, sizeof number); }

/* Returns a hash of the checkpoint and of everything that decides the bytes of the copies. */
static uint64_t identity_of(const struct vb_model *m)
{
    uint64_t id = hash_number(checkpoint_fingerprint(m->checkpoint), LAYOUT);
    for (size_t i = 0; i < m->num_copies; i++) {
        const struct model_copy *c = &m->copies[i];
        const uint64_t numbers[] = {c->result.type, c->result.rows, c->result.cols, (uint64_t)c->result.panels,
                                    c->head_rows, c->head_stride, c->first, (uint64_t)c->transposed, c->at};
        id = hash64(id, c->tensor->name, strlen(c->tensor->name));
        id = hash64(id, numbers, sizeof numbers);
    }
    if (m->ranks) /* the copies contain only a rank's share */
        id = hash64(hash_number(id, (uint64_t)m->ranks->op.rank), m->ranks->before,
                    ((size_t)m->ranks->op.count + 1) * sizeof *m->ranks->before);
    return id;
}

static struct copies_header header_of(const struct vb_model *m)
{
    struct copies_header h = {.layout = LAYOUT, .identity = identity_of(m), .stamp = checkpoint_stamp(m->checkpoint),
                              .bytes = m->copied_bytes};
    memcpy(h.magic, magic, sizeof magic);
    h.hash = hash_of(&h);
    return h;
}

/* Returns "DIR/copies-IDENTITY.verbatim", in memory of the model's allocator, or NULL. */
static char *path_of(const struct vb_model *m, const char *dir, uint64_t identity)
{
    char name[48];
    snprintf(name, sizeof name, "copies-%016" PRIx64 ".verbatim", identity);
    return vb_path(m->allocator, dir, name);
}

enum state { ABSENT, GOOD, REPLACEABLE, FOREIGN };

static void note(struct vb_model *m, const char *path, const char *what)
{
    snprintf(m->cache_note, sizeof m->cache_note, "%.160s: %s", path, what);
}

/* Reads the header. Notes why a file cannot be used. */
static enum state look(struct vb_model *m, const char *path, const struct copies_header *want)
{
    struct copies_header h;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT)
        return ABSENT;
    if (fd < 0 && errno != ELOOP) { /* ELOOP: a symbolic link */
        note(m, path, strerror(errno));
        return FOREIGN;
    }
    ssize_t n = fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) ? -1 : pread(fd, &h, sizeof h, 0);
    if (fd >= 0)
        close(fd);
    if (n < (ssize_t)sizeof h.magic || memcmp(h.magic, magic, sizeof magic)) {
        note(m, path, "no file of copied weights, it is left alone");
        return FOREIGN;
    }
    if (n < (ssize_t)sizeof h || h.hash != hash_of(&h) || (uint64_t)st.st_size != HEADER_BYTES + h.bytes)
        note(m, path, "damaged, it is written again");
    else if (memcmp(&h, want, sizeof h))
        note(m, path, "made from other files, it is written again");
    else
        return GOOD;
    return REPLACEABLE;
}

const unsigned char *copy_cache_map(const struct binder *b)
{
    struct vb_model *m = b->m;
    struct copies_header want = header_of(m);
    char *path = path_of(m, b->o->repack_cache, want.identity);
    enum state state = path ? look(m, path, &want) : FOREIGN;
    m->cache_replace = state == REPLACEABLE;
    m->cache = state == GOOD ? CACHE_MAPPED : state == FOREIGN ? CACHE_UNUSED : CACHE_WANTED;
    if (state == GOOD &&
        (mapping_open(&m->cache_file, path, path, "copies", m->allocator, NULL) ||
         m->cache_file->size != HEADER_BYTES + want.bytes || memcmp(m->cache_file->data, &want, sizeof want))) {
        note(m, path, "cannot be mapped");
        m->cache = CACHE_UNUSED;
    }
    vb_free(m->allocator, path);
    return m->cache == CACHE_MAPPED ? (const unsigned char *)m->cache_file->data + HEADER_BYTES : NULL;
}

static int write_file(const struct vb_model *m, const char *path, const struct copies_header *h, vb_error *err)
{
    struct new_file f;
    unsigned char page[HEADER_BYTES] = {0};
    int rc = new_file_begin(&f, path, m->cache_replace, m->allocator, err);
    if (rc)
        return rc;
    memcpy(page, h, sizeof *h);
    int why = vb_write_all(f.fd, page, sizeof page);
    why = why ? why : vb_write_all(f.fd, m->copied, m->copied_bytes);
    rc = why ? vb_fail(err, VB_IO, "%s: %s", path, strerror(why)) : VB_OK;
    return new_file_end(&f, rc, err);
}

void copy_cache_write(const struct binder *b)
{
    struct vb_model *m = b->m;
    struct copies_header h = header_of(m);
    vb_error err = {0};
    char *path = path_of(m, b->o->repack_cache, h.identity);
    int rc = path ? write_file(m, path, &h, &err) : VB_NO_MEMORY;
    int there = !rc || (path && look(m, path, &h) == GOOD); /* another process may have written it meanwhile */
    m->cache = there ? CACHE_WRITTEN : CACHE_UNUSED;
    if (!there)
        snprintf(m->cache_note, sizeof m->cache_note, "%.200s, it is not kept", path ? err.message : "no memory");
    vb_free(m->allocator, path);
}
