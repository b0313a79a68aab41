/* engine/files/checkpoint_names.c -- gives the tensors of other layouts the names and shapes that this project uses. */
#include "engine/files/checkpoint_internal.h"
#include "engine/files/tensor_names.h"

#include <stdio.h>
#include <string.h>

/* Prefixes of a language model that is a part of a larger model. The longer prefix comes first. */
static const struct {
    const char *there, *here;
} prefixes[] = {
    {"model.language_model.", "model."},      /* Mistral 4, as transformers saves it */
    {"language_model.model.", "model."},      /* Kimi-K2.5 */
    {"language_model.lm_head.", "lm_head."},
};

/* What follows a matrix's name in Mistral's own files. The rows of all matrices, also of those whose outputs RoPE
 * rotates, have the same order as in Hugging Face's files, so nothing is permuted. */
static const struct {
    const char *there, *here;
} mistral_ends[] = {{"qscale_weight", "weight_scale_inv"}, {"qscale_act", "activation_scale"}};

/* A list that the new tensors are added to. */
struct renaming {
    struct checkpoint *c; /* has the new tensors */
    vb_error *err;
};

static int starts_with(const char *name, const char *start) { return !strncmp(name, start, strlen(start)); }

static int add(const struct renaming *r, const struct tensor *t, const char *name)
{
    struct tensor renamed = *t;
    if (strlen(name) > TENSOR_MAX_NAME)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: the name %.60s... is too long", t->file, name);
    renamed.name = name;
    if (t->ndim == 0) { /* a scale for a whole matrix */
        renamed.ndim = 2;
        renamed.shape[0] = renamed.shape[1] = 1;
    }
    return checkpoint_add(r->c, &renamed, r->err);
}

/* Adds rows [first, first + rows) of expert e as a matrix of its own. */
static int add_part(const struct renaming *r, const struct tensor *t, const char *name, int64_t e, int64_t first,
                    int64_t rows)
{
    size_t matrix = t->bytes / (size_t)t->shape[0], row = matrix / (size_t)t->shape[1];
    struct tensor part = *t;
    part.ndim = 2;
    part.shape[0] = rows;
    part.shape[1] = t->shape[2];
    part.shape[2] = 0;
    part.bytes = row * (size_t)rows;
    part.data = t->data ? (const char *)t->data + (size_t)e * matrix + (size_t)first * row : NULL;
    return add(r, &part, name);
}

/* Splits the matrices of all experts, which transformers stores as one tensor [E, rows, cols]. The first half of the
 * rows of gate_up_proj is gate_proj, the second half is up_proj. A scale [E, 1, 1] is a scale of both. `stem` is the
 * name before "gate_up_proj" or "down_proj". */
static int add_experts(const struct renaming *r, const struct tensor *t, const char *stem, int both, const char *suffix)
{
    char name[TENSOR_MAX_NAME + 64];
    int64_t rows = t->shape[1], half = rows == 1 ? 1 : rows / 2;
    int rc = VB_OK;
    if (t->ndim != 3 || t->shape[0] < 1 || rows < 1 || t->shape[2] < 1 || (both && rows > 1 && rows % 2))
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %s has %d dimensions, wanted [experts, rows, columns]%s",
                       t->file, t->name, t->ndim, both ? " with an even number of rows" : "");
    for (int64_t e = 0; !rc && e < t->shape[0]; e++) {
        snprintf(name, sizeof name, "%s%lld.%s%s", stem, (long long)e, both ? "gate_proj" : "down_proj", suffix);
        rc = add_part(r, t, name, e, 0, both ? half : rows);
        snprintf(name, sizeof name, "%s%lld.up_proj%s", stem, (long long)e, suffix);
        if (!rc && both)
            rc = add_part(r, t, name, e, rows == 1 ? 0 : half, half);
    }
    return rc;
}

/* Codes of 4 bits: integers, which compressed-tensors packs into 32-bit words, or numbers of E2M1, two in a byte. The
 * names of the latter end in weight_packed (compressed-tensors) or in weight (ModelOpt, Quark). */
static int is_packed(const struct tensor *t)
{
    int integers = !strcmp(t->dtype_name, "I32"), bytes = !strcmp(t->dtype_name, "U8");
    return t->ndim == 2 && t->shape[1] <= INT64_MAX / 8 &&
           (((integers || bytes) && vb_ends_with(t->name, ".weight_packed")) ||
            (bytes && vb_ends_with(t->name, ".weight")));
}

static int add_packed(const struct renaming *r, const struct tensor *t, const char *name)
{
    struct tensor codes = *t;
    char short_name[TENSOR_MAX_NAME + 16];
    int integers = !strcmp(t->dtype_name, "I32"),
        length = (int)strlen(name) - (vb_ends_with(name, "_packed") ? (int)strlen("_packed") : 0);
    snprintf(short_name, sizeof short_name, "%.*s", length, name);
    codes.dtype = integers ? DTYPE_I4 : DTYPE_F4;
    strcpy(codes.dtype_name, integers ? "I4" : "F4");
    codes.shape[1] *= integers ? 8 : 2;
    return add(r, &codes, short_name);
}

/* Adds a tensor whose name has the usual prefix. */
static int add_named(const struct renaming *r, const struct tensor *t, const char *name)
{
    static const char *const parts[] = {".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"};
    static const struct {
        const char *there, *here;
    } suffixes[] = {{"", ".weight"}, {"_scale_inv", ".weight_scale_inv"}, {"_activation_scale", ".activation_scale"}};
    if (is_packed(t))
        return add_packed(r, t, name);
    for (int both = 1; both >= 0; both--) {
        const char *part = parts[!both], *at = strstr(name, part);
        char stem[TENSOR_MAX_NAME + 1];
        for (size_t i = 0; at && i < sizeof suffixes / sizeof *suffixes; i++)
            if (!strcmp(at + strlen(part), suffixes[i].there)) {
                snprintf(stem, sizeof stem, "%.*s.mlp.experts.", (int)(at - name), name);
                return i < 2 ? add_experts(r, t, stem, both, suffixes[i].here) : add(r, t, name);
            }
    }
    return add(r, t, name);
}

/* Writes the Hugging Face name of the tensor `old` of Mistral's own files to `name`. If there is none, `name` is not
 * changed. */
static void rename_mistral(char *name, size_t room, const char *old)
{
    static const char layers[] = "layers.";
    size_t part = starts_with(old, layers) ? sizeof layers - 1 + strspn(old + sizeof layers - 1, "0123456789") : 0,
           expert;
    part += part && old[part] == '.';
    for (enum model_tensor t = part ? 0 : TENSORS_OUTSIDE; t < (part ? TENSORS_OUTSIDE : MODEL_TENSORS); t++) {
        const char *end = tensor_name_rest(tensor_names[t].mistral, old + part, &expert);
        if (!end)
            continue;
        for (size_t i = 0; i < sizeof mistral_ends / sizeof *mistral_ends; i++)
            if (!strcmp(end, mistral_ends[i].there))
                end = mistral_ends[i].here;
        int size = snprintf(name, room, "%s%.*s", part ? "model." : "", (int)part, old);
        tensor_name(name + size, room - (size_t)size, tensor_names[t].hf, expert, end);
        return;
    }
}

static int needs_renaming(const struct tensor *t)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (starts_with(t->name, prefixes[i].there))
            return 1;
    return t->ndim == 0 || is_packed(t) || strstr(t->name, ".mlp.experts.gate_up_proj") ||
           strstr(t->name, ".mlp.experts.down_proj");
}

static int is_mistral(const struct checkpoint *c)
{
    size_t i = 0;
    while (i < c->count && strcmp(c->tensors[i].name, tensor_names[TENSOR_EMBED_TOKENS].mistral))
        i++;
    return i < c->count;
}

int checkpoint_rename(struct checkpoint *c, vb_error *err)
{
    struct tensor *old = c->tensors;
    size_t count = c->count, i = 0, p;
    int rc = VB_OK, mistral = is_mistral(c);
    while (i < count && !needs_renaming(&old[i]))
        i++;
    if (i == count && !mistral)
        return VB_OK;
    vb_free(&c->allocator, c->names.entries);
    c->names = (struct name_table){0};
    c->tensors = NULL;
    c->count = c->room = 0;
    const struct renaming r = {c, err};
    for (i = 0; !rc && i < count; i++) {
        char name[TENSOR_MAX_NAME + 128];
        for (p = 0; p < sizeof prefixes / sizeof *prefixes && !starts_with(old[i].name, prefixes[p].there); p++)
            ;
        int found = p < sizeof prefixes / sizeof *prefixes;
        snprintf(name, sizeof name, "%s%s", found ? prefixes[p].here : "",
                 old[i].name + (found ? strlen(prefixes[p].there) : 0));
        if (mistral)
            rename_mistral(name, sizeof name, old[i].name);
        rc = add_named(&r, &old[i], name);
    }
    vb_free(&c->allocator, old);
    return rc ? rc : checkpoint_build_index(c, err);
}
