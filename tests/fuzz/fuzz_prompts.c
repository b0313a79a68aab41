/* tests/fuzz/fuzz_prompts.c -- any bytes as the file of generate --prompts: each line becomes a prompt whose numbers
 * are in range, or is refused. Runs in the repository's root. */
#include "engine/template/template.h"
#include "tests/support/fuzz.h"
#include "tools/prompts/prompts.h"

#include <math.h>

static const char template[] = "{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}";

static void open_once(struct cli *c)
{
    vb_error err;
    be_silent();
    demand(!vb_model_open(&c->model, "golden/tiny/v3", NULL, &err));
    demand(!vb_tokenizer_open(&c->tokenizer, "golden/tale", NULL, &err));
    demand(!template_parse(&c->template, template, sizeof template - 1, "t", NULL, &err));
}

static void check_prompt(const struct cli *c, const struct prompt *p)
{
    for (size_t i = 0; i < p->count; i++)
        demand(p->tokens[i] >= 0 && p->tokens[i] < vb_vocab_size(c->model));
    demand(p->num_stops <= MOST_STOPS && p->max_tokens <= 1 << 30 && p->draft_tokens <= VB_MAX_DRAFT);
    demand(isfinite(p->sampling.temperature) && p->sampling.top_p >= 0 && p->sampling.top_p <= 1 &&
           p->sampling.top_k >= 0);
    for (size_t i = 0; i < p->num_stops; i++)
        demand(p->stop[i][0] != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct cli c = {.n = -1, .draft_tokens = -1};
    struct prompt_file f;
    struct prompt p;
    char path[64];
    if (!c.model)
        open_once(&c);
    int fd = memory_file(path, data, size);
    if (prompt_file_read(&c, &f, path) == EXIT_DONE)
        for (size_t i = 0; i < f.num_lines; i++)
            if (f.line[i].size && prompt_read(&c, &f.line[i], &p) == EXIT_DONE) {
                check_prompt(&c, &p);
                prompt_close(&p);
            }
    prompt_file_close(&f);
    close(fd);
    return 0;
}
