/* tools/prompts/prompts.h -- generate --prompts: a file of prompts (JSON Lines) run in a batch, and the file of its answers.
 *
 * The file of prompts is in memory as text; a line is understood twice: when all of them are checked, before anything starts, and
 * when it is its turn. An answer is a line too, {"index": N, "request": KEY, ...}: KEY is a hash of the prompt's line and of all
 * that its answer depends on, by which a run that was interrupted knows its answers again. */
#ifndef VB_PROMPTS_H
#define VB_PROMPTS_H

#include "tools/cli/cli.h"

#define SETTINGS_SIZE 65 /* of a SHA-256 in hexadecimal digits, */
#define KEY_SIZE 17      /* and of the part of one that answers carry; the 0 included */

/* ---- the lines of the file (tools/prompts/file.c) ---------------------------------------------------------------------- */

struct prompt_line {
    const char *text; /* without the white space around it */
    size_t size;      /* 0: blank */
    size_t most;      /* tokens that it may come to, prompt included */
    int answered;
};

struct prompt_file {
    const char *name; /* for messages */
    char *text;       /* of vb_read_input */
    struct prompt_line *line;
    size_t num_lines, num_prompts; /* those that are not blank */
};

/* Reads all of it ("-": stdin). Reports errors. */
int prompt_file_read(const struct cli *c, struct prompt_file *f, const char *path);
void prompt_file_close(struct prompt_file *f);
/* What the answer to a line is known by. */
void prompt_key(const struct prompt_line *line, const char settings[SETTINGS_SIZE], char key[KEY_SIZE]);

/* A hash of all that reaches every answer: the model's files by their names, sizes and parts of their bytes, precision and
 * conventions, the prompt and sampling options, -n; of drafting only where it leads the path. Reports errors. */
int prompt_settings(const struct cli *c, char settings[SETTINGS_SIZE]);

/* ---- one line, understood (tools/prompts/line.c) ------------------------------------------------------------------------ */

struct prompt {
    json_t *json; /* the line; what follows points into it */
    const json_t *id; /* NULL: none */
    int32_t *tokens;
    size_t count, max_tokens;
    vb_sampling sampling;
    const char *draft;    /* NULL: the command line's */
    int32_t draft_tokens; /* 0: the command line's, or with another method that one's; negative: none */
    const char *stop[MOST_STOPS];
    size_t num_stops;
};

/* Reports errors (c->where should name the line); all is released then. */
int prompt_read(struct cli *c, const struct prompt_line *line, struct prompt *out);
void prompt_close(struct prompt *p);

/* ---- the file of answers (tools/prompts/answers.c) ---------------------------------------------------------------------- */

struct answers {
    const char *path; /* NULL: stdout */
    int fd;
    long long whole;  /* bytes of whole lines */
    double synced;
    size_t kept, errors; /* lines that were there; those of all lines that are errors */
};

/* Opens or makes the file and marks the lines that are answered. A last line that is torn is cut off; a file with anything else
 * in it is refused and left as it is. Reports errors. */
int answers_open(const struct cli *c, struct answers *a, struct prompt_file *f, const char settings[SETTINGS_SIZE]);
/* Appends one answer and drops it. One write: whoever ends this process leaves whole lines. Reports errors. */
int answers_write(const struct cli *c, struct answers *a, json_t *answer);
int answers_close(const struct cli *c, struct answers *a);

/* ---- the run (tools/prompts/prompts.c) ------------------------------------------------------------------------------------------ */

int prompts_run(struct cli *c);

#endif
