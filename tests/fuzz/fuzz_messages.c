/* tests/fuzz/fuzz_messages.c -- any bytes as the file of --messages, rendered by a template that looks at what messages
 * may have. Runs in the repository's root. */
#include "engine/template/template.h"
#include "tests/support/fuzz.h"
#include "tools/cli/cli.h"

static const char template[] =
    "{% for m in messages %}{{ m.role }}{{ m['content'] }}{% if m.content is string %}{{ "
    "m.content.split('</think>')[-1] | trim }}{% endif %}{% for call in m.tool_calls | default([]) %}{{ "
    "call['function']['name'] }}{{ call.function.arguments | tojson }}{% endfor %}{% if m.reasoning_content is defined "
    "%}{{ m.reasoning_content ~ '' }}{% endif %}{% endfor %}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct cli c = {.n = -1};
    char path[64], *text;
    size_t n;
    vb_error err;
    if (!c.tokenizer) {
        be_silent();
        demand(!vb_tokenizer_open(&c.tokenizer, "golden/tale", NULL, &err));
        demand(!template_parse(&c.template, template, sizeof template - 1, "t", NULL, &err));
    }
    int fd = memory_file(path, data, size);
    c.messages = path;
    if (cli_chat_text(&c, &text, &n) == EXIT_DONE)
        demand(vb_utf8_valid(text, n) == n && !text[n]);
    vb_text_free(text);
    close(fd);
    return 0;
}
