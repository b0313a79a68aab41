#include "tools/cli/page.h"

#include <stdlib.h>
#include <string.h>

#include "tools/cli/file.h"

/* Each "<" is written as an escape sequence, so that no text can end the script element. */
static void write_object(FILE *f, const json_t *object)
{
    char *text = cli_must(json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)));
    for (const char *p = text; *p; p++)
        *p == '<' ? fputs("\\u003c", f) : fputc(*p, f);
    free(text);
}

int cli_page(const struct cli *c, const char *path, const char *page, const char *mark, const json_t *object)
{
    const char *at = strstr(page, mark);
    struct cli_file file;
    FILE *f = cli_file_begin(c, &file, path);
    if (!f)
        return EXIT_OTHER;
    fwrite(page, 1, (size_t)(at - page), f);
    write_object(f, object);
    fputs(at + strlen(mark), f);
    return cli_file_end(c, &file, NULL);
}
