/* tests/support/meanings.h -- what a parser of chat answers (tools/serve/meaning.h) says, as one text: its parts begin
 * with ¦R (reasoning), ¦C (content) or ¦T (a call: its id, if it is asked for, its name, a blank, its arguments). */
#ifndef VB_TEST_MEANINGS_H
#define VB_TEST_MEANINGS_H

#include "engine/verbatim.h"
#include "tools/serve/meaning.h"
#include "tools/serve/writer.h"

#include <stdlib.h>
#include <string.h>

struct meaning_said {
    struct serve_writer text;
    char part;                   /* of the last piece */
    int number, has_ids, pieces; /* pieces: of arguments */
    int is_cut;                  /* by the end of the text */
};

static inline int said_piece(struct meaning_said *s, char part, const char *text, size_t size)
{
    if (s->part != part) {
        writer_put(&s->text, "¦");
        writer_bytes(&s->text, &part, 1);
    }
    s->part = part;
    writer_bytes(&s->text, text, size);
    return s->text.failed ? VB_NO_MEMORY : VB_OK;
}

static inline int said_reasoning(void *said, const char *text, size_t size)
{
    return said_piece(said, 'R', text, size);
}
static inline int said_content(void *said, const char *text, size_t size) { return said_piece(said, 'C', text, size); }

static inline int said_call(void *said, int number, const char *id, const char *name, size_t size)
{
    struct meaning_said *s = said;
    if (number != s->number++)
        abort();
    s->part = 0;
    if (s->has_ids) {
        said_piece(s, 'T', id, strlen(id));
        said_piece(s, 'T', " ", 1);
    }
    said_piece(s, 'T', name, size);
    return said_piece(s, 'T', " ", 1);
}

static inline int said_arguments(void *said, int number, const char *text, size_t size)
{
    struct meaning_said *s = said;
    if (number != s->number - 1 || s->part != 'T' || !size)
        abort();
    s->pieces++;
    return said_piece(said, 'T', text, size);
}

/* Reads the text in three pieces, which end at a and b; or, if step is not 0, in pieces of `step` bytes. Fills *said,
 * whose text the caller frees (writer_close). Returns what the parser returned. */
static inline int meaning_of(struct meaning_said *said, const struct meaning_options *o, const char *text, size_t size,
                             size_t a, size_t b, size_t step)
{
    const struct meaning_sink sink = {said_reasoning, said_content, said_call, said_arguments};
    struct meaning_parser *m;
    int rc = meaning_open(&m, o, &sink);
    if (rc)
        return rc;
    if (step) {
        for (size_t at = 0; at < size && !rc; at += step)
            rc = meaning_push(m, said, text + at, size - at < step ? size - at : step);
    } else {
        rc = meaning_push(m, said, text, a);
        rc = rc ? rc : meaning_push(m, said, text + a, b - a);
        rc = rc ? rc : meaning_push(m, said, text + b, size - b);
    }
    int end = meaning_end(m, said);
    rc = rc ? rc : end;
    if (!rc && meaning_calls(m) != said->number)
        abort();
    said->is_cut = meaning_is_cut(m);
    meaning_close(m);
    return rc;
}

#endif
