/* engine/base/new_file.h -- a file that gets its name when it is whole and on the disk, and not before.
 *
 * It is written under another name in the same directory: PATH.XXXXXXXXXXXXXXXX.part, 16 random hexadecimal digits, made with
 * O_EXCL, so that nobody can put a link or a file of their own there first. A link at PATH is never followed. */
#ifndef VB_NEW_FILE_H
#define VB_NEW_FILE_H

#include "engine/base/support.h"

enum new_file_state {
    NEW_FILE_BEGUN,     /* it has the name `part` */
    NEW_FILE_NAMED,     /* it has the name `path`, which was free */
    NEW_FILE_EXCHANGED, /* it has the name `path`; the file that was replaced has the name `part` */
    NEW_FILE_REPLACED   /* it has the name `path`; the file that was replaced is gone */
};

struct new_file {
    const vb_allocator *allocator;
    const char *path;          /* the caller's */
    char *part;                /* the name until the file is whole */
    int fd, replace;
    enum new_file_state state;
};

/* Creates the file, open for reading and writing. Without `replace` a file at `path` is refused, now and when the new one gets its
 * name; what is neither a regular file nor absent is always refused. */
int new_file_begin(struct new_file *f, const char *path, int replace, const vb_allocator *a, vb_error *err);
/* Gives the file its name after fsync. until_end: new_file_end can still take it back, and then the file that was replaced is there
 * again (not on file systems without RENAME_EXCHANGE). */
int new_file_name(struct new_file *f, int until_end, vb_error *err);
/* Closes it. When `code` is VB_OK the file gets its name, unless it has it, and stays; otherwise, and when that fails, it is removed,
 * unless it is REPLACED. Returns the code. */
int new_file_end(struct new_file *f, int code, vb_error *err);

/* The descriptor of an empty file in the directory of `path` that has no name: it is gone when it is closed. -1 is errno's. */
int new_file_without_name(const char *path, const vb_allocator *a);

#endif
