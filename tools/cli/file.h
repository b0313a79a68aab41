/* tools/cli/file.h -- the one way in which the command writes a file: engine/base/new_file.h, with a stream, signals and reports. */
#ifndef VB_CLI_FILE_H
#define VB_CLI_FILE_H

#include <stdio.h>

#include "engine/base/new_file.h"
#include "tools/cli/cli.h"

/* A FILE that writes to a descriptor and keeps the reason of the first failure. */
struct cli_stream {
    FILE *f;
    int fd;
    int error; /* errno's; 0: none */
};
/* Returns s->f; NULL, and s->error, without memory. The descriptor stays the caller's. */
FILE *cli_stream_open(struct cli_stream *s, int fd);
/* Writes what is left and closes the stream. Returns s->error. */
int cli_stream_close(struct cli_stream *s);
/* Writes the first `size` bytes of what went to the stream so far to another one; progress (may be NULL) is told how many are there.
 * Ends early when cli_stopped(). Returns 0, or an errno of reading them. */
int cli_stream_copy(struct cli_stream *s, FILE *to, size_t size, void (*progress)(const char *label, size_t done, size_t total));

/* A file that gets the name `path` when it is whole. While it is open, signals that end a program are only remembered: whoever takes
 * long asks cli_stopped() and goes to cli_file_end. */
struct cli_file {
    struct new_file file;
    struct cli_stream stream;
};
/* Returns the stream; or NULL, after the error was reported. An existing file is replaced only with --force. */
FILE *cli_file_begin(const struct cli *c, struct cli_file *file, const char *path);
/* Flushes the file and gives it its name; or removes it, when err is not NULL, when a write failed, or when a signal came. Reports
 * whichever it was. Returns an exit code. */
int cli_file_end(const struct cli *c, struct cli_file *file, const vb_error *err);
/* Two files that belong together: the first gets its name now, and cli_file_drop can still take it back when there is something wrong
 * with the second. A failure is reported and the file removed, as by cli_file_end. */
int cli_file_name(const struct cli *c, struct cli_file *file);
/* Removes the file without a word. */
void cli_file_drop(struct cli_file *file);

#endif
