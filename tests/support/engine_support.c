/* tests/support/engine_support.c -- for tests of the engine: models, recorded runs, comparisons, changed
 * checkpoints. */
#include "tests/support/engine_support.h"

const char *head_of(const char *method)
{
    static const char *const heads[][2] = {
                                           {"eagle", "golden/eagle/eagle1-v3"}, {"eagle3", "golden/eagle/eagle3-v3"},
                                           {"parallel-heads", "golden/heads/parallel-v3"}};
    for (size_t i = 0; i < COUNT(heads); i++)
        if (method && !strcmp(method, heads[i][0]))
            return heads[i][1];
    return NULL;
}

const char *mtp_method(size_t i) { return i % 2 ? "mtp-eagle" : "mtp-vanilla"; }

/* ---- models ------------------------------------------------------------------------------------------------------ */

vb_model *open_cached(const char *dir, const char *cache_type)
{
    vb_model *m = NULL;
    OK(vb_model_open(&m, dir, &(vb_model_options){.cache_type = cache_type}, &err));
    return m;
}

vb_model *open_model(const char *dir) { return open_cached(dir, NULL); }

vb_model *open_tiny(const char *name)
{
    char dir[256];
    snprintf(dir, sizeof dir, "golden/tiny/%s", name);
    return open_model(dir);
}

int have_tale(void)
{
    static int told;
    if (vb_file_exists("golden/tale/config.json"))
        return 1;
    if (!told++)
        print_message("skipped: golden/tale, which is not there\n");
    return 0;
}

void random_tokens(const vb_model *m, uint64_t seed, int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)random_below(&seed, (size_t)vb_vocab_size(m));
}

const char *const *isas_here(void)
{
    static const char *names[8];
    size_t n = 0;
    for (const struct kernels *const *t = kernel_tables; *t; t++)
        if (kernels_runs_here(*t))
            names[n++] = (*t)->name;
    names[n] = NULL;
    return names;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

int record_event(void *context, const vb_event *e)
{
    struct record *r = context;
    assert_true(r->n < MOST_TOLD);
    r->token[r->n] = e->token;
    r->index[r->n] = e->index;
    r->depth[r->n] = e->draft_depth;
    r->row[r->n++] = vb_fingerprint(VB_FINGERPRINT_START, e->logits, r->V);
    return r->n == r->stop_after;
}

vb_generate_options recording(struct record *r, const vb_session *s, size_t n)
{
    *r = (struct record){.V = (size_t)vb_vocab_size(s->model), .stop_after = r->stop_after};
    return (vb_generate_options){.max_tokens = n, .ignore_eos = 1, .fingerprint = 1, .callback = record_event,
                                 .context = r};
}

void generate(vb_session *s, size_t n, struct record *r)
{
    r->stop_after = 0;
    vb_generate_options o = recording(r, s, n);
    OK(vb_generate(s, &o, &r->result, &err));
    assert_int_equal(r->result.tokens, r->n);
}

vb_session *open_session(const vb_model *m, const vb_session_options *o, const int32_t *prompt, size_t n)
{
    vb_session *s = NULL;
    OK(vb_session_open(&s, m, o, &err));
    OK(vb_append(s, prompt, n, &err));
    return s;
}

void drop(struct record *r, size_t i)
{
    r->n -= i;
    memmove(r->token, r->token + i, r->n * sizeof *r->token);
    memmove(r->row, r->row + i, r->n * sizeof *r->row);
}

/* ---- sessions that share passes ---- */

struct part {
    int code;
    vb_error error;
    vb_result *result;
};

static void end_of_part(void *context, const vb_request_end *e)
{
    struct part *p = context;
    p->code = e->code;
    *p->result = *e->result;
    if (e->error)
        p->error = *e->error;
}

int generate_together(vb_session *const *sessions, size_t count, const vb_generate_options *options, vb_result *results,
                      vb_error *err)
{
    struct part parts[64] = {0};
    vb_session_options like = sessions[0]->options;
    vb_batch_options o = {.session = &like, .max_sequences = (int32_t)count,
                          .cache_tokens = 2 * VB_MAX_NODES};
    vb_batch *b = NULL;
    if (like.prefill && !strcmp(like.prefill, "onednn"))
        like.prefill = NULL; /* the prompts are done */
    int code = vb_batch_open(&b, sessions[0]->model, &o, err);
    for (size_t i = 0; i < count && !code; i++) {
        parts[i].result = &results[i];
        code = vb_batch_add(b,
                            &(vb_request){.session = sessions[i], .options = &options[i], .done = end_of_part,
                                          .context = &parts[i]},
                            NULL, err);
    }
    if (!code)
        code = vb_batch_run(b, err);
    for (size_t i = 0; i < count && !code; i++)
        if ((code = parts[i].code))
            *err = parts[i].error;
    vb_batch_close(b);
    return code;
}

void run(const vb_model *m, const vb_session_options *o, const int32_t *prompt, size_t count, size_t n,
         struct record *r)
{
    vb_session *s = open_session(m, o, prompt, count);
    generate(s, n, r);
    vb_session_close(s);
}

void run_plain(const vb_model *m, const vb_sampling *sampling, const int32_t *prompt, size_t count, size_t n,
               struct record *r)
{
    vb_session_options o = {.threads = 1, .drafting.method = "none", .context = (int32_t)(count + n)};
    if (sampling)
        o.sampling = *sampling;
    run(m, &o, prompt, count, n, r);
}

void check_same_prefix(const char *what, const struct record *a, const struct record *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i >= a->n || i >= b->n)
            fail_msg("%s: %zu tokens, plain decoding gave %zu, wanted at least %zu", what, b->n, a->n, n);
        if (a->row[i] != b->row[i])
            fail_msg("%s: row of token %zu (index %zu, draft depth %d) differs from plain decoding; the token is %d, "
                     "was %d",
                     what, i, b->index[i], b->depth[i], (int)b->token[i], (int)a->token[i]);
        if (a->token[i] != b->token[i])
            fail_msg("%s: token %zu is %d, in plain decoding it is %d (equal rows)", what, i, (int)b->token[i],
                     (int)a->token[i]);
    }
}

void check_same(const char *what, const struct record *a, const struct record *b)
{
    check_same_prefix(what, a, b, a->n);
    if (a->n != b->n)
        fail_msg("%s: %zu tokens, plain decoding gave %zu", what, b->n, a->n);
    if (a->result.fingerprint != b->result.fingerprint)
        fail_msg("%s: fingerprint %016" PRIx64 ", plain decoding has %016" PRIx64, what, b->result.fingerprint,
                 a->result.fingerprint);
}

/* ---- drafters made by tests -------------------------------------------------------------------------------------- */

size_t no_rewind(const struct drafter *d)
{
    (void)d;
    return 0;
}

void close_nothing(struct drafter *d) { (void)d; }

void give_drafter(vb_session *s, const struct drafter_type *type, void *drafter, int K)
{
    assert_null(s->type);
    s->type = type;
    s->drafter = drafter;
    s->max_draft = s->max_drafts = K;
}

/* ---- checkpoints changed for a test ------------------------------------------------------------------------------ */

void copy_checkpoint(char dir[64], const char *from)
{
    make_dir(dir);
    DIR *d = opendir(from);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512], *data;
        size_t size;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%.200s", from, e->d_name);
        OK(vb_read_file(NULL, path, &data, &size, &err));
        write_file(dir, e->d_name, data, size);
        vb_free(NULL, data);
    }
    closedir(d);
}

void break_tensor(const char *dir, const char *name, size_t first, size_t n, int infinite)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    int found = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[512], *data;
        size_t size, length = strlen(e->d_name), width = 0;
        uint64_t header_size;
        if (length < 12 || strcmp(e->d_name + length - 12, ".safetensors"))
            continue;
        snprintf(path, sizeof path, "%s/%.200s", dir, e->d_name);
        OK(vb_read_file(NULL, path, &data, &size, &err));
        memcpy(&header_size, data, 8);
        json_t *header = json_loadb(data + 8, header_size, 0, NULL), *t = json_object_get(header, name);
        if (t) {
            const char *dtype = json_string_value(json_object_get(t, "dtype"));
            size_t at = 8 + header_size +
                        (size_t)json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0));
            uint32_t bits = !strcmp(dtype, "F32") ? (infinite ? 0x7f800000 : 0x7fc00000)
                            : !strcmp(dtype, "BF16") ? (infinite ? 0x7f80 : 0x7fc0)
                            : !strcmp(dtype, "F16") ? (infinite ? 0x7c00 : 0x7e00) : 0x7f;
            width = !strcmp(dtype, "F32") ? 4 : !strcmp(dtype, "F8_E4M3") ? 1 : 2;
            for (size_t i = first; i < first + n; i++)
                memcpy(data + at + i * width, &bits, width);
            write_file(dir, e->d_name, data, size);
            found++;
        }
        json_decref(header);
        vb_free(NULL, data);
    }
    closedir(d);
    if (found != 1)
        fail_msg("%s is stored in %d files of %s", name, found, dir);
}
