/* tools/serve/meaning.h -- what the text of a chat answer means: reasoning, content and tool calls.
 *
 * Models write reasoning and tool calls into their text, between markers. The chat template of a model contains the
 * markers, because it writes the earlier answers of a conversation with them. A parser reads the text piece by piece
 * and passes its parts to a sink. The result does not depend on how the text is cut into pieces.
 *
 * The formats of calls:
 *   DeepSeek-V3, R1  <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n
 *                    ```json\nARGUMENTS\n```<｜tool▁call▁end｜>...<｜tool▁calls▁end｜>
 *   DeepSeek-V3.1    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS
 *                    <｜tool▁call▁end｜>...<｜tool▁calls▁end｜>
 *   Kimi-K2          <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:NUMBER
 *                    <|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|>...<|tool_calls_section_end|>
 *   GLM-4.5 to 4.7   <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>
 *   DeepSeek-V3.2    <｜DSML｜function_calls><｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY"
 *                    string="true|false">VALUE</｜DSML｜parameter>... </｜DSML｜invoke>...</｜DSML｜function_calls>
 * Whitespace may be between these parts. ARGUMENTS is a JSON object. In it, a marker is data if it is inside a JSON
 * string.
 *
 * A VALUE of GLM is a string's text without quotation marks, or the JSON text of another type. The schema of the tool's
 * parameter decides: if its type is "string", the value is a string. Otherwise the value is JSON if it can be parsed,
 * and else a string. (vLLM and SGLang use the same rule.)
 *
 * A VALUE of DeepSeek-V3.2 is a string's text if string="true". If string="false", it is JSON; otherwise the call
 * cannot be parsed.
 *
 * The parser cannot take back what it has passed to the sink. So it collects the text of a call until the marker that
 * ends the call, and parses it then. If the text cannot be parsed (no name, arguments that are no JSON object, a
 * missing or misplaced marker), the parser passes it on as content, byte for byte. The parser accepts a call even if
 * its tool does not exist, or if its arguments do not satisfy the schema of the tool.
 *
 * Markers do not reach the sink, except as a part of content. Whitespace next to a marker that does not reach the sink
 * does not reach it either. All other bytes reach the sink. */
#ifndef VB_MEANING_H
#define VB_MEANING_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define MEANING_NAME 256 /* maximum length in bytes of a tool's name; a call with a longer name is content */
#define MEANING_ID 320   /* bytes of the id of a call, with its 0 byte */

enum meaning_calls {
    MEANING_NO_CALLS,
    MEANING_DEEPSEEK_V3,
    MEANING_DEEPSEEK_V31,
    MEANING_KIMI_K2,
    MEANING_GLM,
    MEANING_DEEPSEEK_V32
};

/* Each marker begins with < and has no other <. */
enum meaning_mark {
    MARK_THINK,
    MARK_END_THINK,
    MARK_CALLS, /* the first marker of a section of calls; GLM has no sections */
    MARK_CALL,
    MARK_SEP,   /* before the arguments; DeepSeek-V3: before the name */
    MARK_END_CALL,
    MARK_END_CALLS,
    MARK_KEY,
    MARK_END_KEY,
    MARK_VALUE,
    MARK_END_VALUE,
    MEANING_MARKS
};

/* The text of a marker; NULL: this format does not have it. */
const char *meaning_mark(enum meaning_calls calls, enum meaning_mark mark);

struct meaning_kind {
    enum meaning_calls calls;
    int thinks; /* 1: the model writes its reasoning between <think> and </think>; 0: it writes no reasoning */
};

/* How an answer begins. */
enum meaning_start {
    MEANING_MAY_THINK, /* it is reasoning if its first marker is <think>, and else content */
    MEANING_THINKS,    /* with reasoning: the prompt ends with <think> */
    MEANING_ANSWERS    /* with content: the prompt ends with </think>, or the model does not think */
};

/* Fills *out from the text of a chat template. `source` may be NULL. */
void meaning_of_template(const char *source, struct meaning_kind *out);
/* How the answer to a rendered prompt begins. */
enum meaning_start meaning_start_of(const struct meaning_kind *kind, const char *prompt, size_t size);

/* Receives the parts of an answer, in their order. A function that returns nonzero stops the parser, which returns the
 * same number. */
struct meaning_sink {
    int (*reasoning)(void *context, const char *text, size_t size);
    int (*content)(void *context, const char *text, size_t size);
    /* A call, numbered from 0. `id` has no special characters. */
    int (*call)(void *context, int number, const char *id, const char *name, size_t name_size);
    /* A piece of the JSON text of the last call's arguments. */
    int (*arguments)(void *context, int number, const char *text, size_t size);
};

struct meaning_options {
    struct meaning_kind kind;
    enum meaning_start start;
    int parse_calls;     /* 0: calls are content */
    const json_t *tools; /* OpenAI's `tools`, for the types of GLM's arguments; NULL: none are known. The parser reads
                            it until it is closed */
    int valid;           /* every call is known to be valid, because a mask makes it so. The arguments then reach the
                            sink while they are written. If the answer ends in the middle of them, a part of them is
                            missing. The mask begins behind the reasoning: a call inside of it is none */
    int most_calls;      /* further calls are left out of the answer; 0: no limit */
    uint64_t salt;       /* the calls' ids are made from it, except those that Kimi-K2 writes itself */
};

struct meaning_parser;
/* VB_OK or VB_NO_MEMORY. *sink is copied. */
int meaning_open(struct meaning_parser **out, const struct meaning_options *options, const struct meaning_sink *sink);
/* Reads the next piece of the text, which may begin and end at any byte. `context` is passed to the sink. VB_OK,
 * VB_NO_MEMORY, or what the sink returned. After an error, all later calls return the same error. */
int meaning_push(struct meaning_parser *m, void *context, const char *text, size_t size);
/* Ends the text: what was held back and is no whole call is content. */
int meaning_end(struct meaning_parser *m, void *context);
/* The number of calls so far, without those that were left out. */
int meaning_calls(const struct meaning_parser *m);
/* Whether the sink has only the beginning of a call's arguments, because the text ended in them (options.valid). */
int meaning_is_cut(const struct meaning_parser *m);
void meaning_close(struct meaning_parser *m);

#endif
