/* tools/serve/meaning_format.c -- the markers of each format, and how a chat template shows which format its model
 * writes. */
#include <string.h>

#include "tools/serve/meaning_internal.h"

#define DEEPSEEK_MARKS \
    [MARK_CALLS] = "<｜tool▁calls▁begin｜>", [MARK_CALL] = "<｜tool▁call▁begin｜>", [MARK_SEP] = "<｜tool▁sep｜>", \
    [MARK_END_CALL] = "<｜tool▁call▁end｜>", [MARK_END_CALLS] = "<｜tool▁calls▁end｜>"

#define DSML "｜DSML｜"

static const char *const marks[][MEANING_MARKS] = {
    [MEANING_DEEPSEEK_V3] = {DEEPSEEK_MARKS},
    [MEANING_DEEPSEEK_V31] = {DEEPSEEK_MARKS},
    [MEANING_KIMI_K2] = {[MARK_CALLS] = "<|tool_calls_section_begin|>", [MARK_CALL] = "<|tool_call_begin|>",
                         [MARK_SEP] = "<|tool_call_argument_begin|>", [MARK_END_CALL] = "<|tool_call_end|>",
                         [MARK_END_CALLS] = "<|tool_calls_section_end|>"},
    [MEANING_GLM] = {[MARK_CALL] = "<tool_call>", [MARK_END_CALL] = "</tool_call>", [MARK_KEY] = "<arg_key>",
                     [MARK_END_KEY] = "</arg_key>", [MARK_VALUE] = "<arg_value>", [MARK_END_VALUE] = "</arg_value>"},
    [MEANING_DEEPSEEK_V32] = {[MARK_CALLS] = "<" DSML "function_calls>", [MARK_CALL] = "<" DSML "invoke name=\"",
                              [MARK_KEY] = "<" DSML "parameter name=\"", [MARK_END_VALUE] = "</" DSML "parameter>",
                              [MARK_END_CALL] = "</" DSML "invoke>", [MARK_END_CALLS] = "</" DSML "function_calls>"},
};

const char *meaning_mark(enum meaning_calls calls, enum meaning_mark mark)
{
    if (mark == MARK_THINK || mark == MARK_END_THINK)
        return mark == MARK_THINK ? "<think>" : "</think>";
    return marks[calls][mark];
}

void meaning_of_template(const char *source, struct meaning_kind *out)
{
    const char *text = source ? source : "";
    *out = (struct meaning_kind){.thinks = strstr(text, "</think>") != NULL};
    if (strstr(text, "<tool_call>") && strstr(text, "<arg_key>"))
        out->calls = MEANING_GLM;
    else if (strstr(text, DSML) && strstr(text, "function_calls"))
        out->calls = MEANING_DEEPSEEK_V32;
    else if (strstr(text, "<|tool_calls_section_begin|>"))
        out->calls = MEANING_KIMI_K2;
    else if (strstr(text, "<｜tool▁call▁begin｜>"))
        out->calls = strstr(text, "```json") ? MEANING_DEEPSEEK_V3 : MEANING_DEEPSEEK_V31;
}

static int ends_with(const char *text, size_t size, const char *end)
{
    size_t n = strlen(end);
    return size >= n && !memcmp(text + size - n, end, n);
}

enum meaning_start meaning_start_of(const struct meaning_kind *kind, const char *prompt, size_t size)
{
    while (size && meaning_is_blank(prompt[size - 1]))
        size--;
    if (kind->thinks && ends_with(prompt, size, "<think>"))
        return MEANING_THINKS;
    return kind->thinks && !ends_with(prompt, size, "</think>") ? MEANING_MAY_THINK : MEANING_ANSWERS;
}
