/* reference/operator_names.c -- which operator computes a named value, and the complete names of its inputs. */
#include "reference/operators.h"
#include "reference/layers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Splits model.layers.L.REST: returns L and sets *rest. Returns -1 for other names, and *rest is then the whole
 * name. */
static int layer_of(const char *name, const char **rest)
{
    char *end;
    *rest = name;
    if (strncmp(name, "model.layers.", 13) || name[13] < '0' || name[13] > '9')
        return -1;
    long layer = strtol(name + 13, &end, 10);
    if (*end != '.' || layer > 1 << 20)
        return -1;
    *rest = end + 1;
    return (int)layer;
}

const struct reference_operator *reference_operator_of(const struct reference *r, const char *name, int *layer,
                                                       int *expert)
{
    const struct config *c = &r->config;
    static const struct { const char *before, *after, *output; } numbered[] = { /* by an expert; by a head */
        {"mlp.experts.", ".output", "mlp.experts.E.output"},
        {"self_attn.scores.", "", "self_attn.scores.H"},
        {"self_attn.probabilities.", "", "self_attn.probabilities.H"}};
    const char *rest;
    char *end;
    *layer = layer_of(name, &rest);
    *expert = -1;
    int modules = c->num_nextn_predict_layers, is_module = *layer >= c->num_hidden_layers;
    if (is_module && (!modules || *layer >= c->num_hidden_layers + VB_MAX_DRAFT))
        return NULL;
    for (size_t i = 0; i < sizeof numbered / sizeof *numbered && *layer >= 0 && *expert < 0; i++) {
        size_t n = strlen(numbered[i].before);
        if (!strcmp(rest, numbered[i].output))
            return NULL;
        if (strncmp(rest, numbered[i].before, n) || rest[n] < '0' || rest[n] > '9')
            continue;
        long e = strtol(rest + n, &end, 10);
        if (strcmp(end, numbered[i].after) || e >= (i ? c->num_attention_heads : c->n_routed_experts))
            return NULL;
        *expert = (int)e;
        rest = numbered[i].output;
    }
    const struct reference_operator *o;
    for (size_t i = 0; (o = reference_operator_at(i)); i++)
        if (!strcmp(o->output, rest) && (o->place == REFERENCE_WHOLE) == (*layer < 0) &&
            (o->place != REFERENCE_MODULE || is_module) && (!o->exists || o->exists(c, *layer)))
            return o;
    return NULL;
}

int reference_operator_input(const struct reference *r, const struct reference_operator *o, int i, int layer,
                             const struct conventions *conventions, char name[128], int *depth)
{
    const struct config *c = &r->config;
    const char *in = i < REFERENCE_INPUTS ? o->inputs[i] : NULL;
    int L = c->num_hidden_layers, its_layer, expert;
    if (!in)
        return 0;
    *depth = layer >= L ? layer - L : -1;
    if (!strcmp(in, "<kept")) { /* of the layer itself, or of the last layer before it that has an indexer */
        while (config_layer_is_shared(c, layer))
            layer--;
        snprintf(name, 128, "model.layers.%d.self_attn.indexer.kept", layer);
        return c->index_topk && !(layer >= L && conventions->value[MTP_INDEXER]);
    }
    if (!strcmp(in, "<layer") && layer < 0)
        snprintf(name, 128, "model.layers.%d.output", L - 1);
    else if (!strcmp(in, "<layer") && layer >= L)
        snprintf(name, 128, "model.layers.%d.eh_proj.output", layer);
    else if (!strcmp(in, "<layer") && layer == 0)
        snprintf(name, 128, "model.embed_tokens.output");
    else if (!strcmp(in, "<layer"))
        snprintf(name, 128, "model.layers.%d.output", layer - 1);
    else if (!strcmp(in, "<hidden") && (*depth == 0 || conventions->value[MODULE_HIDDEN])) {
        *depth = -1;
        snprintf(name, 128, "model.norm.%s", conventions->value[MAIN_HIDDEN] ? "input" : "output");
    } else if (!strcmp(in, "<hidden") && (*depth)--)
        snprintf(name, 128, "model.layers.%d.%s", layer - 1,
                 conventions->value[DRAFT_HIDDEN] ? "output" : "shared_head.norm.output");
    else if (layer < 0 || !strcmp(in, "tokens"))
        snprintf(name, 128, "%s", in);
    else
        snprintf(name, 128, "model.layers.%d.%.*s", layer, (int)strcspn(in, "?"), in);
    return !strchr(in, '?') || reference_operator_of(r, name, &its_layer, &expert) != NULL;
}
