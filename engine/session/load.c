/* engine/session/load.c -- loads a session from a file. All contents of the file are checked: somebody could make a
 * file with correct checksums and wrong contents. */
#include <string.h>

#include "simd/fpenv.h"
#include "engine/base/options.h"
#include "engine/model/numa.h"
#include "engine/pass/lead.h"
#include "engine/session/prefill.h"
#include "engine/session/identity.h"
#include "engine/session/routes.h"
#include "engine/session/session.h"

struct session_loading {
    struct session_reader in;
    char *about, *model; /* contents of the sections `about` and `model` */
    vb_file_options options;
    vb_error *err;
};

/* Opens the file and reads the header and the sections `about` and `model`. The next section is `tokens`. */
static int open_file(struct session_loading *l, const char *path, const vb_file_options *o, const vb_allocator *a,
                     vb_error *err)
{
    *l = (struct session_loading){.err = err};
    int code = OPTIONS_COPY(&l->options, vb_file_options, o, err);
    if (!code)
        code = session_reader_open(&l->in, path, a, err);
    if (code)
        return code;
    code = session_read_lines(&l->in, SECTION_ABOUT, &l->about, err);
    return code ? code : session_read_lines(&l->in, SECTION_MODEL, &l->model, err);
}

static void close_file(struct session_loading *l)
{
    session_reader_close(&l->in);
    vb_free(l->in.allocator, l->about);
    vb_free(l->in.allocator, l->model);
}

static int line_is(const struct session_loading *l, const char *key, const char *wanted)
{
    size_t size;
    const char *value = session_line(l->about, key, &size);
    return value && size == strlen(wanted) && !memcmp(value, wanted, size);
}

static int wrong(const struct session_loading *l, const char *what) { return session_bad(&l->in, l->err, what); }

static int stopped(const struct session_loading *l)
{
    const vb_file_options *o = &l->options;
    return o->progress && o->progress(o->progress_context, l->in.done, l->in.head.bytes)
               ? vb_fail(l->err, VB_STOPPED, "stopped by the caller") : VB_OK;
}

/* ---- does it fit? ---- */

/* Returns the size of a cache section with the rows of the file, for a model whose cache has this layout. */
static uint64_t cache_size(const struct session_loading *l, const struct kv_layout *layout)
{
    return l->in.head.rows * (l->in.head.layers * kv_row_words(layout) * 4 + layout->index_layers * layout->index_row);
}

static int check_model(const struct session_loading *l, const struct vb_model *m, const vb_session_options *o)
{
    size_t context = o->context > 0 ? (size_t)o->context : m->config.dims.positions;
    char *ours = session_identity(m, context);
    struct kv_layout layout = model_cache_layout(&m->config);
    if (!ours)
        return vb_fail(l->err, VB_NO_MEMORY, "%s: no memory for reading it", l->in.path);
    int code = session_identity_compare(l->model, ours, m, l->in.path, l->err);
    vb_free(m->allocator, ours);
    if (!code && l->in.head.tokens > context)
        code = vb_fail(l->err, VB_BAD_ARGUMENT, "%s holds %llu tokens, the context %zu", l->in.path,
                       (unsigned long long)l->in.head.tokens, context);
    if (!code && (l->in.head.layers != (uint32_t)m->config.num_hidden_layers ||
                  l->in.head.width != (uint32_t)kv_row_words(&layout) ||
                  l->in.head.section[SECTION_CACHE].size != cache_size(l, &layout)))
        code = wrong(l, "wrong: its cache is not one of its model");
    return code;
}

static const char *saved_prefill(const struct session_loading *l)
{
    static const char *const others[] = {"expanded", "onednn", "cublas"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (line_is(l, "prefill", others[i]))
            return others[i];
    return "contract";
}

static int same_prefill(const struct session_loading *l, const struct vb_session *s)
{
    return !strcmp(saved_prefill(l), prefill_kind(s));
}

/* If rows of the prompt have not been computed yet, they must be computed with the same kind of prefill as in the saved
 * session. Otherwise returns an error. If all rows of the prompt have been computed, the kind of prefill does not
 * matter. */
static int check_prefill(const struct session_loading *l, const struct vb_session *s)
{
    const struct session_head *h = &l->in.head;
    if (h->rows >= h->prompt)
        return VB_OK;
    if (same_prefill(l, s))
        return prefill_has_chunks(s) && h->rows % PREFILL_CHUNK
                   ? wrong(l, "wrong: it ends within a chunk of its prefill")
                   : VB_OK;
    return vb_fail(l->err, VB_BAD_ARGUMENT,
                   "%s was saved with prefill %s, with rows of the prompt still due; here it is %s", l->in.path,
                   saved_prefill(l), prefill_kind(s));
}

/* The rows in the file were computed with forced routes, or without. Rows that are computed later must fit them. A file
 * without the line was written before routes could be forced. */
static int check_routes(const struct session_loading *l, const struct vb_session *s)
{
    char ours[ROUTES_HASH];
    size_t size;
    routes_hash(s->model, &s->options.routes, (size_t)l->in.head.rows, ours);
    if (line_is(l, "forced routes", ours) || (!session_line(l->about, "forced routes", &size) && !strcmp(ours, "none")))
        return VB_OK;
    return vb_fail(l->err, VB_BAD_ARGUMENT, "%s was saved with other forced routes for its %llu computed tokens",
                   l->in.path, (unsigned long long)l->in.head.rows);
}

/* ---- sections ---- */

static int read_tokens(struct session_loading *l, struct vb_session *s)
{
    size_t count = (size_t)l->in.head.tokens;
    int code = VB_OK;
    session_read_section(&l->in, SECTION_TOKENS);
    session_read(&l->in, s->tokens, count * sizeof *s->tokens);
    for (size_t i = 0; i < count && !code; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= s->model->config.vocab_size)
            code = wrong(l, "wrong: one of its tokens is outside the vocabulary");
    for (size_t i = 0; i < count && !code; i++)
        sampler_saw_prompt(s->sampler, s->tokens[i]);
    return session_section_end(&l->in, code, l->err);
}

static int read_output(struct session_loading *l, struct vb_session *s)
{
    uint64_t pairs = l->in.head.section[SECTION_OUTPUT].size / 8, left = l->in.head.tokens;
    int32_t before = -1;
    int code = VB_OK;
    session_read_section(&l->in, SECTION_OUTPUT);
    for (uint64_t i = 0; i < pairs && !code; i++) {
        int32_t pair[2];
        session_read(&l->in, pair, sizeof pair);
        if (pair[0] <= before || pair[0] >= s->model->config.vocab_size || pair[1] < 1 || (uint64_t)pair[1] > left)
            code = wrong(l, "wrong: what it counts as output cannot be");
        for (int32_t n = 0; n < pair[1] && !code; n++)
            sampler_saw_output(s->sampler, pair[0]);
        left -= code ? 0 : (uint64_t)pair[1];
        before = pair[0];
    }
    return session_section_end(&l->in, code, l->err);
}

static int read_cache(struct session_loading *l, struct vb_session *s)
{
    size_t rows = (size_t)l->in.head.rows;
    int code = VB_OK;
    session_read_section(&l->in, SECTION_CACHE);
    for (size_t i = 0; i < rows; i++)
        kvcache_append(&s->cache);
    for (size_t layer = 0; layer < s->cache.pool->layers && !code; layer++) {
        if (session_read_rows(&l->in, &s->cache, layer, rows, l->in.head.width))
            break; /* session_section_end reports the error */
        code = stopped(l);
    }
    for (size_t layer = 0; layer < s->cache.pool->layout.index_layers && !code; layer++)
        if (session_read_index_rows(&l->in, &s->cache, layer, rows))
            break;
    kvcache_changed(&s->cache, 0, rows);
    return code == VB_STOPPED ? code : session_section_end(&l->in, code, l->err);
}

/* ---- the drafter ---- */

/* If the file has no state for the drafter, the drafter observes the tokens. The hidden states were not saved, so zeros
 * replace them. */
static void observe_with_zeros(struct vb_session *s)
{
    size_t rows = s->chunk, d;
    float *zeros = session_features(s, s->pass, 0, &d); /* memory of the workspace, which is free between two passes */
    memset(zeros, 0, rows * d * sizeof *zeros);
    s->type->observe(s->drafter, s->pass, 0, s->tokens, NULL, 1);
    for (size_t pos = 1, n; pos <= s->cached; pos += n) {
        n = s->cached + 1 - pos < rows ? s->cached + 1 - pos : rows;
        s->type->observe(s->drafter, s->pass, pos, s->tokens + pos, zeros, n);
    }
}

static int read_drafter(struct session_loading *l, struct vb_session *s)
{
    char conventions[512];
    int code = VB_OK, loaded = DRAFTER_OTHER;
    session_read_section(&l->in, SECTION_DRAFTER);
    conventions_list_draft(&s->model->config.conventions, conventions, sizeof conventions);
    if (s->type && s->type->load && s->cached && l->in.left && line_is(l, "draft", s->type->name) &&
        line_is(l, "draft conventions", conventions))
        loaded = s->type->load(s->drafter, s->pass, s->cached + 1, s->tokens, &l->in);
    if (loaded == DRAFTER_WRONG)
        code = wrong(l, "wrong: its drafter's state cannot be");
    code = session_section_end(&l->in, code, l->err);
    if (!code && loaded == DRAFTER_OTHER && s->type && s->cached)
        observe_with_zeros(s);
    s->observed = s->cached ? s->cached + 1 : 0;
    if (session_draft_stopped(s) && !code)
        code = vb_fail(l->err, VB_STOPPED, "stopped by the caller");
    return code ? code : stopped(l);
}

static int fill(struct session_loading *l, struct vb_session *s)
{
    const struct session_head *h = &l->in.head;
    int code = check_prefill(l, s);
    if (!code)
        code = check_routes(l, s);
    if (!code)
        code = read_tokens(l, s);
    if (!code)
        code = read_output(l, s);
    if (!code)
        code = read_cache(l, s);
    if (code)
        return code;
    s->count = (size_t)h->tokens;
    s->cached = s->routed = (size_t)h->rows;
    routes_unknown(s, s->cached);
    s->given = (size_t)h->given;
    /* If the session was saved with another kind of prefill, no row counts as a row of the prompt. After a cut, rows
     * are then computed again as with prefill contract. */
    s->prompt = same_prefill(l, s) ? (size_t)h->prompt : 0;
    return read_drafter(l, s);
}

int vb_session_load(vb_session **out, const vb_model *model, const vb_session_options *options, const char *path,
                    const vb_file_options *file_options, vb_error *err)
{
    struct session_loading l;
    vb_session_options o;
    vb_session *s = NULL;
    *out = NULL;
    if (session_options(&o, options, err))
        return VB_BAD_ARGUMENT;
    struct fpenv env = fpenv_enter();
    struct numa_visit visit = numa_enter(model);
    int code = open_file(&l, path, file_options, model->allocator, err);
    if (!code)
        code = check_model(&l, model, &o);
    if (!code)
        code = vb_session_open(&s, model, &o, err);
    if (!code)
        code = fill(&l, s);
    close_file(&l);
    if (code)
        vb_session_close(s);
    else
        *out = s;
    numa_leave(&visit);
    fpenv_leave(env);
    return code;
}

/* ---- what it says of itself ---- */

static void copy_line(char *to, size_t room, const char *text, const char *key)
{
    size_t size;
    const char *value = session_line(text, key, &size);
    size = !value ? 0 : size < room ? size : room - 1;
    if (value)
        memcpy(to, value, size);
    to[size] = '\0';
}

static int check_rest(struct session_loading *l)
{
    int code = VB_OK;
    for (int section = SECTION_TOKENS; section < SECTIONS && !code; section++) {
        char bytes[1 << 13];
        session_read_section(&l->in, (enum session_section)section);
        while (!code && l->in.left) {
            if (session_read(&l->in, bytes, l->in.left < sizeof bytes ? (size_t)l->in.left : sizeof bytes))
                break;
            code = stopped(l);
        }
        code = code ? code : session_section_end(&l->in, VB_OK, l->err);
    }
    return code;
}

int vb_session_info_read_sized(vb_session_info *out, size_t size, const char *path, int check,
                               const vb_file_options *options, vb_error *err)
{
    struct session_loading l;
    int code = open_file(&l, path, options, NULL, err);
    if (!code && check)
        code = check_rest(&l);
    if (!code) {
        const struct session_head *h = &l.in.head;
        vb_session_info info = {.version = h->version, .bytes = (size_t)h->bytes, .tokens = (size_t)h->tokens,
                                .computed = (size_t)h->rows, .context = (size_t)h->context,
                                .with_hidden = line_is(&l, "hidden rows", "yes"),
                                .drafter_bytes = (size_t)h->section[SECTION_DRAFTER].size};
        copy_line(info.checkpoint, sizeof info.checkpoint, l.about, "checkpoint");
        copy_line(info.prefill, sizeof info.prefill, l.about, "prefill");
        copy_line(info.routes, sizeof info.routes, l.about, "forced routes");
        if (!*info.routes)
            strcpy(info.routes, "none");
        copy_line(info.draft, sizeof info.draft, l.about, "draft");
        copy_line(info.draft_conventions, sizeof info.draft_conventions, l.about, "draft conventions");
        copy_line(info.architecture, sizeof info.architecture, l.model, "architecture");
        copy_line(info.precision, sizeof info.precision, l.model, "precision");
        copy_line(info.cache_type, sizeof info.cache_type, l.model, "cache type");
        if (!*info.cache_type)
            memcpy(info.cache_type, "f32", sizeof "f32");
        copy_line(info.conventions, sizeof info.conventions, l.model, "conventions");
        copy_line(info.weights, sizeof info.weights, l.model, "weights");
        struct_fill(out, size, &info, sizeof info);
    }
    close_file(&l);
    return code;
}
