/* tools/cli/file.h -- how every subcommand writes a file: engine/base/new_file.h plus a stream, signal handling and error
 * reports. */
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
/* Returns s->f; or NULL, with s->error set, if memory is missing. The caller keeps the descriptor and closes it later. */
FILE *cli_stream_open(struct cli_stream *s, int fd);
/* Writes the buffered bytes and closes the stream. Returns s->error. */
int cli_stream_close(struct cli_stream *s);
/* Copies the first `size` bytes that were written to this stream to the stream `to`. Calls progress, unless it is NULL, with
 * the number of bytes copied so far. Stops early when cli_stopped(). Returns 0, or the errno of a failed read. */
int cli_stream_copy(struct cli_stream *s, FILE *to, size_t size, void (*progress)(const char *label, size_t done, size_t total));

/* A file that gets its name only when it is complete. While it is open, signals that would end the program only set a flag. A
 * caller that writes for long must check cli_stopped(), and then call cli_file_end. */
struct cli_file {
    struct new_file file;
    struct cli_stream stream;
};
/* Begins a file that will be named `path`. Returns its stream; or reports an error and returns NULL. An existing file is
 * replaced only with --force. */
FILE *cli_file_begin(const struct cli *c, struct cli_file *file, const char *path);
/* Completes the file and gives it its name. If err is not NULL, a write failed, or a signal came, it reports that and removes
 * the file instead. Returns an exit code. */
int cli_file_end(const struct cli *c, struct cli_file *file, const vb_error *err);
/* For the first of two files that belong together: gives it its name now. If the second file fails later, cli_file_drop can
 * still remove the first one. A failure is reported and the file is removed, as by cli_file_end. */
int cli_file_name(const struct cli *c, struct cli_file *file);
/* Removes the file and reports nothing. */
void cli_file_drop(struct cli_file *file);

#endif
