/* engine/pass/session_file.h -- the format of the file that a session is saved to. It has a header of 224 bytes:
 *
 *     offset  size    content
 *     0       8       89 'V' 'B' 'S' 0D 0A 1A 0A
 *     8       4       version: 3 if the model has an indexer; else 1 if the cache type is f32, else 2
 *     12      4       0x01020304
 *     16      6 x 8   bytes of the file; tokens; rows of the target's cache; vb_session.prompt; vb_session.given;
 *             context
 *     64      2 x 4   layers; words of 4 bytes in a cache row: c + r if the cache type is f32 (kv_row_words)
 *     72      6 x 24  for each section: name (8 bytes, padded with 0), bytes, CRC-64/XZ (engine/base/crc64.h)
 *     216     8       CRC-64/XZ of all bytes before it
 *
 * The first 8 bytes include line ends, as in PNG files. A program that copies the file as text and converts line ends
 * would change these bytes, so the reader notices the damage. A file with another version is refused before anything
 * else is checked. All numbers have the byte order of the machine that wrote the file. The reader checks the number at
 * offset 12 to find out whether the file has the byte order of the reading machine. Floats are IEEE binary32, and
 * integers are two's complement. The cache has at least one row fewer than there are tokens, because the newest token
 * has not been computed yet.
 *
 * Six sections follow from offset 224 on:
 *
 *     about    lines KEY=VALUE that `verbatim session info` prints, or that show whether the drafter's state can be
 *              used
 *     model    lines KEY=VALUE that must be the same for the model that loads the file (engine/session/identity.c)
 *     tokens   i32 [tokens]
 *     output   {i32 token, i32 count}, ascending by token: how often each token is in the output, for penalties
 *     cache    [layers, rows, words in a row]: latents and rotated keys by index of the token; f32 in natural order,
 *              or, if the cache type is not f32, rows as ops/kv_rows.h stores them, without their padding. Since
 *              version 3: then [layers with an indexer, rows, words in a row], the index cache, as ops/indexer.h stores
 *              it
 *     drafter  the state of the draft method, in a format of its own (engine/draft/mtp_save.c)
 *
 * The cache section does not depend on the slots, the packed order or the instruction set of the session that wrote it.
 *
 * Sections follow each other without gaps, so every byte belongs to the header or to a section, and a checksum covers
 * it. The reader still checks each number, because somebody could make a file with correct checksums and wrong
 * numbers. */
#ifndef VB_SESSION_FILE_H
#define VB_SESSION_FILE_H

#include "engine/base/crc64.h"
#include "engine/base/new_file.h"
#include "engine/pass/kvcache.h"

#define SESSION_VERSION 3      /* the newest version; versions 1 and 2 can be read too */
#define SESSION_TEXT_ROOM 32768 /* largest size of the sections `about` and `model` in bytes, including a terminating
                                   0 */

enum session_section {
    SECTION_ABOUT,
    SECTION_MODEL,
    SECTION_TOKENS,
    SECTION_OUTPUT,
    SECTION_CACHE,
    SECTION_DRAFTER,
    SECTIONS
};

struct session_head {
    uint32_t version, layers, width;
    uint64_t bytes, tokens, rows, prompt, given, context;
    struct {
        uint64_t size, crc;
    } section[SECTIONS];
};

/* ---- writing: functions keep the first error, and session_file_end reports it ---- */

struct session_writer {
    struct session_head head; /* the caller fills all fields except `bytes` and `section` */
    const vb_allocator *allocator;
    struct new_file file;
    int error;                /* errno of the first failure, or 0 */
    int section;              /* the section that is being written, or -1 before the first */
    unsigned char *buffer;
    size_t used;
    struct crc64 crc;
};

/* Begins the file with new_file_begin (engine/base/new_file.h). */
int session_file_begin(struct session_writer *w, const char *path, int replace, const vb_allocator *a, vb_error *err);
/* Begins a section. All sections must be written once, in the order of the enum. */
void session_file_section(struct session_writer *w, enum session_section section);
void session_write(struct session_writer *w, const void *data, size_t size);
static inline void session_write_u64(struct session_writer *w, uint64_t value)
{
    session_write(w, &value, sizeof value);
}
/* Writes the first `rows` rows of a layer, and of each row the first `width` words of 4 bytes. Rows of type f32 are
 * written in natural order (not packed), other rows as they are stored. `width` is at most kvpool.row. */
void session_write_rows(struct session_writer *w, const struct kvcache *cache, size_t layer, size_t rows, size_t width);
/* Writes the first `rows` rows of a layer's index cache. `layer` counts the layers that have one. */
void session_write_index_rows(struct session_writer *w, const struct kvcache *cache, size_t layer, size_t rows);
/* Ends the file. If `code` is VB_OK and everything was written to the disk, the finished file appears at its path. If
 * `code` is an error, or if writing failed, the file is removed. If `code` is an error, the caller has filled *err, and
 * the function returns `code`. If writing failed, the function fills *err and returns VB_IO. */
int session_file_end(struct session_writer *w, int code, vb_error *err);

/* ---- reading ---- */

struct session_reader {
    struct session_head head;
    const vb_allocator *allocator;
    const char *path;
    int fd, section;
    uint64_t left, sum;       /* number of bytes of the section that have not been read yet; checksum of the bytes that
                                 have been read */
    uint64_t done;            /* bytes of the file that have been read */
    int error;                /* errno of a failed read, or 0 */
    unsigned char *buffer;
    size_t at, used;
    struct crc64 crc;
};

/* Opens a file and checks its header: the first bytes, version, byte order and sizes. `path` must outlive the
 * reader. */
int session_reader_open(struct session_reader *r, const char *path, const vb_allocator *a, vb_error *err);
void session_reader_close(struct session_reader *r);
/* Begins to read a section. The caller reads the sections in the order of the enum, and ends each with
 * session_section_end. */
void session_read_section(struct session_reader *r, enum session_section section);
/* Reads `size` bytes of the section. Returns 0. If the section has fewer bytes left or the file cannot be read, returns
 * -1 and fills `data` with zeros. */
int session_read(struct session_reader *r, void *data, size_t size);
static inline uint64_t session_read_u64(struct session_reader *r)
{
    uint64_t value;
    return session_read(r, &value, sizeof value) ? 0 : value;
}
/* Reads the next `rows` rows of `width` words, as session_write_rows wrote them. Row i is stored in slot
 * cache->slots[i] of the layer. Returns 0 or -1 like session_read. */
int session_read_rows(struct session_reader *r, const struct kvcache *cache, size_t layer, size_t rows, size_t width);
/* Reads the next `rows` rows, as session_write_index_rows wrote them. Returns 0 or -1 like session_read. */
int session_read_index_rows(struct session_reader *r, const struct kvcache *cache, size_t layer, size_t rows);
/* Reads the rest of the section and compares its checksum. `code` is VB_OK, or the error that the caller found in the
 * section; then the caller has filled *err. If the checksum is wrong, the function reports the wrong checksum and not
 * `code`, because the damage is probably the cause of the caller's error. Returns VB_IO if the rest cannot be read,
 * VB_BAD_CHECKPOINT if the section is damaged or cut short, and `code` otherwise. */
int session_section_end(struct session_reader *r, int code, vb_error *err);

/* Reads a whole section that consists of lines into *text. This string comes from the reader's allocator, and the
 * caller frees it. */
int session_read_lines(struct session_reader *r, enum session_section section, char **text, vb_error *err);
/* Finds the line KEY=VALUE of `key` in a text that consists of such lines. Returns the value, which does not end with a
 * 0 byte, and sets *size to its length. Returns NULL if the text does not have the key. */
const char *session_line(const char *text, const char *key, size_t *size);

/* Sets *err to VB_BAD_CHECKPOINT with the message "PATH is WHAT", where PATH is the file's path and WHAT is `what`.
 * Returns VB_BAD_CHECKPOINT. */
int session_bad(const struct session_reader *r, vb_error *err, const char *what);

#endif
