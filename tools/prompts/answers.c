/* tools/prompts/answers.c -- the file of answers. Answers are appended line by line, and the next run continues with
 * the same file. */
#include "tools/prompts/prompts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define SYNC_SECONDS 5.0 /* what a power cut may cost; syncing each line would cost more than computing the short
                            ones */
#define BEGIN "{\"index\": "

static int refuse(const struct cli *c, const struct answers *a, size_t line, const char *why)
{
    return cli_fail(c, EXIT_OTHER,
                    "%s: line %zu %s; the file was left as it is: give another -o, or the prompts and options it was "
                    "begun with",
                    a->path, line, why);
}

/* Checks one complete line of the file, and marks its prompt as answered. */
static int take_up(const struct cli *c, struct answers *a, struct prompt_file *f, const char *settings,
                   const char *text, size_t size, size_t line)
{
    char key[KEY_SIZE];
    json_t *j = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    const json_t *index = json_object_get(j, "index");
    const char *request = json_string_value(json_object_get(j, "request"));
    long long i = json_is_integer(index) ? json_integer_value(index) : -1;
    int code = EXIT_DONE;
    if (i < 0 || !request ||
        (!json_object_get(j, a->is_scores ? "logprobs" : "finish_reason") && !json_object_get(j, "error")))
        code = refuse(c, a, line, a->is_scores ? "is no line of verbatim score" : "is no answer of generate --prompts");
    else if ((size_t)i >= f->num_lines || !f->line[i].size)
        code = refuse(c, a, line, "answers a prompt that is not there");
    else if (f->line[i].answered)
        code = refuse(c, a, line, "answers a prompt for the second time");
    if (code == EXIT_DONE) {
        prompt_key(&f->line[i], settings, key);
        if (strcmp(key, request))
            code = refuse(c, a, line, "answers another prompt, or was computed by another model or with other options");
    }
    if (code == EXIT_DONE) {
        f->line[i].answered = 1;
        a->kept++;
        a->errors += json_object_get(j, "error") != NULL;
    }
    json_decref(j);
    return code;
}

/* What stands behind the last newline: the beginning of an answer of ours, or, behind whole ones, what a power cut
 * left. */
static int is_torn(const struct answers *a, const struct prompt_file *f, const char *settings, const char *text,
                   size_t size)
{
    char wanted[96], key[KEY_SIZE];
    size_t n = strlen(BEGIN), digits = 0, zeros = 0;
    while (zeros < size && !text[zeros])
        zeros++;
    if (zeros == size)
        return a->kept > 0;
    if (size <= n)
        return !memcmp(text, BEGIN, size);
    while (n + digits < size && text[n + digits] >= '0' && text[n + digits] <= '9')
        digits++;
    if (memcmp(text, BEGIN, n) || !digits || digits > 18)
        return 0;
    if (n + digits == size)
        return 1;
    size_t i = (size_t)strtoull(text + n, NULL, 10);
    if (i >= f->num_lines || !f->line[i].size)
        return 0;
    prompt_key(&f->line[i], settings, key);
    size_t most = (size_t)snprintf(wanted, sizeof wanted, BEGIN "%zu, \"request\": \"%s\"", i, key);
    return !memcmp(text, wanted, size < most ? size : most);
}

static int take_up_all(const struct cli *c, struct answers *a, struct prompt_file *f, const char *settings)
{
    char *text;
    size_t size, line = 1;
    vb_error err;
    if (vb_read_file(NULL, a->path, &text, &size, &err))
        return cli_error(c, &err);
    const char *p = text, *end = text + size, *newline;
    int code = EXIT_DONE;
    for (; code == EXIT_DONE && p < end && (newline = memchr(p, '\n', (size_t)(end - p))); p = newline + 1, line++)
        code = take_up(c, a, f, settings, p, (size_t)(newline - p), line);
    if (code == EXIT_DONE && p < end && !is_torn(a, f, settings, p, (size_t)(end - p)))
        code = refuse(c, a, line,
                      a->is_scores ? "is no line of verbatim score for these texts"
                                   : "is no answer of generate --prompts to these prompts");
    a->whole = p - text;
    vb_free(NULL, text);
    return code;
}

/* The file is open: is it one, and whole, and nobody else's? */
static int check_file(const struct cli *c, struct answers *a, struct prompt_file *f, const char *settings)
{
    struct stat st;
    if (fstat(a->fd, &st))
        return cli_fail(c, EXIT_OTHER, "%s: %s", a->path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return cli_fail(c, EXIT_OTHER, "%s: not a file", a->path);
    if (flock(a->fd, LOCK_EX | LOCK_NB))
        return cli_fail(c, EXIT_OTHER, "%s: %s", a->path,
                        errno == EWOULDBLOCK ? "another run is writing it" : strerror(errno));
    int code = take_up_all(c, a, f, settings);
    if (code == EXIT_DONE && (ftruncate(a->fd, (off_t)a->whole) || lseek(a->fd, 0, SEEK_END) < 0))
        code = cli_fail(c, EXIT_OTHER, "%s: %s", a->path, strerror(errno));
    return code;
}

int answers_open(const struct cli *c, struct answers *a, struct prompt_file *f, const char settings[SETTINGS_SIZE])
{
    *a = (struct answers){.path = c->out, .fd = -1, .is_scores = (c->command->takes & TAKES_SCORE) != 0,
                          .synced = cli_seconds()};
    if (!a->path)
        return EXIT_DONE;
    a->fd = open(a->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int is_new = a->fd >= 0;
    if (!is_new && errno == EEXIST)
        a->fd = open(a->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666); /* with O_CREAT: a link to nowhere */
    if (a->fd < 0)
        return cli_fail(c, EXIT_OTHER, "%s: %s", a->path, strerror(errno));
    int code = check_file(c, a, f, settings);
    if (code == EXIT_DONE)
        return code;
    if (is_new)
        unlink(a->path);
    close(a->fd);
    a->fd = -1;
    return code;
}

static int append(const struct cli *c, struct answers *a, const char *line, size_t size)
{
    int failed = vb_write_all(a->fd, line, size);
    if (failed) {
        int code = cli_fail(c, EXIT_OTHER, "%s: %s", a->path, strerror(failed));
        if (ftruncate(a->fd, (off_t)a->whole)) /* the next run removes the incomplete line */
            return code;
        return code;
    }
    a->whole += (long long)size;
    double now = cli_seconds();
    if (now - a->synced < SYNC_SECONDS)
        return EXIT_DONE;
    a->synced = now;
    return fdatasync(a->fd) ? cli_fail(c, EXIT_OTHER, "%s: %s", a->path, strerror(errno)) : EXIT_DONE;
}

int answers_write(const struct cli *c, struct answers *a, json_t *answer)
{
    int code = EXIT_DONE;
    a->errors += json_object_get(answer, "error") != NULL;
    char *text = answer ? json_dumps(answer, JSON_REAL_PRECISION(17)) : NULL;
    json_decref(answer);
    if (!text)
        return cli_fail(c, EXIT_OTHER, "no memory for an answer");
    size_t size = strlen(text);
    text[size++] = '\n'; /* where the 0 was */
    if (a->path) {
        code = append(c, a, text, size);
    } else {
        fwrite(text, 1, size, stdout);
        fflush(stdout); /* main checks later whether stdout could be written */
    }
    free(text);
    return code;
}

int answers_close(const struct cli *c, struct answers *a)
{
    int code = EXIT_DONE;
    if (a->fd >= 0 && (fdatasync(a->fd) | close(a->fd)))
        code = cli_fail(c, EXIT_OTHER, "%s: %s", a->path, strerror(errno));
    a->fd = -1;
    return code;
}
