/* tests/fuzz/fuzz_session.c -- a session file of golden/tiny/v3-mtp3, as it is and with its checksums and sizes made to
 * fit: whatever stands in it, it is refused in one sentence, or loaded into a session that goes on. Runs in the
 * repository's root. */
#include "tests/support/fuzz.h"
#include "tests/support/session.h"

static vb_model *model;

/* Logits of hostile rows may be anything; so an end by VB_NOT_FINITE is an end. */
static void go_on(vb_session *s)
{
    vb_error err = {0};
    vb_result result;
    vb_generate_options o = {.max_tokens = 6, .ignore_eos = 1};
    size_t count;
    check(vb_generate(s, &o, &result, &err), &err);
    vb_tokens(s, &count);
    if (count > 3 && !check(vb_truncate(s, count - 3, &err), &err))
        check(vb_generate(s, &o, &result, &err), &err);
}

static void try_to_load(const char *path)
{
    static const char *const methods[] = {"mtp-eagle", "mtp-vanilla", "eagle-keep", "eagle-reroll"};
    vb_session_info info;
    vb_error err = {0};
    if (!check(vb_session_info_read(&info, path, 1, NULL, &err), &err))
        demand(info.computed < info.tokens && info.tokens <= info.context);
    for (size_t i = 0; i < 4; i++) {
        vb_session *s = NULL;
        vb_session_options o = {.context = 40, .threads = 1, .prefill_chunk = 20, .drafting.method = methods[i],
                                .drafting.tokens = 2};
        if (check(vb_session_load(&s, model, &o, path, NULL, &err), &err)) {
            demand(s == NULL);
            continue;
        }
        go_on(s);
        vb_session_close(s);
    }
}

static void from_memory(const uint8_t *bytes, size_t size)
{
    char path[64];
    int fd = memory_file(path, bytes, size);
    try_to_load(path);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!model)
        demand(!vb_model_open(&model, "golden/tiny/v3-mtp3", NULL, NULL));
    from_memory(data, size);
    if (size < SESSION_HEAD)
        return 0;
    uint8_t *bytes = malloc(size);
    demand(bytes != NULL);
    memcpy(bytes, data, size);
    make_checksums_fit(bytes, size);
    from_memory(bytes, size);
    free(bytes);
    return 0;
}
