/* engine/base/new_file.c -- creates a file under a name that nobody can guess, and renames it later. */
#include "engine/base/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOM 32 /* bytes by which the temporary name is longer than `path` */

static int fail(const struct new_file *f, vb_error *err)
{
    return vb_fail(err, VB_IO, "%s: %s", f->path, strerror(errno));
}

/* Writes a temporary name to `part`, and creates the file. `part` has room for the length of `path` plus ROOM bytes. */
static int create(char *part, const char *path)
{
    uint64_t random;
    int fd = -1;
    for (int tries = 0; tries < 100 && fd < 0; tries++) {
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
            return -1;
        sprintf(part, "%s.%016llx.part", path, (unsigned long long)random);
        fd = open(part, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    return fd;
}

int new_file_begin(struct new_file *f, const char *path, int replace, const vb_allocator *a, vb_error *err)
{
    struct stat st;
    *f = (struct new_file){.allocator = a, .path = path, .fd = -1, .replace = replace};
    if (!lstat(path, &st) && !S_ISREG(st.st_mode))
        return vb_fail(err, VB_IO, "%s: it exists, and is no file that could be replaced", path);
    if (!lstat(path, &st) && !replace)
        return vb_fail(err, VB_IO, "%s: it exists, and nobody asked for it to be replaced", path);
    f->part = vb_alloc(a, strlen(path) + ROOM, 1);
    if (!f->part)
        return vb_fail(err, VB_NO_MEMORY, "%s: no memory for writing it", path);
    f->fd = create(f->part, path);
    return f->fd < 0 ? new_file_end(f, fail(f, err), err) : VB_OK;
}

/* Renames part to path, but fails with EEXIST if a file exists at `path` by now. */
static int rename_to_free(const struct new_file *f)
{
    struct stat st;
    if (!renameat2(AT_FDCWD, f->part, AT_FDCWD, f->path, RENAME_NOREPLACE))
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (!link(f->part, f->path)) /* the file system has no RENAME_NOREPLACE; an example is NFS */
        return unlink(f->part);
    if (errno == EEXIST || !lstat(f->path, &st))
        return errno = EEXIST, -1;
    return rename(f->part, f->path);
}

/* Renames the file. Returns the new state, or -1 on error. */
static int put_in_place(const struct new_file *f, int until_end)
{
    if (!f->replace)
        return rename_to_free(f) ? -1 : NEW_FILE_NAMED;
    if (until_end && !renameat2(AT_FDCWD, f->part, AT_FDCWD, f->path, RENAME_EXCHANGE))
        return NEW_FILE_EXCHANGED;
    if (until_end && errno == ENOENT && !rename_to_free(f))
        return NEW_FILE_NAMED;
    return rename(f->part, f->path) ? -1 : NEW_FILE_REPLACED;
}

int new_file_name(struct new_file *f, int until_end, vb_error *err)
{
    int state = fsync(f->fd) ? -1 : put_in_place(f, until_end);
    if (state < 0)
        return fail(f, err);
    f->state = (enum new_file_state)state;
    return VB_OK;
}

/* Writes the new name to the disk. Errors are ignored, because the file is complete and has its name. */
static void sync_directory(const struct new_file *f)
{
    char *slash = strrchr(f->part, '/'); /* `part` may be overwritten, since the temporary name is no longer needed */
    if (slash)
        slash[1] = '\0';
    int fd = open(slash ? f->part : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

static void take_back(const struct new_file *f)
{
    if (f->state == NEW_FILE_EXCHANGED)
        renameat2(AT_FDCWD, f->part, AT_FDCWD, f->path, RENAME_EXCHANGE);
    if (f->state != NEW_FILE_REPLACED)
        unlink(f->state == NEW_FILE_NAMED ? f->path : f->part);
}

int new_file_end(struct new_file *f, int code, vb_error *err)
{
    if (!code && f->state == NEW_FILE_BEGUN)
        code = new_file_name(f, 0, err);
    if (f->fd >= 0) {
        if (code)
            take_back(f);
        else if (f->state == NEW_FILE_EXCHANGED)
            unlink(f->part);
        if (!code)
            sync_directory(f);
        close(f->fd);
    }
    f->fd = -1;
    vb_free(f->allocator, f->part);
    f->part = NULL;
    return code;
}

int new_file_without_name(const char *path, const vb_allocator *a)
{
    char *part = vb_alloc(a, strlen(path) + ROOM, 1);
    int fd = part ? create(part, path) : -1;
    if (fd >= 0)
        unlink(part);
    vb_free(a, part);
    return fd;
}
