/* engine/session/save.c -- a session to a file, and computing a prompt without choosing anything, which is what comes
 * before where one machine reads and another one writes. */
#include <string.h>

#include "simd/fpenv.h"
#include "engine/pass/forward.h"
#include "engine/base/options.h"
#include "engine/model/numa.h"
#include "engine/session/prefill.h"
#include "engine/session/identity.h"
#include "engine/session/routes.h"
#include "engine/session/session.h"

/* ---- vb_prefill ---- */

struct prefilling {
    struct vb_session *s;
    struct plan p;
    size_t rows;
};

/* Returns -1 when it was given up. */
static int one_pass(struct prefilling *f)
{
    struct vb_session *s = f->s;
    f->rows = session_rows(s, &f->p, s->rows);
    if (f->p.by_library)
        prefill_begin(s->pass);
    int stopped = forward_target(s->pass, s->rows, f->rows);
    if (f->p.by_library)
        prefill_end(s->pass);
    return stopped;
}

/* The next part of the prompt; 0 when only what chooses is left. */
static int plan_part(struct prefilling *f)
{
    struct vb_session *s = f->s;
    if (s->count - s->cached < 2)
        return 0;
    session_plan(s, &f->p, s->chunk, 0);
    if (f->p.chooses && f->p.by_library) /* a chunk is computed whole: with the row that chooses */
        return 0;
    f->p.committed -= (size_t)f->p.chooses;
    f->p.chooses = f->p.padding = 0;
    return 1;
}

int vb_prefill(vb_session *s, vb_error *err)
{
    struct prefilling f = {.s = s};
    if (!s->count)
        return vb_fail(err, VB_BAD_ARGUMENT, "the prompt is empty");
    struct fpenv env = fpenv_enter();
    struct numa_visit visit = numa_enter(s->model);
    int code = VB_OK;
    while (!code && plan_part(&f)) {
        if (one_pass(&f)) {
            code = session_give_up(s, err);
            break;
        }
        code = pass_failed(s->pass, err);
        trace_pass(s->tracer, -1, s->rows, f.rows);
        session_finish(s, s->pass, &f.p, NULL, 0);
        if (!code)
            code = pass_failed(s->pass, err);
        if (session_draft_stopped(s) && !code)
            code = vb_fail(err, VB_STOPPED, "stopped by the caller");
        if (s->options.progress)
            s->options.progress(s->options.progress_context, s->cached, s->count - 1);
    }
    numa_leave(&visit);
    fpenv_leave(env);
    return code;
}

/* ---- sections ---- */

static void write_line(struct session_writer *w, const char *key, const char *value)
{
    session_write(w, key, strlen(key));
    session_write(w, "=", 1);
    for (size_t i = 0; i < 4096 && value[i]; i++) /* a path may hold anything */
        session_write(w, (unsigned char)value[i] < 0x20 || value[i] == 0x7f ? "?" : value + i, 1);
    session_write(w, "\n", 1);
}

static void write_about(struct session_writer *w, const struct vb_session *s, int hidden)
{
    char conventions[512], routes[ROUTES_HASH];
    routes_hash(s->model, &s->options.routes, s->cached, routes);
    conventions_list_draft(&s->model->config.conventions, conventions, sizeof conventions);
    write_line(w, "checkpoint", checkpoint_dir(s->model->checkpoint));
    write_line(w, "prefill", prefill_kind(s));
    write_line(w, "forced routes", routes);
    write_line(w, "draft", s->type ? s->type->name : "none");
    write_line(w, "draft conventions", conventions);
    write_line(w, "hidden rows", s->type && s->type->save && hidden ? "yes" : "no");
}

static void write_output(struct session_writer *w, const struct vb_session *s)
{
    for (int32_t token = 0; token < s->model->config.vocab_size; token++) {
        const int32_t pair[] = {token, sampler_in_output(s->sampler, token)};
        if (pair[1])
            session_write(w, pair, sizeof pair);
    }
}

/* Layer by layer, in pieces short enough to tell progress and to stop between them. */
static int write_cache(struct session_writer *w, const struct vb_session *s, const vb_file_options *o, vb_error *err)
{
    size_t bytes = s->cached * w->head.width * sizeof(float); /* of a layer */
    for (size_t layer = 0; layer < s->cache.pool->layers && !w->error; layer++) {
        session_write_rows(w, &s->cache, layer, s->cached, w->head.width);
        if (o->progress && o->progress(o->progress_context, (layer + 1) * bytes, s->cache.pool->layers * bytes))
            return vb_fail(err, VB_STOPPED, "stopped by the caller");
    }
    for (size_t layer = 0; layer < s->cache.pool->layout.index_layers && !w->error; layer++)
        session_write_index_rows(w, &s->cache, layer, s->cached);
    return VB_OK;
}

static int write_sections(struct session_writer *w, struct vb_session *s, const char *identity,
                          const vb_file_options *o, vb_error *err)
{
    session_file_section(w, SECTION_ABOUT);
    write_about(w, s, !o->without_hidden);
    session_file_section(w, SECTION_MODEL);
    session_write(w, identity, strlen(identity));
    session_file_section(w, SECTION_TOKENS);
    session_write(w, s->tokens, s->count * sizeof *s->tokens);
    session_file_section(w, SECTION_OUTPUT);
    write_output(w, s);
    session_file_section(w, SECTION_CACHE);
    int code = write_cache(w, s, o, err);
    session_file_section(w, SECTION_DRAFTER);
    if (!code && s->type && s->type->save && s->cached)
        s->type->save(s->drafter, s->pass, s->cached + 1, !o->without_hidden, w);
    return code;
}

int vb_session_save(vb_session *s, const char *path, const vb_file_options *options, vb_error *err)
{
    vb_file_options o;
    const struct config *c = &s->model->config;
    struct kv_layout layout = model_cache_layout(c);
    struct session_writer w = {.head = {.version = layout.index_layers ? SESSION_VERSION
                                                   : layout.type == KV_F32 ? 1
                                                   : 2,
                                        .layers = (uint32_t)c->num_hidden_layers,
                                        .width = (uint32_t)kv_row_words(&layout), .tokens = s->count, .rows = s->cached,
                                        .prompt = s->prompt, .given = s->given, .context = s->context}};
    if (OPTIONS_COPY(&o, vb_file_options, options, err))
        return VB_BAD_ARGUMENT;
    if (!s->count)
        return vb_fail(err, VB_BAD_ARGUMENT, "%s: the session is empty: there is nothing to save", path);
    struct fpenv env = fpenv_enter();
    struct numa_visit visit = numa_enter(s->model);
    char *identity = session_identity(s->model, s->context);
    int code = identity ? session_file_begin(&w, path, o.replace, s->model->allocator, err)
                        : vb_fail(err, VB_NO_MEMORY, "%s: no memory for writing it", path);
    if (!code)
        code = session_file_end(&w, write_sections(&w, s, identity, &o, err), err);
    vb_free(s->model->allocator, identity);
    numa_leave(&visit);
    fpenv_leave(env);
    return code;
}
