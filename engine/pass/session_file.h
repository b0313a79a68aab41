/* engine/pass/session_file.h -- the file that a session is saved to: a header, sections one after the other, checksums.
 *
 *     0     8   89 'V' 'B' 'S' 0D 0A 1A 0A: what a copy as text would change is in it, as in PNG's
 *     8     4   version, 1. Another one is refused before anything else is looked at
 *     12    4   0x01020304: all numbers are as the machine that wrote them has them, f32 and two's complement
 *     16    6 x 8   bytes of the file; tokens; rows of the target's cache, fewer than tokens; struct vb_session's `prompt` and
 *                   `given`; context
 *     64    2 x 4   layers; numbers in a row, c + r
 *     72    6 x 24  of each section: name, 8 bytes, padded with 0; bytes; CRC-64/XZ (crc64.h)
 *     216   8   CRC-64/XZ of all before it
 *     224       about    lines KEY=VALUE: what `session info` tells, and whether the drafter's state can be used
 *               model    lines KEY=VALUE which the model must have too (session/identity.c)
 *               tokens   i32 [tokens]
 *               output   {i32 token, i32 how often} ascending: those that penalties count as output
 *               cache    f32 [layers, rows, c + r]: latents and rotated keys in natural order, by index, whatever slots and
 *                        packing the session that wrote them had: nothing here depends on an instruction set
 *               drafter  the draft method's own; mtp_save.c
 *
 * Sections lie side by side and every byte belongs to one of them or to the header: what is changed anywhere is noticed.
 * Whoever reads nevertheless checks each number, since a checksum can be made to fit. */
#ifndef VB_SESSION_FILE_H
#define VB_SESSION_FILE_H

#include "engine/base/crc64.h"
#include "engine/base/new_file.h"
#include "engine/pass/kvcache.h"

#define SESSION_VERSION 1
#define SESSION_TEXT_ROOM 32768 /* bytes of a section of lines at most, the 0 behind them included */

enum session_section { SECTION_ABOUT, SECTION_MODEL, SECTION_TOKENS, SECTION_OUTPUT, SECTION_CACHE, SECTION_DRAFTER, SECTIONS };

struct session_head {
    uint32_t version, layers, width;
    uint64_t bytes, tokens, rows, prompt, given, context;
    struct {
        uint64_t size, crc;
    } section[SECTIONS];
};

/* ---- writing: errors are kept until session_file_end ---- */

struct session_writer {
    struct session_head head; /* the caller's: all but bytes and sections */
    const vb_allocator *allocator;
    struct new_file file;
    int error;                /* errno's, of the first failure; 0: none */
    int section;              /* the one being written; -1: none yet */
    unsigned char *buffer;
    size_t used;
    struct crc64 crc;
};

/* Begins the file as new_file_begin does. */
int session_file_begin(struct session_writer *w, const char *path, int replace, const vb_allocator *a, vb_error *err);
/* Sections are written in the order of the enum, each once. */
void session_file_section(struct session_writer *w, enum session_section section);
void session_write(struct session_writer *w, const void *data, size_t size);
static inline void session_write_u64(struct session_writer *w, uint64_t value) { session_write(w, &value, sizeof value); }
/* The first `rows` rows of a layer, unpacked: `width` numbers of each, at most kvpool.row. */
void session_write_rows(struct session_writer *w, const struct kvcache *cache, size_t layer, size_t rows, size_t width);
/* Puts the file in its place when it is whole and on the disk; on an error (`code` is the caller's, with *err filled) it is
 * removed. Returns the code. */
int session_file_end(struct session_writer *w, int code, vb_error *err);

/* ---- reading ---- */

struct session_reader {
    struct session_head head;
    const vb_allocator *allocator;
    const char *path;
    int fd, section;
    uint64_t left, sum;       /* of the section: bytes not read yet, checksum so far */
    uint64_t done;            /* bytes of the file read so far */
    int error;                /* errno's */
    unsigned char *buffer;
    size_t at, used;
    struct crc64 crc;
};

/* Opens it and checks the header: what it is, its version, byte order, sizes. */
int session_reader_open(struct session_reader *r, const char *path, const vb_allocator *a, vb_error *err);
void session_reader_close(struct session_reader *r);
/* Sections are read in their order, and each is ended. */
void session_read_section(struct session_reader *r, enum session_section section);
/* 0; or -1 when the section ends before that or the file cannot be read: then `data` is zeros. */
int session_read(struct session_reader *r, void *data, size_t size);
static inline uint64_t session_read_u64(struct session_reader *r)
{
    uint64_t value;
    return session_read(r, &value, sizeof value) ? 0 : value;
}
/* The next `rows` rows of `width` numbers, packed into a layer, slots[0..rows). */
int session_read_rows(struct session_reader *r, const struct kvcache *cache, size_t layer, size_t rows, size_t width);
/* Reads what is left of the section and compares its checksum. `code`: what the caller found wrong with it, told in *err;
 * damage is told in its place, being the reason. Returns the code. */
int session_section_end(struct session_reader *r, int code, vb_error *err);

/* A section of lines, from its begin to its end, as a string in memory of the reader's allocator. */
int session_read_lines(struct session_reader *r, enum session_section section, char **text, vb_error *err);
/* The value of `key` in such lines: *size bytes, or NULL. */
const char *session_line(const char *text, const char *key, size_t *size);

/* VB_BAD_CHECKPOINT: "PATH is WHAT". */
int session_bad(const struct session_reader *r, vb_error *err, const char *what);

#endif
