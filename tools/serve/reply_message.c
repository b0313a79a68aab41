/* tools/serve/reply_message.c -- the text of a chat's answer as the fields of a message or of a delta. */
#include <string.h>

#include "tools/serve/reply_internal.h"

/* What one piece of the text means. Of the calls all is written but the last one's arguments, while `in_call` is
 * nonzero. */
struct message_parts {
    struct serve_writer reasoning, content, calls, arguments;
    int whole, in_call;
};

static int add_reasoning(void *context, const char *text, size_t size)
{
    struct message_parts *p = context;
    writer_bytes(&p->reasoning, text, size);
    return p->reasoning.failed ? VB_NO_MEMORY : VB_OK;
}

static int add_content(void *context, const char *text, size_t size)
{
    struct message_parts *p = context;
    writer_bytes(&p->content, text, size);
    return p->content.failed ? VB_NO_MEMORY : VB_OK;
}

static void end_call(struct message_parts *p)
{
    if (!p->in_call)
        return;
    writer_string(&p->calls, p->arguments.text, p->arguments.size);
    writer_put(&p->calls, "}}");
    p->calls.failed |= p->arguments.failed;
    p->arguments.size = 0;
    p->in_call = 0;
}

static void begin_entry(struct message_parts *p, int number)
{
    end_call(p);
    writer_put(&p->calls, p->calls.size ? ", {" : "{");
    if (!p->whole)
        writer_format(&p->calls, "\"index\": %d, ", number);
    p->in_call = 1;
}

static int add_call(void *context, int number, const char *id, const char *name, size_t size)
{
    struct message_parts *p = context;
    begin_entry(p, number);
    writer_put(&p->calls, "\"id\": ");
    writer_string(&p->calls, id, strlen(id));
    writer_put(&p->calls, ", \"type\": \"function\", \"function\": {\"name\": ");
    writer_string(&p->calls, name, size);
    writer_put(&p->calls, ", \"arguments\": ");
    return p->calls.failed ? VB_NO_MEMORY : VB_OK;
}

/* A piece of arguments whose call an earlier delta has begun has an entry without id and name. */
static int add_arguments(void *context, int number, const char *text, size_t size)
{
    struct message_parts *p = context;
    if (!p->in_call) {
        begin_entry(p, number);
        writer_put(&p->calls, "\"function\": {\"arguments\": ");
    }
    writer_bytes(&p->arguments, text, size);
    return p->calls.failed || p->arguments.failed ? VB_NO_MEMORY : VB_OK;
}

static int open_parser(const struct serve_choice *choice, struct serve_cursor *at)
{
    struct meaning_options o = choice->job->meaning;
    const struct meaning_sink sink = {add_reasoning, add_content, add_call, add_arguments};
    o.salt += (uint64_t)choice->index << 32;
    return at->parser ? VB_OK : meaning_open(&at->parser, &o, &sink);
}

static void put_parts(struct serve_writer *w, const struct message_parts *p)
{
    if (p->reasoning.size) {
        writer_put(w, "\"reasoning_content\": ");
        writer_string(w, p->reasoning.text, p->reasoning.size);
        writer_put(w, ", ");
    }
    writer_put(w, "\"content\": ");
    if (p->calls.size && !p->content.size)
        writer_put(w, "null");
    else
        writer_string(w, p->content.text, p->content.size);
    if (p->calls.size) {
        writer_put(w, ", \"tool_calls\": [");
        writer_bytes(w, p->calls.text, p->calls.size);
        writer_put(w, "]");
    }
}

void reply_message(struct serve_writer *w, const struct serve_choice *choice, struct serve_cursor *at, const char *text,
                   size_t size, int final, int whole)
{
    struct message_parts p = {.whole = whole};
    int rc = open_parser(choice, at);
    if (!rc)
        rc = meaning_push(at->parser, &p, text, size);
    if (!rc && final)
        rc = meaning_end(at->parser, &p);
    end_call(&p);
    put_parts(w, &p);
    struct serve_writer *all[] = {&p.reasoning, &p.content, &p.calls, &p.arguments};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        w->failed |= all[i]->failed;
        writer_close(all[i]);
    }
    w->failed |= rc != VB_OK;
}
