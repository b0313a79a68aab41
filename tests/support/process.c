/* tests/support/process.c -- runs the `verbatim` command and checks its output. */
#include "tests/support/process.h"

const char *verbatim;
const char *stdin_of_runs = "/dev/null";

void find_verbatim(int argc, char **argv)
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

void become(const char *const *arguments, enum stdout_kind kind, int out, int err)
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

int take(int fd, char **text, size_t *size)
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

void listen_to(pid_t child, int fds[2], enum stdout_kind kind, struct said *s)
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

struct said run_to(enum stdout_kind kind, const char *const *arguments)
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

void forget(struct said *s)
{
    free(s->out);
    free(s->err);
}

void expect_code(const struct said *s, int wanted)
{
    if (s->exit_code != wanted)
        fail_msg("%s: exit code %d, wanted %d; stdout: %.300s; stderr: %.300s", s->command, s->exit_code, wanted,
                 s->out, s->err);
}

/* ---- a child that runs beside the test ---- */

const char *status_of(pid_t child, const char *key, char line[256])
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

int state_of(pid_t child)
{
    char line[256];
    return status_of(child, "State:\t", line)[0];
}

int handles(pid_t child, int number)
{
    char line[256];
    return (int)(strtoull(status_of(child, "SigCgt:", line), NULL, 16) >> (number - 1) & 1);
}

void not_yet(pid_t child, int ended, time_t end, const char *wanted)
{
    if (ended || time(NULL) > end) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        fail_msg("%s before this was seen: %s", ended ? "the program ended" : "the time was over", wanted);
    }
    usleep(1000);
}

int holding_terminal(int *theirs)
{
    int ours;
    struct termios t;
    assert_int_equal(openpty(&ours, theirs, NULL, NULL, NULL), 0);
    assert_int_equal(tcgetattr(*theirs, &t), 0);
    cfmakeraw(&t); /* no newline becomes CR LF */
    assert_int_equal(tcsetattr(*theirs, TCSANOW, &t), 0);
    assert_int_equal(tcflow(*theirs, TCOOFF), 0);
    return ours;
}

void let_on(int theirs)
{
    assert_int_equal(tcflow(theirs, TCOON), 0);
    close(theirs);
}

/* ---- checks of the output ---- */

void expect_failure(struct said s, int code, const char *part)
{
    expect_code(&s, code);
    if (s.out_size || strchr(s.err, '\n') != s.err + s.err_size - 1 || !strstr(s.err, part))
        fail_msg("%s: wanted one line with %s: %s%s", s.command, part, s.out, s.err);
    forget(&s);
}

json_t *parsed(const struct said *s)
{
    json_error_t error;
    json_t *j = json_loadb(s->out, s->out_size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!j)
        fail_msg("%s: %s in %.300s", s->command, error.text, s->out);
    if (s->out_size < 1 || s->out[s->out_size - 1] != '\n')
        fail_msg("%s: no newline behind %.300s", s->command, s->out);
    return j;
}

json_t *json_of_code(int code, const char *const *arguments)
{
    struct said s = run_to(PIPE, arguments);
    expect_code(&s, code);
    if (s.err_size)
        fail_msg("%s: stderr holds %s", s.command, s.err);
    json_t *j = parsed(&s);
    forget(&s);
    return j;
}

json_t *json_of(const char *const *arguments) { return json_of_code(0, arguments); }

json_t *json_lines(struct said s)
{
    json_t *lines = json_array();
    char *place = NULL;
    expect_code(&s, 0);
    for (char *line = strtok_r(s.out, "\n", &place); line; line = strtok_r(NULL, "\n", &place))
        if (json_array_append_new(lines, json_loads(line, JSON_REJECT_DUPLICATES, NULL)))
            fail_msg("%s: a line is no JSON object: %.300s", s.command, line);
    forget(&s);
    return lines;
}

void expect_keys(const json_t *object, const char *keys)
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

long long integer(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

double real(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("%s is no number in %s", key, json_dumps(object, JSON_ENCODE_ANY));
    return json_number_value(value);
}

const char *string(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "(no string)";
}

/* ---- files ---- */

char *bytes_of(const char *path, size_t *size)
{
    char *text = calloc(1, 1);
    int fd = open(path, O_RDONLY);
    assert_true(text && fd >= 0);
    *size = 0;
    while (take(fd, &text, size))
        ;
    close(fd);
    return text;
}

void copy_files(const char *from, const char *to)
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

void replace_in(const char *dir, const char *name, const char *was, const char *now)
{
    char path[512];
    size_t size;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    char *text = bytes_of(path, &size), *at = memmem(text, size, was, strlen(was));
    if (!at)
        fail_msg("%s holds no %s", path, was);
    size_t before = (size_t)(at - text), after = size - before - strlen(was);
    char *data = malloc(before + strlen(now) + after + 1);
    assert_non_null(data);
    memcpy(data, text, before);
    memcpy(data + before, now, strlen(now));
    memcpy(data + before + strlen(now), at + strlen(was), after);
    write_file(dir, name, data, before + strlen(now) + after);
    free(data);
    free(text);
}
