/* engine/base/new_file.h -- writes a file so that it appears under its name only when it is complete and on the disk.
 *
 * Until then the file has a temporary name in the same directory: PATH.XXXXXXXXXXXXXXXX.part, with 16 random
 * hexadecimal digits. The file is created with O_EXCL, so nobody can put a symbolic link or another file there first. A
 * symbolic link at PATH is never followed.
 *
 * The sequence is: new_file_begin, write to `fd`, optionally new_file_name, and new_file_end. */
#ifndef VB_NEW_FILE_H
#define VB_NEW_FILE_H

#include "engine/base/support.h"

enum new_file_state {
    NEW_FILE_BEGUN,     /* the new file still has its temporary name, `part` */
    NEW_FILE_NAMED,     /* the new file has the name `path`; there was no file of that name before */
    NEW_FILE_EXCHANGED, /* the new file has the name `path`; the file that it replaced still exists as `part` */
    NEW_FILE_REPLACED   /* the new file has the name `path`; the file that it replaced has been deleted */
};

struct new_file {
    const vb_allocator *allocator;
    const char *path;          /* owned by the caller */
    char *part;                /* the temporary name, in memory of the allocator */
    int fd, replace;
    enum new_file_state state;
};

/* Creates the file under its temporary name, open for reading and writing. If `replace` is 0, an existing file is never
 * replaced: new_file_begin fails if a file exists at `path`, and the later renaming fails if one has appeared since. If
 * something other than a regular file is at `path`, such as a directory or a symbolic link, new_file_begin always
 * fails. */
int new_file_begin(struct new_file *f, const char *path, int replace, const vb_allocator *a, vb_error *err);
/* Calls fsync and renames the file to `path`. If until_end is 1, new_file_end can still undo the renaming and restore
 * the file that was replaced. On a file system without RENAME_EXCHANGE, the renaming deletes the replaced file at once,
 * and new_file_end cannot restore it. */
int new_file_name(struct new_file *f, int until_end, vb_error *err);
/* Closes the file and frees `part`. If `code` is VB_OK, the function renames the file to `path`, unless new_file_name
 * has done so already. If `code` is an error code, or if the renaming fails, the function deletes the new file. In
 * state NEW_FILE_REPLACED it never deletes the new file. Returns `code`, or the error code of the renaming if it
 * failed. */
int new_file_end(struct new_file *f, int code, vb_error *err);

/* Creates an empty file without a name in the directory of `path`. The file disappears when it is closed. Returns the
 * file descriptor, which the caller closes, or -1 with the reason in errno. */
int new_file_without_name(const char *path, const vb_allocator *a);

#endif
