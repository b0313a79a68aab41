/* tests/fuzz/fuzz_template.c -- any bytes as a chat template: parsing it and rendering a conversation must end in a
 * text or in one sentence. The seeds are golden/chat/. */
#include <stdlib.h>
#include <string.h>

#include "engine/template/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char conversation[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\\u00e9\"},{\"role\":\"user\",\"content\":\" hi \\n\"},"
    "{\"role\":\"assistant\",\"content\":\"<think>x</think>y\",\"tool_calls\":[{\"type\":\"function\","
    "\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,2.5,null,true,\"\\ud83d\\ude00\"]}}}]},{\"role\":\"tool\","
    "\"content\":\"r\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"t\"}]}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"bos_token\":\"<s>\",\"eos_token\":\"</s>\","
    "\"add_generation_prompt\":true}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct vb_template *t;
    vb_error err;
    struct template_marks marks;
    char *text;
    size_t n;
    if (template_parse(&t, (const char *)data, size, "chat_template.jinja", NULL, &err))
        return 0;
    json_t *variables = json_loads(conversation, 0, NULL);
    if (!variables)
        abort();
    if (!template_render_marked(t, variables, &marks, &text, &n, &err)) {
        if (strlen(text) > n || text[n])
            abort();
        for (size_t i = 0; i < marks.count; i++)
            if (marks.at[i].first > marks.at[i].end || marks.at[i].end > n)
                abort();
        vb_free(NULL, text);
    } else if (strchr(err.message, '\n') || !*err.message) {
        abort();
    }
    vb_free(NULL, marks.at);
    json_decref(variables);
    template_close(t);
    return 0;
}
