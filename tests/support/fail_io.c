/* tests/support/fail_io.c -- preloaded into the program (LD_PRELOAD): one call that reads or writes a file fails, or
 * all from one on.
 *
 *   FAIL_UNDER   only calls on files whose path begins so are counted
 *   FAIL_AT      the number of the call, from 1
 *   FAIL_HOW     error    it fails: reading and syncing with EIO, all else with ENOSPC
 *                full     the same, and so does every later call that needs room
 *                half     a read or a write does half of what was asked; nothing else is counted
 *                end      a read finds the end of the file; nothing else is counted
 *                kill     SIGKILL ends the program before the call
 *                memory   malloc, calloc and realloc are counted instead, and that one gives NULL
 *   FAIL_RENAME  old      renameat2 fails with EINVAL, as on a file system that does not know its flags (NFS)
 *                simple   link fails too, with EPERM, as on a file system without hard links (FAT). Nothing else fails
 *   FAIL_COPY    copy_file_range fails with EXDEV, as between two file systems
 *   FAIL_LOG     a file that is made when the call has failed; FAIL_LOG.synced is made when a file has been synced
 *
 * Syncing a directory is not counted: it comes when the file has its name, and may fail. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum how { NEVER, ERROR, FULL, HALF, END, MEMORY, KILL };
enum kind { READS, WRITES, SYNCS, NAMES }; /* NAMES: makes, renames, reserves */

static const char *under, *log_path;
static long fail_at;
static enum how how;
static int old_rename, no_links;
static atomic_long calls;

__attribute__((constructor)) static void begin(void)
{
    static const char *const names[] = {"never", "error", "full", "half", "end", "memory", "kill"};
    const char *name = getenv("FAIL_HOW"), *at = getenv("FAIL_AT"), *rename = getenv("FAIL_RENAME");
    no_links = rename && !strcmp(rename, "simple");
    old_rename = no_links || (rename && !strcmp(rename, "old"));
    under = getenv("FAIL_UNDER");
    log_path = getenv("FAIL_LOG");
    fail_at = at ? atol(at) : 0;
    for (int i = 0; i < 7 && name && under && log_path; i++)
        how = strcmp(name, names[i]) ? how : (enum how)i;
}

static void tell(const char *ending)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s", log_path, ending);
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT, 0600);
    if (fd >= 0)
        syscall(SYS_close, fd);
}

static int is_it(enum kind kind)
{
    if (how == HALF ? kind > WRITES : how == END ? kind != READS : 0)
        return 0;
    long n = ++calls;
    int now = n == fail_at || (how == FULL && n > fail_at && (kind == WRITES || kind == NAMES));
    if (n == fail_at)
        tell("");
    if (how == KILL) {
        if (n == fail_at)
            kill(getpid(), SIGKILL);
        return 0;
    }
    if (now)
        errno = kind == READS || kind == SYNCS ? EIO : ENOSPC;
    return now;
}

static int fails_at_path(const char *path, enum kind kind)
{
    return how && how != MEMORY && !strncmp(path, under, strlen(under)) && is_it(kind);
}

static int fails(int fd, enum kind kind)
{
    char link[64], path[4096];
    if (!how || how == MEMORY)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    return fails_at_path(path, kind);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* -1: as it is; else what a call for `size` bytes shall do. */
static ssize_t how_much(size_t size) { return how == HALF ? (ssize_t)((size + 1) / 2) : how == END ? 0 : -1; }

#define TRANSFER(name, kind, type, parameters, arguments)            \
    ssize_t name parameters                                          \
    {                                                                \
        if (fails(fd, kind)) {                                       \
            if (how_much(size) <= 0)                                 \
                return how_much(size);                               \
            size = (size_t)how_much(size);                           \
        }                                                            \
        return REAL(name) arguments;                                 \
    }
TRANSFER(read, READS, void *, (int fd, void *data, size_t size), (fd, data, size))
TRANSFER(write, WRITES, const void *, (int fd, const void *data, size_t size), (fd, data, size))
TRANSFER(pread, READS, void *, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
TRANSFER(pwrite, WRITES, const void *, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))

static int sync_fails(int fd)
{
    struct stat st;
    if (!how || fstat(fd, &st) || !S_ISREG(st.st_mode))
        return 0;
    tell(".synced");
    return fails(fd, SYNCS);
}

int fsync(int fd) { return sync_fails(fd) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return sync_fails(fd) ? -1 : REAL(fdatasync)(fd); }
int ftruncate(int fd, off_t size) { return fails(fd, SYNCS) ? -1 : REAL(ftruncate)(fd, size); }
int fallocate(int fd, int mode, off_t at, off_t size)
{
    return fails(fd, NAMES) ? -1 : REAL(fallocate)(fd, mode, at, size);
}
int rename(const char *from, const char *to) { return fails_at_path(to, NAMES) ? -1 : REAL(rename)(from, to); }
int link(const char *from, const char *to)
{
    if (no_links)
        return errno = EPERM, -1;
    return fails_at_path(to, NAMES) ? -1 : REAL(link)(from, to);
}
int mkdir(const char *path, mode_t mode) { return fails_at_path(path, NAMES) ? -1 : REAL(mkdir)(path, mode); }

ssize_t copy_file_range(int in, off_t *in_at, int out, off_t *out_at, size_t size, unsigned flags)
{
    return getenv("FAIL_COPY") ? (errno = EXDEV, -1) : REAL(copy_file_range)(in, in_at, out, out_at, size, flags);
}

/* Taking back a change of names needs no room. */
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    if (old_rename && flags)
        return errno = EINVAL, -1;
    return !(how == FULL && calls >= fail_at) && fails_at_path(to, NAMES)
               ? -1
               : REAL(renameat2)(from_dir, from, to_dir, to, flags);
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return flags & O_CREAT && fails_at_path(path, NAMES) ? -1 : REAL(open)(path, flags, mode);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

static int no_memory(void)
{
    if (how != MEMORY || ++calls != fail_at)
        return 0;
    tell("");
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) { return no_memory() ? NULL : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return no_memory() ? NULL : __libc_calloc(n, size); }
void *realloc(void *block, size_t size) { return no_memory() ? NULL : __libc_realloc(block, size); }
