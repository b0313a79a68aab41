/* engine/text/split.c -- the pre-tokenizers: text is cut into pieces, each stage cutting the pieces of the last.
 *
 * A piece goes through all later stages before the next one is cut off, so no list of pieces is ever kept; a stage
 * remembers one piece at most (those behaviours that join neighbours). A pattern sees its piece alone: look-ahead
 * ends at the piece's end and $ matches there, as in Hugging Face, where every piece is a string of its own. */
#include "engine/text/tokenizer_internal.h"
#include "engine/base/hash64.h"

#include <string.h>

/* GPT-2's words, which ByteLevel cuts when use_regex is true. */
#define GPT2_WORDS "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* ---- opening ---- */

static int add_stage(struct tokenizer_loading *l, const char *pattern, int literal, enum behavior behavior, int invert)
{
    struct vb_tokenizer *t = l->t;
    if (t->n_stages == MAX_STAGES)
        return vb_fail(l->err, VB_UNSUPPORTED, "%s: more than %d pre-tokenizers", l->file, MAX_STAGES);
    struct stage *stage = &t->stages[t->n_stages];
    int rc = VB_OK;
    stage->behavior = behavior;
    stage->invert = invert;
    if (pattern && literal) {
        rc = pattern_compile(l, pattern, PCRE2_LITERAL, &stage->code);
    } else if (pattern) {
        char *pcre;
        if (!(rc = pattern_translate(l, pattern, &pcre)))
            rc = pattern_compile(l, pcre, PCRE2_UCP | PCRE2_MULTILINE, &stage->code);
        vb_free(&t->memory.allocator, pcre);
    }
    t->stages_hash = hash64(t->stages_hash, (int[]){literal, (int)behavior, invert, !pattern}, 4 * sizeof(int));
    t->stages_hash = hash64(t->stages_hash, pattern, pattern ? strlen(pattern) : 0);
    t->n_stages += !rc;
    return rc;
}

static int load_split(struct tokenizer_loading *l, const json_t *object)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const json_t *pattern = get_member(object, "pattern"), *regex = get_member(pattern, "Regex");
    const char *text = json_string_value(regex ? regex : get_member(pattern, "String"));
    const char *behavior = json_string_value(get_member(object, "behavior"));
    int invert, rc = get_flag(l, object, "pre_tokenizer Split", "invert", 0, &invert);
    if (rc)
        return rc;
    if (!text || !behavior)
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: a Split without a pattern (Regex or String) or a behavior",
                       l->file);
    for (int k = 0; k < 5; k++)
        if (!strcmp(behavior, names[k]))
            return add_stage(l, text, !regex, (enum behavior)k, invert);
    return vb_fail(l->err, VB_UNSUPPORTED, "%s: Split has the behavior \"%s\", which is not implemented", l->file,
                   token_show(behavior).text);
}

static int load_digits(struct tokenizer_loading *l, const json_t *object)
{
    int each, rc = get_flag(l, object, "pre_tokenizer Digits", "individual_digits", 0, &each);
    return rc ? rc : add_stage(l, "\\p{N}", 0, each ? ISOLATED : CONTIGUOUS, 0);
}

static int load_byte_level(struct tokenizer_loading *l, const json_t *object)
{
    int space, words, rc;
    if ((rc = get_flag(l, object, "pre_tokenizer ByteLevel", "add_prefix_space", 1, &space)) ||
        (rc = get_flag(l, object, "pre_tokenizer ByteLevel", "use_regex", 1, &words)))
        return rc;
    if (space && (rc = add_stage(l, NULL, 0, ISOLATED, 0)))
        return rc;
    return words ? add_stage(l, GPT2_WORDS, 0, ISOLATED, 0) : VB_OK;
}

/* *bytes becomes 1 at ByteLevel, which has to be the last: behind it the text is no longer made of its characters. */
static int load_stage(struct tokenizer_loading *l, const json_t *object, int *bytes)
{
    const char *type = json_string_value(get_member(object, "type"));
    if (!type)
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: a pre-tokenizer without a type", l->file);
    if (!strcmp(type, "Sequence")) {
        const json_t *list = get_member(object, "pretokenizers");
        if (!json_is_array(list))
            return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: the pre-tokenizer Sequence has no list", l->file);
        int rc = VB_OK;
        for (size_t i = 0; !rc && i < json_array_size(list); i++)
            rc = load_stage(l, json_array_get(list, i), bytes);
        return rc;
    }
    if (*bytes)
        return vb_fail(l->err, VB_UNSUPPORTED, "%s: the pre-tokenizer %s stands behind ByteLevel", l->file,
                       token_show(type).text);
    if (!strcmp(type, "Split"))
        return load_split(l, object);
    if (!strcmp(type, "Digits"))
        return load_digits(l, object);
    if (!strcmp(type, "ByteLevel")) {
        *bytes = 1;
        return load_byte_level(l, object);
    }
    return vb_fail(l->err, VB_UNSUPPORTED, "%s: the pre-tokenizer %s is not implemented", l->file,
                   token_show(type).text);
}

int split_load(struct tokenizer_loading *l, const json_t *pre_tokenizer)
{
    int bytes = 0, rc = pre_tokenizer ? load_stage(l, pre_tokenizer, &bytes) : VB_OK;
    if (!rc && !bytes)
        return vb_fail(l->err, VB_UNSUPPORTED, "%s: not a byte-level tokenizer (no pre-tokenizer ByteLevel)", l->file);
    return rc;
}

void split_close(struct vb_tokenizer *t)
{
    for (int i = 0; i < t->n_stages; i++)
        pcre2_code_free(t->stages[i].code);
}

/* ---- cutting ---- */

struct cut {
    struct encoding *e;
    int stage;
    const char *text;
    size_t begin, end; /* the piece that may still be joined with what comes next; begin == end: none */
    int last_matched;  /* whether the last stretch was a match (before it: no) */
    int waiting;
};

static int emit(struct cut *c, size_t begin, size_t end)
{
    return begin == end ? VB_OK : split_and_encode(c->e, c->stage + 1, c->text + begin, end - begin);
}

/* The next stretch of the text: a match or what lies between two. */
static int stretch(struct cut *c, size_t begin, size_t end, int matched)
{
    const struct stage *stage = &c->e->t->stages[c->stage];
    int joins = 0, last = c->last_matched, rc = VB_OK;
    matched ^= stage->invert;
    c->last_matched = matched;
    switch (stage->behavior) {
    case ISOLATED:
        return emit(c, begin, end);
    case REMOVED:
        return matched ? VB_OK : emit(c, begin, end);
    case MERGED_WITH_PREVIOUS:
        joins = matched && !last;
        break;
    case MERGED_WITH_NEXT:
        joins = !matched && last;
        break;
    case CONTIGUOUS:
        joins = matched == last;
        break;
    }
    if (c->waiting && joins) {
        c->end = end;
        return VB_OK;
    }
    if (c->waiting)
        rc = emit(c, c->begin, c->end);
    c->begin = begin;
    c->end = end;
    c->waiting = 1;
    return rc;
}

static int cut_text(struct encoding *e, int stage, const char *text, size_t size)
{
    struct cut c = {.e = e, .stage = stage, .text = text};
    const pcre2_code *code = e->t->stages[stage].code;
    size_t search = 0, done = 0;
    int rc, any = 0;
    while (search <= size && (rc = match_at(e, code, text, size, search))) {
        if (rc < 0)
            return rc;
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(e->match);
        size_t begin = o[0], end = o[1];
        if (begin == end && any && end == done) { /* an empty match right behind the last match is none */
            size_t n = 1;
            if (search < size)
                utf8_at(text + search, &n);
            search += n;
            continue;
        }
        if ((begin > done && (rc = stretch(&c, done, begin, 0))) || (rc = stretch(&c, begin, end, 1)))
            return rc;
        search = done = end;
        any = 1;
    }
    if (done < size && (rc = stretch(&c, done, size, 0)))
        return rc;
    return c.waiting ? emit(&c, c.begin, c.end) : VB_OK;
}

/* text: size >= 1 bytes of valid UTF-8. */
int split_and_encode(struct encoding *e, int stage, const char *text, size_t size)
{
    const struct vb_tokenizer *t = e->t;
    if (stage == t->n_stages)
        return e->words ? encoding_push(e, (int32_t)size) : bpe_encode(e, text, size);
    if (t->stages[stage].code)
        return cut_text(e, stage, text, size);
    if (*text == ' ')
        return split_and_encode(e, stage + 1, text, size);
    if (size + 1 > e->spaced_capacity) {
        vb_free(&t->memory.allocator, e->spaced);
        e->spaced_capacity = 0;
        if (!(e->spaced = vb_alloc(&t->memory.allocator, size + 1, 1)))
            return vb_fail(e->err, VB_NO_MEMORY, "no memory for %zu bytes of text", size);
        e->spaced_capacity = size + 1;
    }
    e->spaced[0] = ' ';
    memcpy(e->spaced + 1, text, size);
    return split_and_encode(e, stage + 1, e->spaced, size + 1);
}
