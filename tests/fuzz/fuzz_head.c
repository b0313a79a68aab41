/* tests/fuzz/fuzz_head.c -- any bytes as the config.json of a draft head, beside the weights of the heads in
 * golden/eagle and golden/heads. What is accepted has the shapes of its weights and drafts a few tokens. Runs in the
 * repository's root. */
#include "tests/support/fuzz.h"

#define KINDS 3

static char dir[KINDS][32] = {"/tmp/verbatim-fuzz-XXXXXX", "/tmp/verbatim-fuzz-XXXXXX", "/tmp/verbatim-fuzz-XXXXXX"};
static char config[KINDS][64], weights[KINDS][64];

static void leave(void)
{
    for (int i = 0; i < KINDS; i++) {
        remove(config[i]);
        remove(weights[i]);
        rmdir(dir[i]);
    }
}

static void open_once(vb_model **model)
{
    static const char *const heads[KINDS] = {"golden/eagle/eagle1-v3", "golden/eagle/eagle3-v3",
                                             "golden/heads/parallel-v3"};
    vb_error err;
    demand(!vb_model_open(model, "golden/tiny/v3", NULL, &err));
    for (int i = 0; i < KINDS; i++) {
        char from[256], target[512], *here = realpath(heads[i], NULL);
        demand(here && mkdtemp(dir[i]));
        snprintf(from, sizeof from, "%s", here);
        snprintf(target, sizeof target, "%s/model.safetensors", from);
        snprintf(config[i], sizeof config[i], "%s/config.json", dir[i]);
        snprintf(weights[i], sizeof weights[i], "%s/model.safetensors", dir[i]);
        demand(!symlink(target, weights[i]));
        free(here);
    }
    demand(!atexit(leave));
}

static void draft(const vb_model *model, int which)
{
    static const char *const methods[KINDS] = {"eagle", "eagle3", "parallel-heads"};
    vb_session *s = NULL;
    vb_result r;
    vb_error err = {0};
    vb_session_options options = {.context = 12, .threads = 1,
                                  .drafting = {.method = methods[which], .tokens = 2, .head = dir[which]}};
    if (check(vb_session_open(&s, model, &options, &err), &err))
        return;
    demand(!check(vb_append(s, (const int32_t[]){1, 2, 3}, 3, &err), &err));
    check(vb_generate(s, &(vb_generate_options){.max_tokens = 4, .ignore_eos = 1}, &r, &err), &err);
    vb_session_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static vb_model *model;
    if (!model)
        open_once(&model);
    for (int i = 0; i < KINDS; i++) {
        FILE *f = fopen(config[i], "wb");
        demand(f && fwrite(data, 1, size, f) == size && !fclose(f));
        draft(model, i);
    }
    return 0;
}
