/* tools/serve/meaning.c -- the parser: see meaning.h. Bytes become text and markers; these move it from one place to
 * the next. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/serve/meaning_internal.h"
#include "numbers/numbers.h"

#define MOST_MARK 40 /* bytes of the longest marker, and more */

enum meaning_place {
    AT_BEGIN,    /* only whitespace was read: <think> may follow */
    IN_TEXT,     /* of the current channel */
    IN_SECTION,  /* between calls, inside of a section */
    IN_HEAD,     /* behind MARK_CALL; GLM: in the name */
    IN_BODY,     /* behind MARK_SEP */
    IN_KEY,      /* GLM */
    BEHIND_KEY,
    IN_VALUE,
    BEHIND_VALUE
};

struct meaning_parser {
    struct meaning_options o;
    struct meaning_sink sink;
    void *context;               /* of the sink, during a call */
    enum meaning_place place;
    int is_reasoning;            /* the channel */
    int has_marks;               /* something may be found in the text */
    char partial[MOST_MARK];     /* the beginning of what may become a marker */
    size_t partial_size;
    struct serve_writer blanks;  /* whitespace that is left out if a marker follows */
    int seam;                    /* a marker was left out, and since then nothing but whitespace was read */
    struct meaning_call call;    /* its text is what is held back */
    int is_shown;                /* the section's first marker became content */
    int is_begun;                /* the sink knows the call already (options.valid) */
    int is_cut;                  /* the arguments of such a call have not become complete */
    size_t told;                 /* bytes of its arguments that the sink has */
    int calls;
    long last_number;            /* Kimi-K2's of the last call */
    int rc;                      /* the first error */
};

/* ---- saying ------------------------------------------------------------------------------------------------------ */

static void note(struct meaning_parser *m, int rc) { m->rc = m->rc ? m->rc : rc; }

static void check(struct meaning_parser *m, const struct serve_writer *w)
{
    if (w->failed)
        note(m, VB_NO_MEMORY);
}

static void emit(struct meaning_parser *m, const char *text, size_t size)
{
    if (size && !m->rc)
        note(m, (m->is_reasoning ? m->sink.reasoning : m->sink.content)(m->context, text, size));
}

static void emit_blanks(struct meaning_parser *m)
{
    emit(m, m->blanks.text, m->blanks.size);
    m->blanks.size = 0;
}

/* Text of the current channel. Whitespace at its end waits for what follows. */
static void say(struct meaning_parser *m, const char *text, size_t size)
{
    size_t n = size;
    if (!size)
        return;
    if (!m->has_marks) {
        emit(m, text, size);
        return;
    }
    while (m->seam && n && meaning_is_blank(*text))
        text++, n--;
    size = n;
    while (n && meaning_is_blank(text[n - 1]))
        n--;
    if (n) {
        m->seam = 0;
        emit_blanks(m);
        emit(m, text, n);
    }
    writer_bytes(&m->blanks, text + n, size - n);
    check(m, &m->blanks);
}

/* A marker is left out of the answer. */
static void leave_seam(struct meaning_parser *m)
{
    m->blanks.size = 0;
    m->seam = 1;
}

/* ---- what is held back ------------------------------------------------------------------------------------------- */

static void hold(struct meaning_parser *m, const char *text, size_t size)
{
    writer_bytes(&m->call.text, text, size);
    check(m, &m->call.text);
}

static void drop_held(struct meaning_parser *m)
{
    m->call.text.size = m->call.arguments.size = 0;
    m->is_begun = 0;
    m->told = 0;
    m->call.scan = (struct json_scan){0};
    m->call.is_begun = 0;
}

/* What is held back is no call. The parser goes on at `place`. */
static void give_up(struct meaning_parser *m, enum meaning_place place)
{
    if (!m->is_begun)
        say(m, m->call.text.text, m->call.text.size);
    m->is_cut |= m->is_begun && !json_scan_is_whole(&m->call.scan);
    drop_held(m);
    m->is_shown = 1;
    m->place = place;
}

static void give_up_call(struct meaning_parser *m)
{
    give_up(m, m->o.kind.calls == MEANING_GLM ? IN_TEXT : IN_SECTION);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* The call's id: Kimi-K2's own, if it differs from all before; else from the salt. */
static void make_id(struct meaning_parser *m, const char *name, size_t size, long number, char id[MEANING_ID])
{
    if (number > m->last_number) {
        snprintf(id, MEANING_ID, "functions.%.*s:%ld", (int)size, name, number);
        m->last_number = number;
        return;
    }
    snprintf(id, MEANING_ID, "call_%016" PRIx64, splitmix64_at(m->o.salt, (uint64_t)m->calls));
}

static void begin_call(struct meaning_parser *m, const char *name, size_t size, long number)
{
    char id[MEANING_ID];
    make_id(m, name, size, number, id);
    leave_seam(m);
    m->is_reasoning = 0;
    m->is_begun = 1;
    note(m, m->sink.call(m->context, m->calls++, id, name, size));
}

static void tell_arguments(struct meaning_parser *m, const char *json, size_t size)
{
    if (size > m->told && !m->rc)
        note(m, m->sink.arguments(m->context, m->calls - 1, json + m->told, size - m->told));
    m->told = size > m->told ? size : m->told;
}

static int is_left_out(const struct meaning_parser *m)
{
    return !m->is_begun && m->o.most_calls && m->calls >= m->o.most_calls;
}

/* options.valid: says what is known of a call whose arguments have begun. */
static void tell_early(struct meaning_parser *m)
{
    const char *name;
    size_t size;
    long number;
    int has_pairs = meaning_has_pairs(m->o.kind.calls);
    const struct serve_writer *from = has_pairs ? &m->call.arguments : &m->call.text;
    if (!m->o.valid || is_left_out(m) || m->rc || (has_pairs ? m->place <= IN_HEAD : !m->call.is_begun))
        return;
    if (!m->is_begun && meaning_name(m->o.kind.calls, &m->call, &name, &size, &number))
        begin_call(m, name, size, number);
    if (m->is_begun)
        tell_arguments(m, has_pairs ? from->text : from->text + m->call.json,
                       has_pairs ? from->size : m->call.json_end - m->call.json);
}

/* Behind MARK_END_CALL. */
static void end_call(struct meaning_parser *m)
{
    const char *name, *json;
    size_t name_size, size;
    long number;
    int found = meaning_name(m->o.kind.calls, &m->call, &name, &name_size, &number);
    int rc = found ? meaning_arguments(m->o.kind.calls, &m->call, &json, &size) : 0;
    if (rc != 0 && rc != 1)
        note(m, rc);
    if (m->rc)
        return;
    if (rc != 1) {
        hold(m, meaning_mark(m->o.kind.calls, MARK_END_CALL), strlen(meaning_mark(m->o.kind.calls, MARK_END_CALL)));
        give_up_call(m);
        return;
    }
    if (is_left_out(m)) {
        m->is_reasoning = 0;
        leave_seam(m);
    } else {
        if (!m->is_begun)
            begin_call(m, name, name_size, number);
        tell_arguments(m, json, size);
    }
    drop_held(m);
    m->place = m->o.kind.calls == MEANING_GLM ? IN_TEXT : IN_SECTION;
}

/* The first marker of a section or, for GLM, of a call. */
static void begin_section(struct meaning_parser *m, enum meaning_mark mark)
{
    const char *text = meaning_mark(m->o.kind.calls, mark);
    hold(m, text, strlen(text));
    m->is_shown = 0;
    m->call.head = m->call.text.size;
    m->place = mark == MARK_CALL ? IN_HEAD : IN_SECTION;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static size_t count_blanks(const char *text, size_t size)
{
    size_t n = 0;
    while (n < size && meaning_is_blank(text[n]))
        n++;
    return n;
}

static void body_text(struct meaning_parser *m, const char *text, size_t size)
{
    struct meaning_call *call = &m->call;
    for (size_t i = 0; i < size; i++) {
        size_t at = call->text.size + i;
        if (!call->is_begun && text[i] == '{') {
            call->is_begun = 1;
            call->json = at;
        }
        if (!call->is_begun || (json_scan_is_whole(&call->scan) && call->json < at))
            continue; /* only whitespace and a fence are around the arguments */
        json_scan_byte(&call->scan, text[i]);
        call->json_end = at + 1;
    }
    hold(m, text, size);
}

/* Reads a part of a text without markers, at least a byte of it unless the place changes. Returns its size. */
static size_t read_text(struct meaning_parser *m, const char *text, size_t size)
{
    size_t n = size;
    switch (m->place) {
    case AT_BEGIN:
        n = count_blanks(text, size);
        writer_bytes(&m->blanks, text, m->seam ? 0 : n);
        check(m, &m->blanks);
        if (n < size)
            m->place = IN_TEXT;
        return n;
    case IN_TEXT: say(m, text, size); return size;
    case IN_SECTION:
    case BEHIND_KEY:
    case BEHIND_VALUE:
        n = count_blanks(text, size);
        hold(m, text, n);
        if (n < size)
            give_up(m, IN_TEXT);
        return n;
    case IN_HEAD:
        n = m->call.head + 2 * MEANING_NAME - m->call.text.size;
        n = n < size ? n : size;
        hold(m, text, n);
        if (n < size)
            give_up_call(m);
        return n;
    case IN_BODY: body_text(m, text, size); break;
    default: hold(m, text, size);
    }
    return size;
}

static void put_text(struct meaning_parser *m, const char *text, size_t size)
{
    while (size && !m->rc) {
        size_t n = read_text(m, text, size);
        text += n;
        size -= n;
    }
    tell_early(m);
}

/* ---- markers ----------------------------------------------------------------------------------------------------- */

/* Each reads a marker at its place. 1: done; 0: the place has changed, where the marker is read again. */

static int mark_in_text(struct meaning_parser *m, enum meaning_mark mark)
{
    enum meaning_calls calls = m->o.kind.calls;
    const char *text = meaning_mark(calls, mark);
    enum meaning_mark first = calls == MEANING_GLM ? MARK_CALL : MARK_CALLS;
    if (m->place == AT_BEGIN && mark == MARK_THINK) {
        m->is_reasoning = 1;
        leave_seam(m);
    } else if (m->is_reasoning && mark == MARK_END_THINK) {
        leave_seam(m);
        m->is_reasoning = 0;
    } else if (mark == first &&
               (!m->is_reasoning ||
                (calls == MEANING_KIMI_K2 && !m->o.valid))) { /* Kimi-K2 may call without ending its thoughts */
        begin_section(m, mark);
        return 1;
    } else {
        say(m, text, strlen(text));
    }
    m->place = IN_TEXT;
    return 1;
}

static int mark_in_section(struct meaning_parser *m, enum meaning_mark mark)
{
    const char *text = meaning_mark(m->o.kind.calls, mark);
    int is_empty = !m->is_shown && m->call.text.size && m->call.text.text[0] == '<'; /* the section's own marker is
                                                                                        still held */
    if (mark == MARK_CALL) {
        hold(m, text, strlen(text));
        m->call.head = m->call.text.size;
        m->place = IN_HEAD;
    } else if (mark == MARK_END_CALLS && !m->is_shown && !is_empty) {
        drop_held(m);
        leave_seam(m);
        m->place = IN_TEXT;
    } else {
        int ends = mark == MARK_END_CALLS;
        if (ends)
            hold(m, text, strlen(text));
        give_up(m, IN_TEXT);
        return ends;
    }
    return 1;
}

/* From each place inside of a call: the marker that leads on, and where to. */
static int mark_in_call(struct meaning_parser *m, enum meaning_mark mark)
{
    struct meaning_call *call = &m->call;
    const char *text = meaning_mark(m->o.kind.calls, mark);
    int has_pairs = meaning_has_pairs(m->o.kind.calls), is_dsml = m->o.kind.calls == MEANING_DEEPSEEK_V32;
    enum meaning_place place = m->place;
    int is_thought = mark == MARK_THINK || mark == MARK_END_THINK;
    if ((place == IN_BODY && json_scan_in_string(&call->scan)) ||
        (is_thought && (place == IN_KEY || place == IN_VALUE))) {
        read_text(m, text, strlen(text));
        return 1;
    }
    if (mark == MARK_END_CALL && (has_pairs ? place == IN_HEAD || place == BEHIND_VALUE : place == IN_BODY)) {
        call->head_end = place == IN_HEAD ? call->text.size : call->head_end;
        end_call(m);
        return 1;
    }
    int fits = (mark == MARK_SEP && place == IN_HEAD) ||
               (mark == MARK_KEY && (place == IN_HEAD || place == BEHIND_VALUE)) ||
               (mark == MARK_END_KEY && place == IN_KEY) || (mark == MARK_VALUE && place == BEHIND_KEY) ||
               (mark == MARK_END_VALUE && place == (is_dsml ? IN_KEY : IN_VALUE));
    int added = fits && is_dsml && mark == MARK_END_VALUE ? meaning_add_parameter(call) : 1;
    if (added < 0)
        note(m, added);
    if (!fits || !added) {
        give_up_call(m);
        return 0;
    }
    if (place == IN_HEAD)
        call->head_end = call->text.size;
    if (mark == MARK_END_KEY)
        call->key_end = call->text.size;
    if (mark == MARK_END_VALUE && !is_dsml && !meaning_add_value(m->o.tools, call))
        note(m, VB_NO_MEMORY);
    hold(m, text, strlen(text));
    if (mark == MARK_SEP)
        call->body = call->text.size;
    if (mark == MARK_KEY)
        call->key = call->text.size;
    if (mark == MARK_VALUE)
        call->value = call->text.size;
    m->place = mark == MARK_SEP ? IN_BODY
               : mark == MARK_KEY ? IN_KEY
               : mark == MARK_END_KEY ? BEHIND_KEY
               : mark == MARK_VALUE ? IN_VALUE
               : BEHIND_VALUE;
    return 1;
}

static void put_mark(struct meaning_parser *m, enum meaning_mark mark)
{
    int done = 0;
    while (!done && !m->rc)
        done = m->place <= IN_TEXT ? mark_in_text(m, mark)
               : m->place == IN_SECTION ? mark_in_section(m, mark)
               : mark_in_call(m, mark);
    tell_early(m);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* The marker that is `text`, or MEANING_MARKS if `text` is the beginning of one; -1: it is neither. */
static int find_mark(const struct meaning_parser *m, const char *text, size_t size)
{
    int found = -1;
    for (int i = 0; i < MEANING_MARKS; i++) {
        int is_wanted = i <= MARK_END_THINK ? m->o.start != MEANING_ANSWERS : m->o.parse_calls;
        const char *mark = is_wanted ? meaning_mark(m->o.kind.calls, (enum meaning_mark)i) : NULL;
        if (mark && !strncmp(mark, text, size))
            found = mark[size] ? MEANING_MARKS : i;
    }
    return found;
}

/* Reads one byte behind the < of what may become a marker. Returns 0 if it belongs to the text that follows. */
static int extend_mark(struct meaning_parser *m, char byte)
{
    m->partial[m->partial_size] = byte;
    int found = byte ? find_mark(m, m->partial, m->partial_size + 1) : -1;
    size_t size = m->partial_size;
    if (found == MEANING_MARKS) {
        m->partial_size++;
        return 1;
    }
    m->partial_size = 0;
    if (found >= 0)
        put_mark(m, (enum meaning_mark)found);
    else
        put_text(m, m->partial, size);
    return found >= 0;
}

int meaning_push(struct meaning_parser *m, void *context, const char *text, size_t size)
{
    m->context = context;
    for (size_t i = 0; i < size && !m->rc;) {
        if (m->partial_size) {
            i += (size_t)extend_mark(m, text[i]);
            continue;
        }
        const char *open = memchr(text + i, '<', size - i);
        size_t n = open ? (size_t)(open - text) - i : size - i;
        put_text(m, text + i, n);
        i += n + (open != NULL);
        m->partial[0] = '<';
        m->partial_size = open != NULL;
    }
    return m->rc;
}

int meaning_end(struct meaning_parser *m, void *context)
{
    size_t size = m->partial_size;
    m->context = context;
    m->partial_size = 0;
    put_text(m, m->partial, size);
    if (m->place > IN_TEXT)
        give_up(m, IN_TEXT);
    emit_blanks(m);
    return m->rc;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

int meaning_open(struct meaning_parser **out, const struct meaning_options *options, const struct meaning_sink *sink)
{
    struct meaning_parser *m = *out = calloc(1, sizeof *m);
    if (!m)
        return VB_NO_MEMORY;
    m->o = *options;
    m->sink = *sink;
    m->o.parse_calls = options->parse_calls && options->kind.calls != MEANING_NO_CALLS;
    m->o.start = options->kind.thinks ? options->start : MEANING_ANSWERS;
    m->is_reasoning = m->seam = m->o.start == MEANING_THINKS;
    m->place = m->o.start != MEANING_ANSWERS ? AT_BEGIN : IN_TEXT;
    m->has_marks = m->o.parse_calls || m->o.start != MEANING_ANSWERS;
    m->last_number = -1;
    return VB_OK;
}

int meaning_calls(const struct meaning_parser *m) { return m->calls; }

int meaning_is_cut(const struct meaning_parser *m) { return m->is_cut; }

void meaning_close(struct meaning_parser *m)
{
    if (!m)
        return;
    writer_close(&m->blanks);
    writer_close(&m->call.text);
    writer_close(&m->call.arguments);
    free(m);
}
