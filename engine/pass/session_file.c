/* engine/pass/session_file.c -- writes and reads the header, the sections and the checksums of a session file. */
#include "engine/pass/session_file.h"
#include "engine/pass/offload.h"
#include "numbers/numbers.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD_BYTES 224
#define CHECKED_BYTES 216 /* bytes of the header that its checksum covers */
#define BUFFER ((size_t)1 << 18)
#define BYTE_ORDER_MARK 0x01020304u

static const unsigned char magic[8] = {0x89, 'V', 'B', 'S', '\r', '\n', 0x1a, '\n'};
static const char names[SECTIONS][8] = {"about", "model", "tokens", "output", "cache", "drafter"};

/* ---- the header: the same steps for writing it and reading it ---- */

static void put(unsigned char **p, const void *value, size_t size)
{
    memcpy(*p, value, size);
    *p += size;
}

static void get(const unsigned char **p, void *value, size_t size)
{
    memcpy(value, *p, size);
    *p += size;
}

static void pack_head(unsigned char bytes[HEAD_BYTES], const struct session_head *h, const struct crc64 *crc)
{
    unsigned char *p = bytes;
    const uint32_t version = h->version, order = BYTE_ORDER_MARK;
    put(&p, magic, sizeof magic);
    put(&p, &version, sizeof version);
    put(&p, &order, sizeof order);
    const uint64_t numbers[] = {h->bytes, h->tokens, h->rows, h->prompt, h->given, h->context};
    put(&p, numbers, sizeof numbers);
    put(&p, &h->layers, sizeof h->layers);
    put(&p, &h->width, sizeof h->width);
    for (int s = 0; s < SECTIONS; s++) {
        put(&p, names[s], sizeof names[s]);
        put(&p, &h->section[s].size, sizeof h->section[s].size);
        put(&p, &h->section[s].crc, sizeof h->section[s].crc);
    }
    assert(p == bytes + CHECKED_BYTES);
    uint64_t sum = crc64(crc, 0, bytes, CHECKED_BYTES);
    put(&p, &sum, sizeof sum);
}

static int unpack_head(struct session_reader *r, const unsigned char bytes[HEAD_BYTES], uint64_t size, vb_error *err)
{
    struct session_head *h = &r->head;
    const unsigned char *p = bytes + sizeof magic;
    uint32_t order;
    uint64_t numbers[6], sum, all = HEAD_BYTES;
    get(&p, &h->version, sizeof h->version);
    get(&p, &order, sizeof order);
    if (order == 0x04030201)
        return vb_fail(err, VB_UNSUPPORTED, "%s was written by a machine of the other byte order", r->path);
    if ((h->version < 1 || h->version > SESSION_VERSION) && order == BYTE_ORDER_MARK)
        return vb_fail(err, VB_UNSUPPORTED, "%s is a session file of version %u; this program reads versions 1 to %d",
                       r->path, h->version, SESSION_VERSION);
    memcpy(&sum, bytes + CHECKED_BYTES, sizeof sum);
    if (sum != crc64(&r->crc, 0, bytes, CHECKED_BYTES))
        return session_bad(r, err, "damaged: the checksum of its header is wrong");
    get(&p, numbers, sizeof numbers);
    get(&p, &h->layers, sizeof h->layers);
    get(&p, &h->width, sizeof h->width);
    h->bytes = numbers[0], h->tokens = numbers[1], h->rows = numbers[2];
    h->prompt = numbers[3], h->given = numbers[4], h->context = numbers[5];
    int known = order == BYTE_ORDER_MARK;
    for (int s = 0; s < SECTIONS; s++) {
        char name[8];
        get(&p, name, sizeof name);
        known &= !memcmp(name, names[s], sizeof name);
        get(&p, &h->section[s].size, sizeof h->section[s].size);
        get(&p, &h->section[s].crc, sizeof h->section[s].crc);
        known &= h->section[s].size <= UINT64_MAX / 16;
        all += known ? h->section[s].size : 0;
    }
    if (!known || all != h->bytes)
        return session_bad(r, err, "wrong: its sections do not make up its bytes");
    if (size < h->bytes)
        return vb_fail(err, VB_BAD_CHECKPOINT, "%s is cut short: %llu of %llu bytes are there", r->path,
                       (unsigned long long)size, (unsigned long long)h->bytes);
    return size == h->bytes ? VB_OK : session_bad(r, err, "followed by bytes that are no part of it");
}

/* Checks that the numbers in the header are possible for a session and fit each other. Otherwise the reader could
 * allocate too little or too much memory. */
static int check_head(const struct session_reader *r, vb_error *err)
{
    const struct session_head *h = &r->head;
    uint64_t row = (uint64_t)h->width * sizeof(float), most = UINT64_MAX / 8;
    int fits = h->tokens >= 1 && h->rows < h->tokens && h->prompt <= h->tokens && h->given >= 1 &&
               h->given <= h->tokens && h->tokens <= h->context && h->context <= INT32_MAX && h->width &&
               h->width <= 1 << 24 && h->layers;
    /* At most one token has no row and is not a given token. It is the newest token, which the next round computes
     * together with the drafts. */
    if (fits)
        fits = h->tokens - (h->rows > h->given ? h->rows : h->given) <= 1;
    fits = fits && row <= most / h->layers && row * h->layers <= most / h->tokens;
    uint64_t cache = h->section[SECTION_CACHE].size, latents = fits ? h->layers * h->rows * row : 0;
    if (!fits || h->section[SECTION_TOKENS].size != h->tokens * sizeof(int32_t) ||
        (h->version < 3 ? cache != latents : cache < latents) || h->section[SECTION_OUTPUT].size % 8 ||
        h->section[SECTION_OUTPUT].size / 8 > h->tokens || h->section[SECTION_ABOUT].size >= SESSION_TEXT_ROOM ||
        h->section[SECTION_MODEL].size >= SESSION_TEXT_ROOM)
        return session_bad(r, err, "wrong: its counts of tokens and rows do not fit each other");
    return VB_OK;
}

/* ---- writing ---- */

int session_file_begin(struct session_writer *w, const char *path, int replace, const vb_allocator *a, vb_error *err)
{
    const unsigned char nothing[HEAD_BYTES] = {0};
    *w = (struct session_writer){.head = w->head, .allocator = a, .section = -1};
    int code = new_file_begin(&w->file, path, replace, a, err);
    if (code)
        return code;
    w->buffer = vb_alloc(a, BUFFER, 1);
    if (!w->buffer)
        return new_file_end(&w->file, vb_fail(err, VB_NO_MEMORY, "%s: no memory for writing it", path), err);
    crc64_open(&w->crc);
    session_write(w, nothing, sizeof nothing); /* space for the header, which session_file_end writes */
    return VB_OK;
}

static void flush(struct session_writer *w)
{
    if (!w->error)
        w->error = vb_write_all(w->file.fd, w->buffer, w->used);
    w->used = 0;
}

void session_file_section(struct session_writer *w, enum session_section section)
{
    assert((int)section == w->section + 1);
    w->section = (int)section;
}

void session_write(struct session_writer *w, const void *data, size_t size)
{
    const unsigned char *p = data;
    w->head.bytes += size;
    if (w->section >= 0) {
        w->head.section[w->section].size += size;
        w->head.section[w->section].crc = crc64(&w->crc, w->head.section[w->section].crc, data, size);
    }
    for (size_t n; size; p += n, size -= n) {
        n = BUFFER - w->used < size ? BUFFER - w->used : size;
        memcpy(w->buffer + w->used, p, n);
        w->used += n;
        if (w->used == BUFFER)
            flush(w);
    }
}

/* A file has the numbers of a packed row in natural order. */
static void write_row(struct session_writer *w, const float *packed, size_t width)
{
    float x[DOT_CHUNK];
    for (size_t k = 0, n; k < width; k += n) {
        n = min_size(width - k, DOT_CHUNK);
        for (size_t l = 0; l < n; l++)
            x[l] = packed[packed_place(k + l)];
        session_write(w, x, n * sizeof *x);
    }
}

static int read_row(struct session_reader *r, float *packed, size_t width)
{
    float x[DOT_CHUNK];
    for (size_t k = 0, n; k < width; k += n) {
        n = min_size(width - k, DOT_CHUNK);
        if (session_read(r, x, n * sizeof *x))
            return -1;
        memset(packed + k, 0, DOT_CHUNK * sizeof *packed);
        for (size_t l = 0; l < n; l++)
            packed[packed_place(k + l)] = x[l];
    }
    return 0;
}

void session_write_rows(struct session_writer *w, const struct kvcache *cache, size_t layer, size_t rows, size_t width)
{
    assert(width <= cache->pool->row);
    kvpool_fetch(cache->pool);
    for (size_t i = 0; i < rows; i++) {
        const void *row = kvcache_row(cache, layer, cache->slots[i]);
        if (cache->pool->layout.type == KV_F32)
            write_row(w, row, width);
        else
            session_write(w, row, width * 4);
    }
}

void session_write_index_rows(struct session_writer *w, const struct kvcache *cache, size_t layer, size_t rows)
{
    kvpool_fetch(cache->pool);
    for (size_t i = 0; i < rows; i++)
        session_write(w, kvcache_index_row(cache, layer, cache->slots[i]), cache->pool->layout.index_row);
}

static int read_words(struct session_reader *r, const struct kvcache *cache, char *row, size_t width)
{
    memset(row + width * 4, 0, (cache->pool->row - width) * 4);
    return session_read(r, row, width * 4);
}

int session_read_rows(struct session_reader *r, const struct kvcache *cache, size_t layer, size_t rows, size_t width)
{
    assert(width <= cache->pool->row);
    kvpool_fetch(cache->pool);
    for (size_t i = 0; i < rows; i++) {
        void *row = kvcache_row(cache, layer, cache->slots[i]);
        if (cache->pool->layout.type == KV_F32 ? read_row(r, row, width) : read_words(r, cache, row, width))
            return -1;
    }
    return 0;
}

int session_read_index_rows(struct session_reader *r, const struct kvcache *cache, size_t layer, size_t rows)
{
    kvpool_fetch(cache->pool);
    for (size_t i = 0; i < rows; i++)
        if (session_read(r, kvcache_index_row(cache, layer, cache->slots[i]), cache->pool->layout.index_row))
            return -1;
    return 0;
}

static int write_head(struct session_writer *w)
{
    unsigned char head[HEAD_BYTES];
    pack_head(head, &w->head, &w->crc);
    for (size_t done = 0; done < sizeof head;) {
        ssize_t n = pwrite(w->file.fd, head + done, sizeof head - done, (off_t)done);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            return n ? errno : EIO;
    }
    return 0;
}

int session_file_end(struct session_writer *w, int code, vb_error *err)
{
    assert(code || w->section == SECTIONS - 1);
    if (!code)
        flush(w);
    if (!code && !w->error)
        w->error = write_head(w);
    if (!code && w->error)
        code = vb_fail(err, VB_IO, "%s: %s", w->file.path, strerror(w->error));
    vb_free(w->allocator, w->buffer);
    return new_file_end(&w->file, code, err);
}

/* ---- reading ---- */

int session_bad(const struct session_reader *r, vb_error *err, const char *what)
{
    return vb_fail(err, VB_BAD_CHECKPOINT, "%s is %s", r->path, what);
}

/* Reads up to `size` bytes. Returns how many bytes the file still had, or how many were read before an error. */
static size_t read_some(struct session_reader *r, void *data, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t n = read(r->fd, (char *)data + done, size - done);
        if (n == 0)
            break;
        if (n > 0)
            done += (size_t)n;
        else if (errno != EINTR) {
            r->error = errno;
            break;
        }
    }
    return done;
}

static int read_head(struct session_reader *r, vb_error *err)
{
    unsigned char head[HEAD_BYTES];
    struct stat st;
    if (r->fd < 0 || fstat(r->fd, &st))
        return vb_fail(err, VB_IO, "%s: %s", r->path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return vb_fail(err, VB_IO, "%s: it is no file", r->path);
    size_t n = read_some(r, head, sizeof head), told = n < sizeof magic ? n : sizeof magic;
    if (r->error)
        return vb_fail(err, VB_IO, "%s: %s", r->path, strerror(r->error));
    if (!n || memcmp(head, magic, told))
        return session_bad(r, err, "no session file of Verbatim");
    if (n < sizeof head)
        return vb_fail(err, VB_BAD_CHECKPOINT, "%s is cut short: a session file begins with %d bytes, %zu are there",
                       r->path, HEAD_BYTES, n);
    r->done = HEAD_BYTES;
    int code = unpack_head(r, head, (uint64_t)st.st_size, err);
    return code ? code : check_head(r, err);
}

int session_reader_open(struct session_reader *r, const char *path, const vb_allocator *a, vb_error *err)
{
    *r = (struct session_reader){.allocator = a, .path = path, .section = -1};
    crc64_open(&r->crc);
    r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: otherwise opening a pipe would wait for a
                                                              writer */
    int code = read_head(r, err);
    if (!code) {
        r->buffer = vb_alloc(a, BUFFER, 1);
        if (!r->buffer)
            code = vb_fail(err, VB_NO_MEMORY, "%s: no memory for reading it", path);
    }
    if (code)
        session_reader_close(r);
    return code;
}

void session_reader_close(struct session_reader *r)
{
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
    vb_free(r->allocator, r->buffer);
    r->buffer = NULL;
}

void session_read_section(struct session_reader *r, enum session_section section)
{
    assert((int)section == r->section + 1);
    r->section = (int)section;
    r->left = r->head.section[section].size;
    r->sum = 0;
}

int session_read(struct session_reader *r, void *data, size_t size)
{
    char *p = data;
    int failed = r->left < size;
    for (size_t n, rest = failed ? 0 : size; rest && !failed; p += n, rest -= n) {
        if (r->at == r->used) {
            r->at = 0;
            r->used = read_some(r, r->buffer, BUFFER);
            failed = r->used == 0; /* the file has become shorter, or cannot be read */
        }
        n = r->used - r->at < rest ? r->used - r->at : rest;
        memcpy(p, r->buffer + r->at, n);
        r->at += n;
    }
    if (failed) {
        memset(data, 0, size);
        return -1;
    }
    r->left -= size;
    r->done += size;
    r->sum = crc64(&r->crc, r->sum, data, size);
    return 0;
}

int session_section_end(struct session_reader *r, int code, vb_error *err)
{
    char rest[4096];
    int unread = 0;
    while (r->left && !unread)
        unread = session_read(r, rest, r->left < sizeof rest ? (size_t)r->left : sizeof rest);
    if (unread && r->error)
        return vb_fail(err, VB_IO, "%s: %s", r->path, strerror(r->error));
    if (unread)
        return session_bad(r, err, "cut short");
    if (r->sum == r->head.section[r->section].crc)
        return code;
    return vb_fail(err, VB_BAD_CHECKPOINT, "%s is damaged: the checksum of its section %s is wrong", r->path,
                   names[r->section]);
}

int session_read_lines(struct session_reader *r, enum session_section section, char **text, vb_error *err)
{
    size_t size = (size_t)r->head.section[section].size; /* check_head made sure that this is below SESSION_TEXT_ROOM */
    int code = VB_OK;
    session_read_section(r, section);
    *text = vb_alloc(r->allocator, size + 1, 1);
    if (!*text)
        return vb_fail(err, VB_NO_MEMORY, "%s: no memory for reading it", r->path);
    session_read(r, *text, size);
    for (size_t i = 0; i < size && !code; i++)
        if (((unsigned char)(*text)[i] < 0x20 && (*text)[i] != '\n') || (*text)[i] == 0x7f)
            code = session_bad(r, err, "wrong: what should be lines is not text");
    if (!code && size && (*text)[size - 1] != '\n')
        code = session_bad(r, err, "wrong: a line has no end");
    return session_section_end(r, code, err);
}

const char *session_line(const char *text, const char *key, size_t *size)
{
    size_t length = strlen(key);
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        if (!strncmp(line, key, length) && line[length] == '=') {
            *size = strcspn(line + length + 1, "\n");
            return line + length + 1;
        }
    return NULL;
}
