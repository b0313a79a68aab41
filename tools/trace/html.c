/* tools/trace/html.c -- writes a trace as one web page: tools/trace/trace.html with the JSON objects of the trace in
 * it. */
#include <stdlib.h>
#include <string.h>

#include "tools/cli/file.h"
#include "tools/trace/trace.h"

/* Includes the text of the page in the program. */
__asm__(".section .rodata\n"
        ".global trace_page\n"
        "trace_page:\n"
        ".incbin \"tools/trace/trace.html\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char trace_page[];

#define MARK "@TRACE@" /* the place for the objects in the page, inside <script type="application/json"> */

/* Writes the object as JSON. Each "<" is written as an escape sequence, so that the text cannot end the script
 * element. */
static void write_objects(FILE *f, const json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    cli_must(text);
    for (const char *p = text; *p; p++)
        *p == '<' ? fputs("\\u003c", f) : fputc(*p, f);
    free(text);
}

int trace_html(const struct cli *c, const json_t *begin, const json_t *passes, const json_t *end)
{
    const char *mark = strstr(trace_page, MARK);
    struct cli_file file;
    FILE *f = cli_file_begin(c, &file, c->html);
    if (!f)
        return EXIT_OTHER;
    json_t *all = json_pack("{s:O,s:O,s:O}", "begin", begin, "passes", passes, "end", end);
    fwrite(trace_page, 1, (size_t)(mark - trace_page), f);
    write_objects(f, all);
    fputs(mark + strlen(MARK), f);
    json_decref(all);
    return cli_file_end(c, &file, NULL);
}
