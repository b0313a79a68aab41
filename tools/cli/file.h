/* tools/cli/file.h -- how every subcommand writes a file: engine/base/new_file.h plus a stream, signal handling and
 * error reports. */
#ifndef VB_CLI_FILE_H
#define VB_CLI_FILE_H

#include <stdio.h>

#include "engine/base/new_file.h"
#include "tools/cli/cli.h"

/* A FILE that writes to a descriptor and remembers the errno of its first failure. */
struct cli_stream {
    FILE *f;
    int fd;
    int error; /* an errno value; 0: no failure */
};
/* Returns s->f. If memory is missing, sets s->error and returns NULL. The caller keeps the descriptor and closes it
 * later. */
FILE *cli_stream_open(struct cli_stream *s, int fd);
/* Writes the buffered bytes and closes the stream. Returns s->error. */
int cli_stream_close(struct cli_stream *s);
/* Copies the first `size` bytes that were written to this stream to the stream `to`. Calls progress, unless it is NULL,
 * with the number of bytes copied so far. Stops early if cli_stopped() is nonzero. Returns 0, or the errno of a failed
 * read or of an earlier failed write to this stream. */
int cli_stream_copy(struct cli_stream *s, FILE *to, size_t size,
                    void (*progress)(const char *label, size_t done, size_t total));

/* A file that gets its name only when it is complete. While it is open, signals that would end the program only set a
 * flag. A caller that writes for a long time must check cli_stopped(), and must call cli_file_end if the result is
 * nonzero. */
struct cli_file {
    struct new_file file;
    struct cli_stream stream;
};
/* Begins a file that will be named `path`. Returns the stream of the file. If there is an error, reports it and returns
 * NULL. An existing file is replaced only with --force. */
FILE *cli_file_begin(const struct cli *c, struct cli_file *file, const char *path);
/* Completes the file and gives it its name. It fails in three cases: err is not NULL, a write has failed, or a signal
 * has come. In these cases it reports the reason and removes the file. Returns an exit code. */
int cli_file_end(const struct cli *c, struct cli_file *file, const vb_error *err);
/* Use this for the first of two files that belong together: it completes the file and gives it its name before the
 * second file is complete. If the second file fails later, cli_file_drop can still remove the first one. If this
 * function fails, it reports the reason and removes the file, like cli_file_end. */
int cli_file_name(const struct cli *c, struct cli_file *file);
/* Removes the file and reports nothing. */
void cli_file_drop(struct cli_file *file);

#endif
