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

/* Returns the value with this name in its layer. A number stands for the E or H in names: *number, which is -1 for
 * other values. Returns NO_VALUE if there is none, or if the model has fewer experts or heads. */
static enum pass_value value_of(const struct config *c, const char *name, int *number)
{
    *number = -1;
    for (enum pass_value v = 0; v < VALUES; v++) {
        const char *pattern = value_table[v].name, *letter = strpbrk(pattern, "EH");
        size_t n = letter ? (size_t)(letter - pattern) : 0;
        char *end;
        if (!letter && !strcmp(name, pattern))
            return v;
        if (!letter || strncmp(name, pattern, n) || name[n] < '0' || name[n] > '9')
            continue;
        long most = *letter == 'E' ? c->n_routed_experts : c->num_attention_heads, k = strtol(name + n, &end, 10);
        if (strcmp(end, letter + 1))
            continue;
        *number = (int)k;
        return k < most ? v : NO_VALUE;
    }
    return NO_VALUE;
}

const struct reference_operator *reference_operator_of(const struct reference *r, const char *name, int *layer,
                                                       int *expert)
{
    const struct config *c = &r->config;
    const struct reference_operator *o;
    const char *rest;
    *layer = layer_of(name, &rest);
    enum pass_value v = value_of(c, rest, expert);
    if (*layer >= c->num_hidden_layers + (c->num_nextn_predict_layers ? VB_MAX_DRAFT : 0) || v == NO_VALUE ||
        !value_exists(v, c, *layer))
        return NULL;
    for (size_t i = 0; (o = reference_operator_at(i)); i++)
        if (o->row == &value_table[v] && (!o->first || o->first == value_input(v, 0, c, *layer)))
            return o;
    return NULL;
}

static int is_computed(enum pass_value v)
{
    const struct reference_operator *o;
    for (size_t i = 0; v < VALUES && (o = reference_operator_at(i)); i++)
        if (o->row == &value_table[v])
            return 1;
    return v >= VALUES && v != NO_VALUE;
}

/* The name of a value, or that of a source that is no value of the same layer */
static const char *source(enum pass_value v)
{
    static const char *const special[] = {[ROW_TOKENS] = "tokens", [STREAM] = "<layer", [HIDDEN_STATES] = "<hidden",
                                          [KEPT_TOKENS] = "<kept"};
    return v < VALUES ? value_table[v].name : special[v];
}

int reference_operator_sources(const struct reference_operator *o, size_t i, char text[128])
{
    const enum pass_value *from = i < o->row->count ? o->row->inputs[i].from : NULL;
    size_t n = 0;
    for (size_t k = 0; from && k < VALUE_SOURCES; k++)
        if (!i && o->first ? from[k] == o->first : is_computed(from[k]))
            n += (size_t)snprintf(text + n, 128 - n, "%s%s", n ? " | " : "", source(from[k]));
    if (n && o->row->inputs[i].optional && from[0] < VALUES)
        snprintf(text + n, 128 - n, "?");
    return from != NULL;
}

/* The last layer from `layer` back that has an indexer of its own */
static int indexed_layer(const struct config *c, int layer)
{
    while (config_layer_is_shared(c, layer))
        layer--;
    return layer;
}

int reference_operator_input(const struct reference *r, const struct reference_operator *o, int i, int layer,
                             const struct conventions *conventions, char name[128], int *depth)
{
    const struct config *c = &r->config;
    const unsigned char *convention = conventions->value;
    enum pass_value from = value_input((enum pass_value)(o->row - value_table), (size_t)i, c, layer);
    int L = c->num_hidden_layers, of_layer = layer;
    *depth = layer >= L ? layer - L : -1;
    switch (from) {
    case NO_VALUE: return 0;
    case ROW_TOKENS: snprintf(name, 128, "tokens"); return 1;
    case KEPT_TOKENS:
        if (!c->index_topk || (layer >= L && convention[MTP_INDEXER]))
            return 0;
        of_layer = indexed_layer(c, layer);
        from = INDEX_KEPT;
        break;
    case STREAM:
        of_layer = layer < 0 ? L - 1 : layer == 0 ? -1 : layer >= L ? layer : layer - 1;
        from = layer == 0 ? EMBEDDING : layer >= L ? EH_PROJ : LAYER_OUTPUT;
        break;
    case HIDDEN_STATES:
        if (*depth == 0 || convention[MODULE_HIDDEN]) {
            *depth = of_layer = -1;
            from = convention[MAIN_HIDDEN] ? FINAL_NORM_INPUT : FINAL_NORM;
        } else {
            --*depth;
            of_layer--;
            from = convention[DRAFT_HIDDEN] ? LAYER_OUTPUT : MODULE_NORM;
        }
        break;
    default: break;
    }
    if (of_layer < 0)
        snprintf(name, 128, "%s", value_table[from].name);
    else
        snprintf(name, 128, "model.layers.%d.%s", of_layer, value_table[from].name);
    return 1;
}
