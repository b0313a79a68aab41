/* tools/trace/html.c -- writes a trace as one web page: the files tools/trace/page* of one sequence, or those of a
 * batch, with the JSON objects of the trace in them. */
#include "tools/cli/page.h"
#include "tools/trace/trace.h"

/* Includes the texts of the pages in the program. */
#define STYLE ".incbin \"tools/trace/page_style.html\"\n"
#define SCRIPT ".ascii \"<script>\\n\"\n.incbin \"tools/trace/page_text.js\"\n.incbin \"tools/trace/page_books.js\"\n"
#define END ".ascii \"</script>\\n</body>\\n</html>\\n\"\n.byte 0\n"
__asm__(".section .rodata\n"
        ".global trace_page\n"
        "trace_page:\n" STYLE
        ".incbin \"tools/trace/page.html\"\n" SCRIPT
        ".incbin \"tools/trace/page_replay.js\"\n"
        ".incbin \"tools/trace/page_draw.js\"\n"
        ".incbin \"tools/trace/page.js\"\n" END
        ".global trace_batch_page\n"
        "trace_batch_page:\n" STYLE
        ".incbin \"tools/trace/batch_page.html\"\n" SCRIPT
        ".incbin \"tools/trace/batch_page.js\"\n" END
        ".previous\n");
extern const char trace_page[], trace_batch_page[];

int trace_html(const struct cli *c, const json_t *begin, const json_t *passes, const json_t *end)
{
    json_t *all = json_pack("{s:O,s:O,s:O}", "begin", begin, "passes", passes, "end", end);
    int code = cli_page(c, c->html, c->prompts ? trace_batch_page : trace_page, "@TRACE@", all);
    json_decref(all);
    return code;
}
