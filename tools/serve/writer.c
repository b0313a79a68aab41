/* tools/serve/writer.c -- a text that grows. */
#include "tools/serve/writer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/verbatim.h"

void writer_close(struct serve_writer *w)
{
    free(w->text);
    *w = (struct serve_writer){0};
}

static int make_room(struct serve_writer *w, size_t size)
{
    if (w->failed)
        return 0;
    if (w->room - w->size > size)
        return 1;
    size_t room = 2 * (w->size + size) + 256;
    char *text = realloc(w->text, room);
    w->failed = !text;
    if (text) {
        w->text = text;
        w->room = room;
    }
    return text != NULL;
}

void writer_bytes(struct serve_writer *w, const char *bytes, size_t size)
{
    if (!size || !make_room(w, size))
        return;
    memcpy(w->text + w->size, bytes, size);
    w->size += size;
}

void writer_put(struct serve_writer *w, const char *text) { writer_bytes(w, text, strlen(text)); }

void writer_format(struct serve_writer *w, const char *format, ...)
{
    va_list args;
    char text[512];
    va_start(args, format);
    int size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    writer_bytes(w, text, size < 0 ? 0 : (size_t)size < sizeof text ? (size_t)size : sizeof text - 1);
}

static void escape(struct serve_writer *w, unsigned char ch)
{
    static const char letters[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    for (const char *p = letters; *p; p += 2)
        if ((unsigned char)*p == ch) {
            char two[2] = {'\\', p[1]};
            writer_bytes(w, two, 2);
            return;
        }
    writer_format(w, "\\u%04x", ch);
}

void writer_string(struct serve_writer *w, const char *bytes, size_t size)
{
    writer_put(w, "\"");
    while (size) {
        size_t valid = vb_utf8_valid(bytes, size), from = 0;
        for (size_t i = 0; i < valid; i++)
            if ((unsigned char)bytes[i] < 0x20 || bytes[i] == '"' || bytes[i] == '\\' || bytes[i] == 0x7f) {
                writer_bytes(w, bytes + from, i - from);
                escape(w, (unsigned char)bytes[i]);
                from = i + 1;
            }
        writer_bytes(w, bytes + from, valid - from);
        bytes += valid;
        size -= valid;
        if (size) {
            writer_put(w, "\xef\xbf\xbd");
            bytes++;
            size--;
        }
    }
    writer_put(w, "\"");
}

void writer_number(struct serve_writer *w, double number)
{
    if (isfinite(number))
        writer_format(w, "%.17g", number);
    else
        writer_put(w, "null");
}
