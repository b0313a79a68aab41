/* tools/cli/file.c -- writes the output files of commands, and handles signals that arrive meanwhile. */
#include "tools/cli/file.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static ssize_t write_stream(void *cookie, const char *bytes, size_t size)
{
    struct cli_stream *s = cookie;
    if (!s->error)
        s->error = vb_write_all(s->fd, bytes, size);
    return s->error ? 0 : (ssize_t)size;
}

static int seek_stream(void *cookie, off64_t *offset, int whence)
{
    struct cli_stream *s = cookie;
    *offset = lseek(s->fd, *offset, whence);
    if (*offset >= 0)
        return 0;
    s->error = s->error ? s->error : errno;
    return -1;
}

FILE *cli_stream_open(struct cli_stream *s, int fd)
{
    *s = (struct cli_stream){.fd = fd};
    s->f = fopencookie(s, "w", (cookie_io_functions_t){.write = write_stream, .seek = seek_stream});
    if (!s->f)
        s->error = errno ? errno : ENOMEM;
    return s->f;
}

int cli_stream_close(struct cli_stream *s)
{
    int failed = s->f && (ferror(s->f) | (fclose(s->f) != 0));
    s->f = NULL;
    if (failed && !s->error) /* writing did not fail, so the stream had no memory for its buffer */
        s->error = ENOMEM;
    return s->error;
}

int cli_stream_copy(struct cli_stream *s, FILE *to, size_t size, void (*progress)(const char *, size_t, size_t))
{
    static char block[1 << 20];
    fflush(s->f);
    for (size_t done = 0; done < size && !cli_stopped() && !s->error;) {
        ssize_t n = pread(s->fd, block, sizeof block, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? errno : EIO;
        n = (size_t)n < size - done ? n : (ssize_t)(size - done);
        fwrite(block, 1, (size_t)n, to);
        done += (size_t)n;
        if (progress)
            progress("writing", done, size);
    }
    return s->error;
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t stopped; /* the number of the signal that stops the writing */

static void stop(int signal_number) { stopped = signal_number; }

void cli_listen_to_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = stop}, was;
    for (size_t i = 0; i < 3; i++)
        if (!sigaction(signals[i], NULL, &was) && was.sa_handler != SIG_IGN) /* SIGHUP is ignored under nohup */
            sigaction(signals[i], &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* writing beyond a file size limit is then an ordinary error */
}

int cli_stopped(void) { return stopped; }

#define MOST_PARTS 4 /* the largest number of files that are written at the same time */

static const char *volatile parts[MOST_PARTS];

static void remember_part(const char *part, const char *instead_of)
{
    for (int i = 0; i < MOST_PARTS; i++)
        if (parts[i] == instead_of) {
            parts[i] = part;
            return;
        }
}

void cli_remove_parts(void)
{
    for (int i = 0; i < MOST_PARTS; i++)
        if (parts[i])
            unlink(parts[i]);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

int cli_check_file(const struct cli *c, const char *option, const char *path)
{
    struct stat st;
    if (!path || lstat(path, &st))
        return !path || errno == ENOENT ? EXIT_DONE
                                        : cli_fail(c, EXIT_OTHER, "%s %s: %s", option, path, strerror(errno));
    if (S_ISLNK(st.st_mode) && stat(path, &st))
        return EXIT_DONE; /* check_output in options.c refuses such links */
    if (S_ISDIR(st.st_mode))
        return cli_fail(c, EXIT_OTHER, "%s %s: it is a directory", option, path);
    return c->force ? EXIT_DONE : cli_fail(c, EXIT_OTHER, "%s %s: it exists, and --force is not given", option, path);
}

int cli_tell_stopped(const struct cli *c, const char *path)
{
    return cli_fail(c, EXIT_OTHER, "%s: stopped by a signal (%s); nothing was left behind", path,
                    strsignal(cli_stopped()));
}

FILE *cli_file_begin(const struct cli *c, struct cli_file *file, const char *path)
{
    vb_error err;
    cli_listen_to_signals();
    if (new_file_begin(&file->file, path, c->force, NULL, &err)) {
        cli_error(c, &err);
        return NULL;
    }
    remember_part(file->file.part, NULL);
    if (!cli_stream_open(&file->stream, file->file.fd))
        cli_file_end(c, file, NULL);
    return file->stream.f;
}

/* Returns 0 if the file is correct. Else returns an error code and describes the error in *e, or returns VB_STOPPED
 * after a signal. */
static int wrong_with(struct cli_file *file, const vb_error *err, vb_error *e)
{
    int error = cli_stream_close(&file->stream);
    if (cli_stopped() && file->file.state == NEW_FILE_BEGUN)
        return VB_STOPPED;
    if (error)
        return vb_fail(e, VB_IO, "%s: %s", file->file.path, strerror(error));
    *e = err ? *err : (vb_error){.code = VB_OK};
    return e->code;
}

static int end(const struct cli *c, struct cli_file *file, int code, vb_error *e)
{
    const char *path = file->file.path, *part = file->file.part;
    int was_stopped = code == VB_STOPPED && cli_stopped();
    code = new_file_end(&file->file, code, e);
    remember_part(NULL, part);
    return !code ? EXIT_DONE : was_stopped ? cli_tell_stopped(c, path) : cli_error(c, e);
}

int cli_file_end(const struct cli *c, struct cli_file *file, const vb_error *err)
{
    vb_error e;
    int code = wrong_with(file, err, &e);
    return end(c, file, code, &e);
}

int cli_file_name(const struct cli *c, struct cli_file *file)
{
    vb_error e;
    int code = wrong_with(file, NULL, &e);
    if (!code)
        code = new_file_name(&file->file, 1, &e);
    return code ? end(c, file, code, &e) : EXIT_DONE;
}

void cli_file_drop(struct cli_file *file)
{
    const char *part = file->file.part;
    cli_stream_close(&file->stream);
    new_file_end(&file->file, VB_STOPPED, NULL);
    remember_part(NULL, part);
}
