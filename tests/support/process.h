/* tests/support/process.h -- runs the `verbatim` command as a user would, and checks its output.
 *
 * No test here depends on the speed of the machine. A test either waits for something that it can observe of the child
 * process (its output, its files, its state in /proc), or stops the child at a known place. PATIENCE only keeps a
 * broken test from waiting for ever. */
#ifndef VB_TEST_PROCESS_H
#define VB_TEST_PROCESS_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/files.h"

#define MOST_ARGUMENTS 40
#define PATIENCE 600 /* seconds */

/* What the command's stdout is connected to. */
enum stdout_kind {
    PIPE,           /* a pipe that is read to the end */
    CLOSED,         /* nothing, as after `>&-` */
    FULL,           /* a full device */
    READER_GONE,    /* a pipe whose reading end is closed */
    ONE_BYTE_READ,  /* a pipe whose reader leaves early, like `| head -c 1` */
    SMALL_FILES     /* a pipe; in addition, writing fails in any file that reaches 4 KiB */
};

/* The output of one run. Release it with forget(). */
struct said {
    int exit_code;       /* if a signal ends the run, the test fails */
    char *out, *err;     /* stdout and stderr, each followed by a 0 byte */
    size_t out_size, err_size;
    const char *command; /* the arguments in one line, for messages; the next run overwrites them */
};

extern const char *verbatim;      /* the path of the program; find_verbatim sets it */
extern const char *stdin_of_runs; /* the file that runs read as stdin; /dev/null unless a test sets it */

/* Sets `verbatim` to argv[1], or, if there is none, to ../verbatim relative to the directory of this test program. */
void find_verbatim(int argc, char **argv);

/* In a child after fork: connects stdin, stdout and stderr and executes the command. Never returns. */
void become(const char *const *arguments, enum stdout_kind kind, int out, int err);

/* Reads once from fd and appends to *text, which stays 0-terminated. Returns 0 at the end of the file. */
int take(int fd, char **text, size_t *size);

/* Reads the child's stdout (fds[0]) and stderr (fds[1]) until both end. */
void listen_to(pid_t child, int fds[2], enum stdout_kind kind, struct said *s);

/* Runs the command to its end. arguments[0] is the program, NULL ends the list. */
struct said run_to(enum stdout_kind kind, const char *const *arguments);

#define RUN_TO(kind, ...) run_to(kind, (const char *const[]){verbatim, __VA_ARGS__, NULL})
#define RUN(...) RUN_TO(PIPE, __VA_ARGS__)

void forget(struct said *s);

void expect_code(const struct said *s, int wanted);

/* ---- a child that runs beside the test ---- */

/* Finds the line of /proc/CHILD/status that begins with `key`, copies it to `line`, and returns the part after
 * `key`. */
const char *status_of(pid_t child, const char *key, char line[256]);

/* The child's state in /proc: 'R' running, 'S' waiting for something, 'Z' ended and not yet waited for. */
int state_of(pid_t child);

/* Whether the child has a handler for this signal. */
int handles(pid_t child, int number);

/* WAIT_UNTIL calls this function, which sleeps for a millisecond. If the child has ended or the time is over, the
 * function fails the test. */
void not_yet(pid_t child, int ended, time_t end, const char *wanted);

/* Waits until the condition is true. If the child ends before, the test fails. The test must not have called waitpid
 * for the child yet. */
#define WAIT_UNTIL(child, condition) \
    for (time_t end_ = time(NULL) + PATIENCE, ended_; ended_ = state_of(child) == 'Z', !(condition);) \
        not_yet(child, (int)ended_, end_, #condition)

/* Makes a pseudo-terminal whose output is stopped, as after Ctrl-S: a process that writes to it blocks until the test
 * calls let_on. Returns the descriptor that the test reads from. *theirs: the descriptor for the child. */
int holding_terminal(int *theirs);
void let_on(int theirs);

/* ---- checks of the output ---- */

/* The run must end with this exit code, an empty stdout, and one line on stderr that contains `part`. Releases the
 * run. */
void expect_failure(struct said s, int code, const char *part);

/* Returns the JSON value in stdout, which must consist of this value and a newline. */
json_t *parsed(const struct said *s);

/* Runs the command. The command must print JSON, leave stderr empty, and end with exit code 0 (json_of) or `code`
 * (json_of_code). Returns the JSON value. */
json_t *json_of(const char *const *arguments);
json_t *json_of_code(int code, const char *const *arguments);

#define JSON(...) json_of((const char *const[]){verbatim, __VA_ARGS__, "--json", NULL})

/* Expects exit code 0, and returns an array with the JSON objects that the command printed, one in each line. Releases
 * the run. */
json_t *json_lines(struct said s);

/* The object must have exactly these keys with these types. Example: "tokens:a text:n". Types: i integer, r real, s
 * string, b boolean, a array, o object, n null, R real or null. */
void expect_keys(const json_t *object, const char *keys);

/* Each function returns the value of a key. If the value has another type, integer() returns 0, real() fails the test,
 * and string() returns "(no string)". */
long long integer(const json_t *object, const char *key);
double real(const json_t *object, const char *key);
const char *string(const json_t *object, const char *key);

/* ---- files ---- */

/* Returns the content of a file, followed by a 0 byte. The caller frees it. */
char *bytes_of(const char *path, size_t *size);

/* Copies the regular files of one directory into another. */
void copy_files(const char *from, const char *to);

/* In DIR/NAME, replaces the first occurrence of `was` (there must be one) by `now`. */
void replace_in(const char *dir, const char *name, const char *was, const char *now);

#endif
