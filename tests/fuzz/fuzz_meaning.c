/* tests/fuzz/fuzz_meaning.c -- any text as a chat answer, in every format. It means the same wherever it is cut, and no
 * byte is lost: what the sink gets is the text without markers, the whitespace beside them, and what a call has of its
 * own. */
#include "tests/support/fuzz.h"
#include "tests/support/meanings.h"

static const char tools_text[] = "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"t\": "
                                 "{\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}}}}}]";

/* Bytes of a text that are not whitespace; the text of the formats' markers counts apart. */
static size_t solid(const char *text, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < size; i++)
        n += !strchr(" \n\t\r", text[i]) || !text[i];
    return n;
}

/* Without calls only <think> and </think> are left out, once each. */
static void account(const struct meaning_options *o, const char *text, size_t size, const struct meaning_said *said)
{
    size_t out = 0, calls = 0;
    const char *end = said->text.text + said->text.size;
    for (const char *p = said->text.text; p < end;) {
        const char *next = p + 3 < end ? memmem(p + 3, (size_t)(end - p) - 3, "\xc2\xa6", 2) : NULL;
        next = next ? next : end;
        calls += p[2] == 'T';
        out += solid(p + 3, (size_t)(next - p) - 3);
        p = next;
    }
    size_t in = solid(text, size), left_out = in - out;
    if (!calls)
        demand(in >= out && (!left_out || (o->kind.thinks && (left_out == 7 || left_out == 8 || left_out == 15))));
}

static void read_as(struct meaning_options *o, const char *text, size_t size)
{
    struct meaning_said whole = {.has_ids = 1};
    demand(!meaning_of(&whole, o, text, size, size, size, 0));
    if (!memmem(text, size, "\xc2\xa6", 2)) /* the sign that begins the parts of what was said */
        account(o, text, size, &whole);
    for (size_t step = 1; step < 8; step += 3) {
        struct meaning_said cut = {.has_ids = 1};
        demand(!meaning_of(&cut, o, text, size, 0, 0, step));
        demand(cut.text.size == whole.text.size &&
               (!cut.text.size || !memcmp(cut.text.text, whole.text.text, cut.text.size)));
        writer_close(&cut.text);
    }
    writer_close(&whole.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    struct meaning_options o = {.parse_calls = 1, .tools = json_loads(tools_text, 0, NULL)};
    demand(o.tools != NULL);
    for (int calls = MEANING_NO_CALLS; calls <= MEANING_DEEPSEEK_V32; calls++)
        for (int start = MEANING_MAY_THINK; start <= MEANING_ANSWERS; start++) {
            o.kind = (struct meaning_kind){(enum meaning_calls)calls, start != MEANING_ANSWERS};
            o.start = (enum meaning_start)start;
            o.salt = size;
            read_as(&o, text, size);
        }
    json_decref((json_t *)(uintptr_t)o.tools);
    return 0;
}
