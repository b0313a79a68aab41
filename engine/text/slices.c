/* engine/text/slices.c -- Kimi's way with long texts. Its Python code gives tiktoken 400,000 characters at a time, and
 * of those no more than 25,000 in a row that are all white space or all not; each slice is then a text of its own, in
 * which neither a word nor a special token reaches into the next. Ids differ at such a cut and nowhere else.
 *
 * White space is Python's str.isspace here: U+001C to U+001F belong to it. */
#include "engine/text/tokenizer_internal.h"

#define BLOCK 400000
#define RUN 25000

size_t slices_next(struct slices *s)
{
    size_t begin = s->at, step;
    for (; s->at < s->size; s->at += step) {
        uint32_t c = utf8_at(s->text + s->at, &step);
        int blank = is_white_space(c) || (c >= 0x1c && c <= 0x1f);
        if (s->block == BLOCK) {
            s->block = s->run = 0;
            break;
        }
        if (s->run && blank != s->blank)
            s->run = 0;
        if (s->run == RUN) {
            s->run = 0;
            break;
        }
        s->blank = blank;
        s->run++;
        s->block++;
    }
    return s->at - begin;
}
