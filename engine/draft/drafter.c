/* engine/draft/drafter.c -- the list of drafters, and what they need. */
#include "engine/draft/drafter.h"
#include "numbers/numbers.h"
#include "engine/base/options.h"
#include "engine/choose/sampler.h"
#include "engine/pass/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADDRESS(type) &type,
const struct drafter_type *const drafter_types[] = {DRAFT_METHODS(ADDRESS) NULL};

int drafter_find(const struct drafter_type **out, const char *name, vb_error *err)
{
    char known[256] = "none";
    *out = NULL;
    if (!name || !strcmp(name, "none"))
        return VB_OK;
    for (const struct drafter_type *const *t = drafter_types; *t; t++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, ", %s", (*t)->name);
        if (!strcmp((*t)->name, name))
            *out = *t;
    }
    return *out ? VB_OK : vb_fail(err, VB_BAD_ARGUMENT, "unknown draft method %s; known are %s", name, known);
}

static vb_draft_method described(const struct drafter_type *t)
{
    return (vb_draft_method){.name = t->name, .about = t->about, .settings = t->settings ? t->settings : "",
                             .needs_modules = t->needs_modules, .needs_model = t->needs_model,
                             .needs_head = t->needs_head, .needs_callback = t->needs_callback,
                             .trees = t->propose_tree != NULL, .by_history = t->by_history,
                             .keeps_state = t->save != NULL};
}

int vb_draft_methods_sized(size_t number, vb_draft_method *out, size_t size)
{
    for (const struct drafter_type *const *t = drafter_types; *t; t++)
        if (number-- == 0) {
            vb_draft_method method = described(*t);
            struct_fill(out, size, &method, sizeof method);
            return 1;
        }
    return 0;
}

int vb_draft_method_find_sized(vb_draft_method *out, size_t size, const char *name, vb_error *err)
{
    const struct drafter_type *type;
    int code = drafter_find(&type, name, err);
    vb_draft_method method = type ? described(type) : (vb_draft_method){0};
    struct_fill(out, size, &method, sizeof method);
    return code;
}

/* ---- settings: KEY=VALUE,KEY=VALUE ---- */

/* The value of `key`, and its length; NULL: there is none. The last one counts. */
static const char *find_setting(const char *settings, const char *key, size_t key_size, size_t *size)
{
    const char *found = NULL;
    for (const char *at = settings; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (!strncmp(at, key, key_size) && at[key_size] == '=') {
            found = at + key_size + 1;
            *size = strcspn(found, ",");
        }
    return found;
}

int drafter_setting(const char *settings, const char *key, int least, int most, int otherwise, int *out, vb_error *err)
{
    size_t size;
    const char *value = find_setting(settings, key, strlen(key), &size);
    char text[16], *end = text;
    *out = otherwise;
    if (!value)
        return VB_OK;
    snprintf(text, sizeof text, "%.*s", (int)min_size(size, 15), value);
    long number = strtol(text, &end, 10);
    if (end == text || *end || size > 15 || number < least || number > most)
        return vb_fail(err, VB_BAD_ARGUMENT, "%s is %.*s, wanted a number from %d to %d", key, (int)min_size(size, 40),
                       value, least, most);
    *out = (int)number;
    return VB_OK;
}

/* Every key is one that some method reads. */
static int check_settings(const char *settings, vb_error *err)
{
    for (const char *at = settings; at && *at; at += strcspn(at, ","), at += *at == ',') {
        size_t key = strcspn(at, ",="), size;
        char known[256] = "";
        int found = 0;
        for (const struct drafter_type *const *t = drafter_types; *t && !found; t++) {
            size_t used = strlen(known);
            found = key && at[key] == '=' && (*t)->settings && find_setting((*t)->settings, at, key, &size);
            if ((*t)->settings)
                snprintf(known + used, sizeof known - used, "%s%s", used ? "," : "", (*t)->settings);
        }
        if (!found)
            return vb_fail(err, VB_BAD_ARGUMENT, "unknown setting %.*s of draft methods; known are %s",
                           (int)strcspn(at, ","), at, known);
    }
    return VB_OK;
}

int drafter_check(const struct drafter_type *type, const struct vb_model *m, const vb_session_options *o, vb_error *err)
{
    if (type->needs_modules && !m->num_mtp)
        return vb_fail(err, VB_BAD_ARGUMENT, "%s has no MTP modules, which %s needs", checkpoint_dir(m->checkpoint),
                       type->name);
    if (type->needs_model && !o->drafting.model)
        return vb_fail(err, VB_BAD_ARGUMENT, "draft method %s wants a draft model, and there is none", type->name);
    if (type->needs_head && !o->drafting.head)
        return vb_fail(err, VB_BAD_ARGUMENT, "draft method %s wants the directory of a draft head, and there is none",
                       type->name);
    if (type->needs_callback && !o->drafting.callback)
        return vb_fail(err, VB_BAD_ARGUMENT, "draft method %s wants a function of the caller's, and there is none",
                       type->name);
    if (type->needs_modules && o->drafting.vocab && o->drafting.vocab->model != m)
        return vb_fail(err, VB_BAD_ARGUMENT, "the draft vocabulary was opened for another model than %s",
                       checkpoint_dir(m->checkpoint));
    int code = check_settings(o->drafting.settings, err);
    return !code && type->check ? type->check(m, o, err) : code;
}

int drafter_without_trees(const struct drafter_type *type, int topk, vb_error *err)
{
    char can[256] = "";
    for (const struct drafter_type *const *t = drafter_types; *t; t++) {
        size_t used = strlen(can);
        if ((*t)->propose_tree)
            snprintf(can + used, sizeof can - used, "%s%s", used ? ", " : "", (*t)->name);
    }
    return vb_fail(err, VB_BAD_ARGUMENT, "draft topk is %d, but %s drafts chains; methods that draft trees are %s",
                   topk, type->name, can);
}

int drafter_tokens(int *tokens, const struct drafter_type *type, const struct vb_model *m, const vb_drafting *drafting,
                   vb_error *err)
{
    int most = VB_MAX_DRAFT, code = type->longest ? type->longest(&most, drafting, m->allocator, err) : VB_OK;
    if (drafting->tokens)
        *tokens = min_int(drafting->tokens, most);
    else if (type->longest || (drafting->automatic && !type->cache_per_draft))
        *tokens = most;
    else
        *tokens = type->needs_modules ? min_int(m->num_mtp, VB_MAX_DRAFT) : 3;
    return code;
}

int vb_draft_check(const vb_model *model, const vb_drafting *drafting, vb_error *err)
{
    const struct drafter_type *type;
    vb_session_options o = {.drafting = *drafting};
    int code = OPTIONS_RESERVED(vb_drafting, drafting, err);
    if (!code)
        code = drafter_find(&type, drafting->method, err);
    return code || !type ? code : drafter_check(type, model, &o, err);
}

int32_t vb_draft_tokens(const vb_model *model, const vb_drafting *drafting)
{
    const struct drafter_type *type;
    int tokens;
    if (OPTIONS_RESERVED(vb_drafting, drafting, NULL) || drafter_find(&type, drafting->method, NULL) || !type ||
        drafting->tokens < 0 || drafter_tokens(&tokens, type, model, drafting, NULL))
        return 0;
    return tokens;
}

/* The sum of exp(z - z[best]), ascending: one of V terms is 1. */
static double sum_of_weights(const struct kernels *k, const float *z, size_t V, int32_t best)
{
    double sum = 0.0;
    for (size_t i = 0; i < V; i += 256) {
        float e[256];
        size_t n = min_size(V - i, 256);
        for (size_t j = 0; j < n; j++)
            e[j] = z[i + j] - z[best];
        k->exp(e, e, n);
        for (size_t j = 0; j < n; j++)
            sum += (double)e[j];
    }
    return sum;
}

void drafter_propose(const struct drafter_type *type, struct proposal *proposals, size_t count, struct pass *pass)
{
    if (type->propose_together) {
        type->propose_together(proposals, count, pass);
        return;
    }
    for (struct proposal *p = proposals; p < proposals + count; p++)
        p->drafts = type->propose(p->drafter, pass, p->draft, p->max, p->failed);
}

int drafter_propose_one(const struct drafter_type *type, struct drafter *d, struct pass *pass, int32_t *draft,
                        int max, size_t *failed)
{
    struct proposal p = {.drafter = d, .draft = draft, .max = max, .failed = failed};
    drafter_propose(type, &p, 1, pass);
    return p.drafts;
}

size_t drafter_no_rewind(const struct drafter *d)
{
    (void)d;
    return 0;
}

int32_t drafter_choose(const struct drafter_options *o, const float *logits, size_t V, int number, size_t *failed)
{
    if (!all_finite(logits, V)) {
        ++*failed;
        return -1;
    }
    int32_t best = argmax(logits, V);
    double p_min = (double)o->asked->drafting.p_min;
    if (p_min > 0.0 && 1.0 / sum_of_weights(o->kernels, logits, V, best) < p_min)
        return -1;
    return o->choose ? o->choose(o->choose_context, logits, number) : best;
}

int drafter_best(const struct drafter_options *o, const float *logits, size_t V, int n, int32_t *tokens, double *p,
                 size_t *failed)
{
    float weight[VB_MAX_TOPK];
    int count = 0, kept = 0;
    if (!all_finite(logits, V)) {
        ++*failed;
        return 0;
    }
    for (size_t v = 0; v < V; v++) {
        if (count == n && logits[v] <= logits[tokens[n - 1]])
            continue;
        int at = count < n ? count++ : n - 1;
        for (; at > 0 && logits[tokens[at - 1]] < logits[v]; at--)
            tokens[at] = tokens[at - 1];
        tokens[at] = (int32_t)v;
    }
    for (int i = 0; i < count; i++)
        weight[i] = logits[tokens[i]] - logits[tokens[0]];
    o->kernels->exp(weight, weight, (size_t)count);
    double sum = sum_of_weights(o->kernels, logits, V, tokens[0]), p_min = (double)o->asked->drafting.p_min;
    while (kept < count && (double)weight[kept] / sum >= p_min) {
        p[kept] = (double)weight[kept] / sum;
        kept++;
    }
    return kept;
}
