/* tests/support/process.h -- runs the `verbatim` command as its users do, and reads what it said. Include after cmocka.h.
 *
 * Nothing here depends on the speed of the machine: a test waits for what it can see of a child (its output, its files, its
 * state in /proc), or holds it where it is. PATIENCE only guards against waiting for ever. */
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

enum stdout_kind {
    PIPE,           /* read to the end */
    CLOSED,         /* as after `>&-` */
    FULL,           /* a device without room */
    READER_GONE,    /* a pipe that nobody reads */
    ONE_BYTE_READ,  /* as by `| head -c 1` */
    SMALL_FILES     /* a pipe; files may grow to 4 KiB, then writing fails */
};

struct said {
    int exit_code;       /* a signal fails the test */
    char *out, *err;     /* with a 0 byte behind */
    size_t out_size, err_size;
    const char *command; /* for messages */
};

static const char *verbatim; /* the program; see find_verbatim */
static const char *stdin_of_runs = "/dev/null";

/* argv[1], or ../verbatim seen from the directory of this test program */
static inline void find_verbatim(int argc, char **argv)
{
    static char path[4096];
    const char *slash = strrchr(argv[0], '/');
    snprintf(path, sizeof path, "%.*s../verbatim", slash ? (int)(slash + 1 - argv[0]) : 0, argv[0]);
    verbatim = argc > 1 ? argv[1] : path;
    if (access(verbatim, X_OK)) {
        fprintf(stderr, "%s: %s\n", verbatim, strerror(errno));
        exit(1);
    }
}

static inline void become(const char *const *arguments, enum stdout_kind kind, int out, int err)
{
    struct rlimit small = {4096, 4096};
    int in = open(stdin_of_runs, O_RDONLY), full = open("/dev/full", O_WRONLY);
    dup2(in, 0);
    dup2(kind == FULL ? full : out, 1);
    dup2(err, 2);
    for (int fd = 3; fd < 64; fd++)
        close(fd);
    if (kind == CLOSED)
        close(1);
    if (kind == SMALL_FILES) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &small);
    }
    execv(verbatim, (char *const *)(uintptr_t)arguments);
    _exit(127);
}

/* Reads what there is; 0 at the end. */
static inline int take(int fd, char **text, size_t *size)
{
    char bytes[4096];
    ssize_t n = read(fd, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR)
        return 1;
    if (n <= 0)
        return 0;
    *text = realloc(*text, *size + (size_t)n + 1);
    assert_non_null(*text);
    memcpy(*text + *size, bytes, (size_t)n);
    *size += (size_t)n;
    (*text)[*size] = '\0';
    return 1;
}

static inline void listen_to(pid_t child, int fds[2], enum stdout_kind kind, struct said *s)
{
    struct pollfd p[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
    time_t end = time(NULL) + PATIENCE;
    while (p[0].fd >= 0 || p[1].fd >= 0) {
        poll(p, 2, 1000);
        if (time(NULL) > end) {
            kill(child, SIGKILL);
            waitpid(child, NULL, 0);
            fail_msg("%s: still running after %d s", s->command, PATIENCE);
        }
        if (p[0].revents && (!take(p[0].fd, &s->out, &s->out_size) || kind == ONE_BYTE_READ)) {
            close(p[0].fd);
            p[0].fd = -1;
        }
        if (p[1].revents && !take(p[1].fd, &s->err, &s->err_size)) {
            close(p[1].fd);
            p[1].fd = -1;
        }
    }
}

static inline struct said run_to(enum stdout_kind kind, const char *const *arguments)
{
    static char command[8192];
    struct said s = {.command = command, .out = calloc(1, 1), .err = calloc(1, 1)};
    int out[2], err[2], status;
    size_t used = 0;
    for (int i = 1; arguments[i] && used < sizeof command - 1; i++)
        used += (size_t)snprintf(command + used, sizeof command - used, "%s%s", i > 1 ? " " : "", arguments[i]);
    assert_true(!pipe(out) && !pipe(err));
    if (kind == READER_GONE)
        close(out[0]);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        become(arguments, kind, out[1], err[1]);
    close(out[1]);
    close(err[1]);
    int fds[2] = {kind == READER_GONE ? -1 : out[0], err[0]};
    listen_to(child, fds, kind, &s);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status))
        fail_msg("%s: ended by signal %d; %s", command, WTERMSIG(status), s.err);
    s.exit_code = WEXITSTATUS(status);
    return s;
}

#define RUN_TO(kind, ...) run_to(kind, (const char *const[]){verbatim, __VA_ARGS__, NULL})
#define RUN(...) RUN_TO(PIPE, __VA_ARGS__)

static inline void forget(struct said *s)
{
    free(s->out);
    free(s->err);
}

static inline void expect_code(const struct said *s, int wanted)
{
    if (s->exit_code != wanted)
        fail_msg("%s: exit code %d, wanted %d; stdout: %.300s; stderr: %.300s", s->command, s->exit_code, wanted, s->out,
                 s->err);
}

/* ---- a child that runs beside the test ---- */

/* A line of /proc/CHILD/status. */
static inline const char *status_of(pid_t child, const char *key, char line[256])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", (int)child);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, 256, f))
        if (!strncmp(line, key, strlen(key))) {
            fclose(f);
            return line + strlen(key);
        }
    fclose(f);
    fail_msg("%s has no line %s", path, key);
    return line;
}

/* 'R': it runs; 'S': it waits for something; 'Z': it has ended. */
static inline int state_of(pid_t child)
{
    char line[256];
    return status_of(child, "State:\t", line)[0];
}

/* Has it a handler for the signal? */
static inline int handles(pid_t child, int number)
{
    char line[256];
    return (int)(strtoull(status_of(child, "SigCgt:", line), NULL, 16) >> (number - 1) & 1);
}

static inline void not_yet(pid_t child, int ended, time_t end, const char *wanted)
{
    if (ended || time(NULL) > end) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        fail_msg("%s before this was seen: %s", ended ? "the program ended" : "the time was over", wanted);
    }
    usleep(1000);
}

/* Until the child, which has not been waited for, has come as far as the condition says. */
#define WAIT_UNTIL(child, condition) \
    for (time_t end_ = time(NULL) + PATIENCE, ended_; ended_ = state_of(child) == 'Z', !(condition);) \
        not_yet(child, (int)ended_, end_, #condition)

/* A terminal that holds who writes there, as after Ctrl-S, until let_on. Gives the end where it is read; *theirs: the other one. */
static inline int holding_terminal(int *theirs)
{
    int ours;
    struct termios t;
    assert_int_equal(openpty(&ours, theirs, NULL, NULL, NULL), 0);
    assert_int_equal(tcgetattr(*theirs, &t), 0);
    cfmakeraw(&t); /* newlines stay what they are */
    assert_int_equal(tcsetattr(*theirs, TCSANOW, &t), 0);
    assert_int_equal(tcflow(*theirs, TCOOFF), 0);
    return ours;
}

static inline void let_on(int theirs)
{
    assert_int_equal(tcflow(theirs, TCOON), 0);
    close(theirs);
}

/* ---- what it said ---- */

/* Nothing on stdout, and on stderr one line that holds `part`. */
static inline void expect_failure(struct said s, int code, const char *part)
{
    expect_code(&s, code);
    if (s.out_size || strchr(s.err, '\n') != s.err + s.err_size - 1 || !strstr(s.err, part))
        fail_msg("%s: wanted one line with %s: %s%s", s.command, part, s.out, s.err);
    forget(&s);
}

/* What stdout holds: one JSON value and a newline. */
static inline json_t *parsed(const struct said *s)
{
    json_error_t error;
    json_t *j = json_loadb(s->out, s->out_size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!j)
        fail_msg("%s: %s in %.300s", s->command, error.text, s->out);
    if (s->out_size < 1 || s->out[s->out_size - 1] != '\n')
        fail_msg("%s: no newline behind %.300s", s->command, s->out);
    return j;
}

/* Runs with --json, wants exit code 0 and nothing on stderr, gives the value. */
static inline json_t *json_of(const char *const *arguments)
{
    struct said s = run_to(PIPE, arguments);
    expect_code(&s, 0);
    if (s.err_size)
        fail_msg("%s: stderr holds %s", s.command, s.err);
    json_t *j = parsed(&s);
    forget(&s);
    return j;
}

#define JSON(...) json_of((const char *const[]){verbatim, __VA_ARGS__, "--json", NULL})

/* "tokens:a text:n": exactly these keys, of these types: i integer, r real, s string, b boolean, a array, o object,
 * n null, R real or null. */
static inline void expect_keys(const json_t *object, const char *keys)
{
    size_t count = 0;
    char *text = json_dumps(object, JSON_ENCODE_ANY), *copy = strdup(keys), *place = NULL;
    if (!json_is_object(object))
        fail_msg("%s is no object, wanted %s", text, keys);
    for (char *key = strtok_r(copy, " ", &place); key; key = strtok_r(NULL, " ", &place), count++) {
        char *colon = strchr(key, ':');
        *colon = '\0';
        const json_t *v = json_object_get(object, key);
        if (!v)
            fail_msg("%s has no %s", text, key);
        int right = colon[1] == 'i' ? json_is_integer(v) : colon[1] == 'r' ? json_is_real(v)
                  : colon[1] == 's' ? json_is_string(v) : colon[1] == 'b' ? json_is_boolean(v)
                  : colon[1] == 'a' ? json_is_array(v) : colon[1] == 'o' ? json_is_object(v)
                  : colon[1] == 'n' ? json_is_null(v) : json_is_real(v) || json_is_null(v);
        if (!right)
            fail_msg("%s: %s is not of type %c", text, key, colon[1]);
    }
    if (json_object_size(object) != count)
        fail_msg("%s has %zu keys, wanted %s", text, json_object_size(object), keys);
    free(copy);
    free(text);
}

static inline long long integer(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static inline const char *string(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "(no string)";
}

/* Copies the files of a directory: a checkpoint to be changed. */
static inline void copy_files(const char *from, const char *to)
{
    DIR *d = opendir(from);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512], *data;
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", from, e->d_name);
        if (stat(path, &st) || !S_ISREG(st.st_mode))
            continue;
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        assert_non_null(data = malloc((size_t)st.st_size + 1));
        assert_int_equal(fread(data, 1, (size_t)st.st_size, f), st.st_size);
        fclose(f);
        write_file(to, e->d_name, data, (size_t)st.st_size);
        free(data);
    }
    closedir(d);
}

/* Puts `now` where `was` stands first in a file. */
static inline void replace_in(const char *dir, const char *name, const char *was, const char *now)
{
    char path[512];
    struct said file = {.out = calloc(1, 1)};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    while (take(fd, &file.out, &file.out_size))
        ;
    close(fd);
    char *at = memmem(file.out, file.out_size, was, strlen(was));
    if (!at)
        fail_msg("%s holds no %s", path, was);
    size_t before = (size_t)(at - file.out), after = file.out_size - before - strlen(was);
    char *data = malloc(before + strlen(now) + after + 1);
    assert_non_null(data);
    memcpy(data, file.out, before);
    memcpy(data + before, now, strlen(now));
    memcpy(data + before + strlen(now), at + strlen(was), after);
    write_file(dir, name, data, before + strlen(now) + after);
    free(data);
    forget(&file);
}

#endif
