/* tools/prompts/prompts.h -- generate --prompts: runs a file of prompts (JSON Lines) as a batch, and writes a file of
 * answers.
 *
 * The file of prompts is kept in memory as text. Each line is parsed twice: before the run starts, to check all lines,
 * and again when it is the prompt's turn. An answer is also a line of JSON, {"index": N, "request": KEY, ...}. KEY is a
 * hash of the prompt's line and of everything else that the answer depends on. When an interrupted run is started
 * again, this key shows which prompts already have an answer. */
#ifndef VB_PROMPTS_H
#define VB_PROMPTS_H

#include "tools/cli/routes.h"

#define SETTINGS_SIZE 65 /* room for a SHA-256 in hexadecimal digits and the final 0 */
#define KEY_SIZE 17      /* room for the key of an answer (the first 16 digits of such a hash) and the final 0 */

/* ---- the lines of the file (tools/prompts/file.c) ---------------------------------------------------------------- */

struct prompt_line {
    const char *text; /* the line without white space at both ends */
    size_t size;      /* in bytes; 0: the line is blank */
    size_t most;      /* the largest number of tokens that prompt and answer can have together */
    int answered;     /* whether the file of answers already has an answer to this prompt */
    uint32_t routes;  /* a hash of the routes, if the line names a file of them; 0: none */
};

struct prompt_file {
    const char *name; /* the name of the file, for messages */
    char *text;       /* the whole file; from vb_read_input */
    struct prompt_line *line;
    size_t num_lines, num_prompts; /* num_prompts: how many lines are not blank */
};

/* Reads the whole file; if path is "-", reads stdin. Reports errors. */
int prompt_file_read(const struct cli *c, struct prompt_file *f, const char *path);
void prompt_file_close(struct prompt_file *f);
/* Computes the key of the answer to a line. */
void prompt_key(const struct prompt_line *line, const char settings[SETTINGS_SIZE], char key[KEY_SIZE]);

/* Computes a hash of everything that influences all answers: the model's files (names, sizes and parts of their bytes),
 * precision, conventions, -n, and the options for the prompt and for sampling. Drafting options are included only if
 * drafts influence the text (--acceptance other than strict). Reports errors. */
int prompt_settings(const struct cli *c, char settings[SETTINGS_SIZE]);

/* ---- one parsed line (tools/prompts/line.c) ---------------------------------------------------------------------- */

struct prompt {
    json_t *json; /* the parsed line; other members point into it */
    const json_t *id; /* the key id; NULL: not given */
    int32_t *tokens;
    size_t count, max_tokens;
    vb_sampling sampling;
    const char *draft;    /* the draft method; NULL: the method of the command line */
    /* negative: no drafts. 0: the prompt does not give a number. Then the default of the method `draft` is used. If
     * `draft` is NULL too, the command line's value is used */
    int32_t draft_tokens;
    const char *stop[MOST_STOPS];
    size_t num_stops;
    vb_routes routes;     /* what the prompt and its answer are forced to take; no tokens: nothing */
    struct routes_array experts, kept; /* at which routes points */
};

/* A hash of experts and kept sets, not 0. */
uint32_t prompt_routes_hash(const struct prompt *p);
/* Parses a line. Reports errors; after an error, everything is released. The caller sets c->where to a text that names
 * the line. */
int prompt_read(struct cli *c, const struct prompt_line *line, struct prompt *out);
void prompt_close(struct prompt *p);

/* ---- the file of answers (tools/prompts/answers.c) --------------------------------------------------------------- */

struct answers {
    const char *path; /* NULL: stdout */
    int fd;
    int is_scores;    /* nonzero: the command is `score` */
    long long whole;  /* the size of all complete lines, in bytes */
    double synced;    /* the time of the last fsync */
    size_t kept, errors; /* how many answers were in the file before this run; how many answers are errors */
};

/* Opens or creates the file, and marks the prompts that it already answers. An incomplete last line is removed. A file
 * that contains anything else is refused and not changed. Reports errors. */
int answers_open(const struct cli *c, struct answers *a, struct prompt_file *f, const char settings[SETTINGS_SIZE]);
/* Appends one answer in a single write, so that only complete lines remain if the process is killed. Releases `answer`.
 * Reports errors. */
int answers_write(const struct cli *c, struct answers *a, json_t *answer);
int answers_close(const struct cli *c, struct answers *a);

/* ---- the run (tools/prompts/prompts.c) --------------------------------------------------------------------------- */

/* Sets *context to the context of a batch whose longest sequence has `longest` tokens. With convention yarn=max-len,
 * results depend on the context; then it is --context, and without this option the function reports an error. So no
 * result depends on the other lines of the file. */
int prompts_context(const struct cli *c, size_t longest, int32_t *context);

/* Returns the drafting options of a prompt: those of its line, or else those of the command line. */
vb_drafting prompts_drafting(const struct cli *c, const struct prompt *q);

/* Runs all prompts that have no answer yet. Returns an exit code. */
int prompts_run(struct cli *c);

#endif
