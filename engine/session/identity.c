/* engine/session/identity.c -- a model in some sixty lines. */
#include "engine/session/identity.h"
#include "engine/base/hash64.h"
#include "numbers/numbers.h"
#include "engine/base/decimal.h"
#include "ops/cuda/device.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct lines {
    char *text;
    size_t used;
};

static void add(struct lines *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct lines *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = decimal_vprint(l->text + l->used, SESSION_TEXT_ROOM - l->used, format, args);
    va_end(args);
    l->used += n > 0 && l->used + (size_t)n < SESSION_TEXT_ROOM ? (size_t)n : 0; /* there is ten times the room that it
                                                                                    needs */
}

char *session_identity(const struct vb_model *m, size_t context)
{
    const struct config *c = &m->config;
    struct lines l = {vb_alloc(m->allocator, SESSION_TEXT_ROOM, 1), 0};
    char value[32], conventions[512];
    const char *key;
    int from_default, long_enough = context > (size_t)c->rope_original_max_position_embeddings;
    if (!l.text)
        return NULL;
    add(&l, "architecture=%s\n", c->architecture);
    for (size_t i = 0; config_row(c, i, &key, value, &from_default); i++)
        if (strcmp(key, "max_position_embeddings")) /* a limit, which changes no bit */
            add(&l, "%s=%s\n", key, value);
    add(&l, "rope pairs=%s\n", c->rope_interleave ? "adjacent" : "halves");
    if (c->rope_yarn)
        add(&l, "YaRN=%.17g %.17g %.17g %.17g %.17g %d\n", c->rope_factor, c->rope_beta_fast, c->rope_beta_slow,
            c->rope_mscale, c->rope_mscale_all_dim, c->rope_original_max_position_embeddings);
    if (c->query_beta > 0)
        add(&l, "query scale=%.17g%s\n", c->query_beta, c->rope_unscaled ? "" : ", YaRN scales scores too");
    add(&l, "groups=%s\n", c->no_groups ? "none" : "as configured");
    for (int i = 0; c->index_topk && i < c->num_hidden_layers; i++)
        add(&l, "%s%s%s", i ? "" : "indexers=", config_layer_is_shared(c, i) ? "S" : "F",
            i + 1 < c->num_hidden_layers ? "" : "\n");
    add(&l, "MTP modules=%d\n", m->num_mtp);
    add(&l, "precision=%s\n", precision_name(c));
    if (c->tensor_cores)
        add(&l, "tensor cores=%s, layers from %d, attention from %d%s%s\n", m->device->name, m->offload.first_layer,
            m->offload.first_attention, m->offload.ends ? ", output head" : "",
            m->offload.without_experts ? ", no experts" : "");
    if (c->cache_type != CACHE_TYPE_F32) /* a description without this line is one of cache type f32 */
        add(&l, "cache type=%s\n", cache_type_name(c->cache_type));
    conventions_list_target(&c->conventions, conventions, sizeof conventions);
    add(&l, "conventions=%s\n", *conventions ? conventions : "the defaults");
    add(&l, "YaRN in force=%s\n", c->rope_yarn && (long_enough || !c->conventions.value[YARN]) ? "yes" : "no");
    add(&l, "weights=%016" PRIx64 "\n", checkpoint_fingerprint(m->checkpoint));
    return l.text;
}

int vb_model_fingerprint(const vb_model *m, int sampled, int32_t threads, uint64_t *out, vb_error *err)
{
    uint64_t weights = 0;
    int code = VB_OK;
    if (threads < 0 || threads > 4096)
        return vb_fail(err, VB_BAD_ARGUMENT, "threads is %d, wanted 1 to 4096", threads);
    char *text = session_identity(m, (size_t)m->config.max_position_embeddings);
    if (!text)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the fingerprint of %s", checkpoint_dir(m->checkpoint));
    if (!sampled)
        code = model_hash_weights(m, threads, &weights, err);
    *out = hash64(hash64(weights + !sampled, text, strlen(text)), &(uint64_t){config_hash(&m->config)},
                  sizeof(uint64_t));
    vb_free(m->allocator, text);
    return code;
}

/* A key that this build reads and the one that wrote the file did not, and that config.json leaves at its default: what
 * it does now was done then. */
static int is_news(const struct config *c, const char *name)
{
    const char *key;
    char value[32];
    int from_default;
    for (size_t i = 0; config_row(c, i, &key, value, &from_default); i++)
        if (!strcmp(key, name))
            return from_default;
    return 0;
}

/* Returns the cache type that a description names. */
static const char *cache_type_of(const char *text, size_t *size)
{
    const char *type = session_line(text, "cache type", size);
    *size = type ? *size : strlen("f32");
    return type ? type : "f32";
}

int session_identity_compare(const char *saved, const char *ours, const struct vb_model *m, const char *path,
                             vb_error *err)
{
    size_t there, here;
    const char *saved_type = cache_type_of(saved, &there), *our_type = cache_type_of(ours, &here);
    if (there != here || memcmp(saved_type, our_type, here))
        return vb_fail(err, VB_BAD_ARGUMENT, "%s was saved with cache type %.*s, here it is %.*s", path,
                       (int)min_size(there, 100), saved_type, (int)here, our_type);
    for (const char *mine = ours, *next; *mine; mine = next) {
        size_t key = strcspn(mine, "="), value = strcspn(mine + key, "\n") - 1, size;
        char name[64];
        next = mine + key + 1 + value + 1;
        snprintf(name, sizeof name, "%.*s", (int)key, mine);
        const char *theirs = session_line(saved, name, &size);
        if (theirs && size == value && !memcmp(theirs, mine + key + 1, value))
            continue;
        if (!theirs && is_news(&m->config, name))
            continue;
        if (!theirs)
            theirs = "not said", size = strlen(theirs);
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "%s was saved with another model or other options: %s is %.*s there and %.*s here", path, name,
                       (int)min_size(size, 100), theirs, (int)min_size(value, 100), mine + key + 1);
    }
    return VB_OK;
}
