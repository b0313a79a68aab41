#include "ops/onednn.h"

#ifdef VB_ONEDNN

#include <dlfcn.h>
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libdnnl.so.2" /* of the major version whose header the build found */

#define CALLS(_)                                                                                                       \
    _(version) _(engine_create) _(engine_destroy) _(stream_create) _(stream_destroy) _(stream_wait)                    \
    _(memory_desc_init_by_strides) _(matmul_desc_init) _(primitive_desc_create) _(primitive_desc_destroy)              \
    _(primitive_create) _(primitive_destroy) _(primitive_execute) _(memory_create) _(memory_destroy)                   \
    _(memory_set_data_handle) _(primitive_attr_create) _(primitive_attr_destroy)                                       \
    _(primitive_attr_set_scratchpad_mode) _(primitive_desc_query_md) _(memory_desc_get_size)

struct made { /* what runs one shape */
    struct onednn_shape shape;
    dnnl_primitive_t primitive;
    dnnl_memory_t x, w, y, scratch;
};

struct onednn {
    void *library;
#define POINTER(name) __typeof__(dnnl_##name) *name;
    struct {
        CALLS(POINTER)
    } call;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t ours; /* scratchpads are: oneDNN's own may belong to the thread that made the primitive */
    void *scratch;
    size_t scratch_size;
    int threads;
    char version[32];
    struct made *made;
    size_t count, last; /* last: the one that ran before, most often the next too */
    size_t oldest;      /* once there are ONEDNN_MOST_SHAPES: who makes room */
    const char *failed; /* not asked for yet */
};

static int load(struct onednn *o)
{
    /* never unloaded: threads of OpenMP have run its code */
    o->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    int missing = !o->library;
#define LOOK_UP(name) missing = missing || !(*(void **)(void *)&o->call.name = dlsym(o->library, "dnnl_" #name));
    CALLS(LOOK_UP)
    return !missing;
}

const char *onednn_open(struct onednn **out, int threads)
{
    const char *why = NULL;
    struct onednn *o = calloc(1, sizeof *o);
    *out = NULL;
    if (!o)
        return "no memory for oneDNN";
    o->threads = threads;
    o->made = calloc(ONEDNN_MOST_SHAPES, sizeof *o->made);
    if (!o->made)
        why = "no memory for oneDNN";
    else if (!load(o))
        why = LIBRARY " could not be loaded";
    else if (o->call.engine_create(&o->engine, dnnl_cpu, 0) != dnnl_success ||
             o->call.stream_create(&o->stream, o->engine, dnnl_stream_default_flags) != dnnl_success ||
             o->call.primitive_attr_create(&o->ours) != dnnl_success ||
             o->call.primitive_attr_set_scratchpad_mode(o->ours, dnnl_scratchpad_mode_user) != dnnl_success)
        why = "oneDNN has no engine for this CPU";
    if (why) {
        onednn_close(o);
        return why;
    }
    const dnnl_version_t *v = o->call.version();
    snprintf(o->version, sizeof o->version, "%d.%d.%d", v->major, v->minor, v->patch);
    *out = o;
    return NULL;
}

static void unmake(struct onednn *o, struct made *m)
{
    if (m->primitive)
        o->call.primitive_destroy(m->primitive);
    if (m->x)
        o->call.memory_destroy(m->x);
    if (m->w)
        o->call.memory_destroy(m->w);
    if (m->y)
        o->call.memory_destroy(m->y);
    if (m->scratch)
        o->call.memory_destroy(m->scratch);
}

void onednn_close(struct onednn *o)
{
    if (!o)
        return;
    for (size_t i = 0; i < o->count; i++)
        unmake(o, &o->made[i]);
    free(o->made);
    free(o->scratch);
    if (o->ours)
        o->call.primitive_attr_destroy(o->ours);
    if (o->stream)
        o->call.stream_destroy(o->stream);
    if (o->engine)
        o->call.engine_destroy(o->engine);
    if (o->library)
        dlclose(o->library);
    free(o);
}

const char *onednn_version(const struct onednn *o) { return o->version; }

/* A matrix whose element (i, j) lies at i*along_i + j*along_j. */
static int describe(struct onednn *o, dnnl_memory_desc_t *d, enum onednn_type type, size_t rows, size_t cols,
                    size_t along_i, size_t along_j)
{
    dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols}, strides = {(dnnl_dim_t)along_i, (dnnl_dim_t)along_j};
    return o->call.memory_desc_init_by_strides(d, 2, dims, type == ONEDNN_BF16 ? dnnl_bf16 : dnnl_f32, strides) ==
           dnnl_success;
}

/* Memory for the largest of all shapes; each is told where it lies when it runs. */
static int reserve_scratch(struct onednn *o, struct made *m, dnnl_primitive_desc_t described)
{
    const dnnl_memory_desc_t *d = o->call.primitive_desc_query_md(described, dnnl_query_scratchpad_md, 0);
    size_t size = d ? o->call.memory_desc_get_size(d) : 0;
    if (size > o->scratch_size) {
        free(o->scratch);
        o->scratch_size = size;
        if (posix_memalign(&o->scratch, 64, size))
            o->scratch = NULL, o->scratch_size = 0;
    }
    return d && size <= o->scratch_size &&
           o->call.memory_create(&m->scratch, d, o->engine, DNNL_MEMORY_NONE) == dnnl_success;
}

/* oneDNN multiplies [S,K] by [K,N]: the second is W read by columns. */
static int make(struct onednn *o, struct made *m)
{
    const struct onednn_shape *s = &m->shape;
    dnnl_memory_desc_t x, w, y;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t described = NULL;
    int done = describe(o, &x, s->x, s->S, s->K, s->ldx, 1) && describe(o, &w, s->w, s->K, s->N, 1, s->ldw) &&
               describe(o, &y, ONEDNN_F32, s->S, s->N, s->ldy, 1) &&
               o->call.matmul_desc_init(&matmul, &x, &w, NULL, &y) == dnnl_success &&
               o->call.primitive_desc_create(&described, &matmul, o->ours, o->engine, NULL) == dnnl_success &&
               reserve_scratch(o, m, described) &&
               o->call.primitive_create(&m->primitive, described) == dnnl_success &&
               o->call.memory_create(&m->x, &x, o->engine, DNNL_MEMORY_NONE) == dnnl_success &&
               o->call.memory_create(&m->w, &w, o->engine, DNNL_MEMORY_NONE) == dnnl_success &&
               o->call.memory_create(&m->y, &y, o->engine, DNNL_MEMORY_NONE) == dnnl_success;
    if (described)
        o->call.primitive_desc_destroy(described);
    return done;
}

static int same(const struct onednn_shape *a, const struct onednn_shape *b)
{
    return a->S == b->S && a->N == b->N && a->K == b->K && a->ldx == b->ldx && a->ldw == b->ldw && a->ldy == b->ldy &&
           a->x == b->x && a->w == b->w;
}

/* Leaves the shape's primitive in `last`. The work is divided when it is made, for the threads that OpenMP promises
 * then. */
const char *onednn_prepare(struct onednn *o, const struct onednn_shape *shape)
{
    for (size_t i = 0; i < o->count; i++) {
        size_t k = (o->last + i) % o->count;
        if (same(&o->made[k].shape, shape)) {
            o->last = k;
            return NULL;
        }
    }
    struct made m = {.shape = *shape};
    int before = op_foreign_threads(o->threads), done = make(o, &m);
    op_foreign_threads(before);
    if (!done) {
        unmake(o, &m);
        return "oneDNN cannot multiply matrices of this shape and these types";
    }
    if (o->count < ONEDNN_MOST_SHAPES) {
        o->last = o->count++;
    } else {
        o->last = o->oldest;
        o->oldest = (o->oldest + 1) % ONEDNN_MOST_SHAPES;
        unmake(o, &o->made[o->last]);
    }
    o->made[o->last] = m;
    return NULL;
}

const char *onednn_lacks(struct onednn *o, enum onednn_type type)
{
    struct onednn_shape any = {32, 32, 32, 32, 32, 32, type, type};
    if (!onednn_prepare(o, &any))
        return NULL;
    return type == ONEDNN_BF16 ? "oneDNN cannot multiply BF16 matrices on this CPU"
                               : "oneDNN cannot multiply F32 matrices on this CPU";
}

static const char *run(struct onednn *o, float *y, const void *x, const void *w, const struct onednn_shape *shape)
{
    const char *why = onednn_prepare(o, shape);
    if (why)
        return why;
    const struct made *m = &o->made[o->last];
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, m->x}, {DNNL_ARG_WEIGHTS, m->w}, {DNNL_ARG_DST, m->y},
                              {DNNL_ARG_SCRATCHPAD, m->scratch}};
    int before = op_foreign_threads(o->threads);
    int failed = o->call.memory_set_data_handle(m->x, (void *)(uintptr_t)x) != dnnl_success ||
                 o->call.memory_set_data_handle(m->w, (void *)(uintptr_t)w) != dnnl_success ||
                 o->call.memory_set_data_handle(m->y, y) != dnnl_success ||
                 o->call.memory_set_data_handle(m->scratch, o->scratch) != dnnl_success ||
                 o->call.primitive_execute(m->primitive, o->stream, 4, args) != dnnl_success ||
                 o->call.stream_wait(o->stream) != dnnl_success;
    op_foreign_threads(before);
    return failed ? "oneDNN failed" : NULL;
}

const char *onednn_linear(struct onednn *o, float *y, const void *x, const void *w, const struct onednn_shape *shape)
{
    const char *why = run(o, y, x, w, shape);
    if (why && !o->failed)
        o->failed = why;
    return why;
}

const char *onednn_failure(struct onednn *o)
{
    const char *why = o->failed;
    o->failed = NULL;
    return why;
}

#else

const char *onednn_open(struct onednn **out, int threads)
{
    (void)threads;
    *out = NULL;
    return "built without oneDNN";
}

void onednn_close(struct onednn *o) { (void)o; }
const char *onednn_version(const struct onednn *o) { return (void)o, ""; }
const char *onednn_failure(struct onednn *o) { return (void)o, NULL; }
const char *onednn_lacks(struct onednn *o, enum onednn_type type)
{
    return (void)o, (void)type, "built without oneDNN";
}
const char *onednn_prepare(struct onednn *o, const struct onednn_shape *shape)
{
    return (void)o, (void)shape, "built without oneDNN";
}

const char *onednn_linear(struct onednn *o, float *y, const void *x, const void *w, const struct onednn_shape *shape)
{
    (void)y, (void)x, (void)w;
    return onednn_prepare(o, shape);
}

#endif
