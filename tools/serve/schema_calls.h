/* tools/serve/schema_calls.h -- the text of tool calls as a schema: an automaton that accepts the calls of a model's
 * format, with the names of given tools and with arguments that satisfy their parameters.
 *
 * The arguments satisfy the parameters as the parser of meaning.h reads them. In the formats of GLM and
 * DeepSeek-V3.2 no value contains the text of a marker; keys that the parameters do not list have neither white space
 * nor <; and one line break may come before a marker, but for the first marker of a section and the markers at the end
 * of a key or a value.
 *
 * Unlike other schemas, it is no JSON value. A marker is the byte that stands for its token (VOCABULARY_MARK), or its
 * text if it is not one token. White space is as the chat templates write it, but for the white space inside of the
 * arguments. */
#ifndef VB_SCHEMA_CALLS_H
#define VB_SCHEMA_CALLS_H

#include "tools/serve/meaning.h"
#include "tools/serve/schema.h"

#define SCHEMA_TOOLS 100 /* the most tools */
#define SCHEMA_CALLS 16  /* the most calls of one answer */

struct schema_calls {
    enum meaning_calls calls;        /* the format */
    const unsigned char *mark_byte;  /* [MEANING_MARKS]: 0 for a marker that is not one token */
    const json_t *tools;             /* OpenAI's `tools` */
    const char *name;                /* only this tool may be called; NULL: each may */
    int most;                        /* calls of one answer, from 1 to SCHEMA_CALLS */
};

/* VB_OK; VB_UNSUPPORTED or VB_BAD_ARGUMENT: `error` gets one sentence; VB_NO_MEMORY. */
int schema_of_calls(struct schema **out, const struct schema_calls *calls, char error[512]);

#endif
