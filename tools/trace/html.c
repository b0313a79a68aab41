/* tools/trace/html.c -- writes a trace as one web page: the files tools/trace/page*, with the JSON objects of the trace in them. */
#include "tools/cli/page.h"
#include "tools/trace/trace.h"

/* Includes the text of the page in the program. */
__asm__(".section .rodata\n"
        ".global trace_page\n"
        "trace_page:\n"
        ".incbin \"tools/trace/page_style.html\"\n"
        ".incbin \"tools/trace/page.html\"\n"
        ".ascii \"<script>\\n\"\n"
        ".incbin \"tools/trace/page_text.js\"\n"
        ".incbin \"tools/trace/page_replay.js\"\n"
        ".incbin \"tools/trace/page_draw.js\"\n"
        ".incbin \"tools/trace/page.js\"\n"
        ".ascii \"</script>\\n</body>\\n</html>\\n\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char trace_page[];

int trace_html(const struct cli *c, const json_t *begin, const json_t *passes, const json_t *end)
{
    json_t *all = json_pack("{s:O,s:O,s:O}", "begin", begin, "passes", passes, "end", end);
    int code = cli_page(c, c->html, trace_page, "@TRACE@", all);
    json_decref(all);
    return code;
}
