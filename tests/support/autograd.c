#include "tests/support/autograd.h"

#include "reference/weights.h"
#include "tests/support/golden.h"
#include "tests/support/references.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

/* Masks of the sequences, if the part is computed with them. */
static void read_masks(struct reference_sequence *of, int count, unsigned char *memory, json_t *list)
{
    assert_int_equal(json_array_size(list), count);
    for (int i = 0; i < count; i++) {
        of[i].loss_mask = memory;
        assert_int_equal(json_array_size(json_array_get(list, (size_t)i)), of[i].count);
        for (int t = 0; t < of[i].count; t++)
            *memory++ = json_integer_value(json_array_get(json_array_get(list, (size_t)i), (size_t)t)) != 0;
    }
}

static int read_sequences(struct reference_sequence out[AUTOGRAD_SEQUENCES], int32_t *memory, json_t *list)
{
    int count = (int)json_array_size(list);
    assert_true(count <= AUTOGRAD_SEQUENCES);
    for (int i = 0; i < count; i++) {
        out[i] = (struct reference_sequence){memory, read_tokens(json_array_get(list, (size_t)i), memory), NULL};
        memory += out[i].count;
    }
    return count;
}

/* Both sides compute in double. A result has passed through fewer than 10^4 roundings one after the other: sums of at
 * most 192 terms, a dozen of them in each of 4 layers, forward and backward. Each moves it by at most 2^-53 of the
 * terms that are added there, together 1.1e-12. The factor 90 is for sums whose terms are larger than the sum. */
#define BOUND 1e-10

static void check_number(const char *name, const char *part, const char *what, double have, double want, double size)
{
    if (!(fabs(have - want) <= BOUND * size))
        fail_msg("%s, %s: %s is %.17g, autograd says %.17g", name, part, what, have, want);
}

static void check_tensor(const char *name, const char *part, const struct reference_gradient *g, json_t *want)
{
    char what[300];
    double squares = 0, size = want ? json_real_value(json_array_get(want, 0)) : 0;
    for (size_t i = 0; i < (size_t)g->rows * (size_t)g->cols; i++)
        squares += g->data[i] * g->data[i];
    snprintf(what, sizeof what, "the norm of the gradient of %s", g->name);
    check_number(name, part, what, sqrt(squares), size, size);
    for (size_t i = 1; i < json_array_size(want); i++) {
        json_t *entry = json_array_get(want, i);
        size_t place = (size_t)json_integer_value(json_array_get(entry, 0));
        snprintf(what, sizeof what, "entry %zu of the gradient of %s", place, g->name);
        check_number(name, part, what, g->data[place], json_real_value(json_array_get(entry, 1)), size);
    }
}

static void check_terms(const char *name, const char *part, const struct loss_terms *weights,
                        const struct reference_terms *have, int k, json_t *terms, double total)
{
    const double list[] = {have->data, have->soft, have->top, have->features},
                 weight[] = {1, 1, weights->top, weights->features};
    for (size_t i = 0; i < json_array_size(terms); i++) {
        char what[64];
        snprintf(what, sizeof what, "term %zu of the loss of depth %d", i, k);
        if (weight[i] != 0) /* else it is not computed */
            check_number(name, part, what, list[i], json_real_value(json_array_get(terms, i)), total);
    }
}

void autograd_read(struct autograd_step *s, const char *part, json_t *golden)
{
    s->count = read_sequences(s->list, s->tokens, json_object_get(golden, "sequences"));
    if (!strncmp(part, "masked", strlen("masked")))
        read_masks(s->list, s->count, s->masks, json_object_get(golden, "loss_masks"));
}

void autograd_compare(const char *name, const char *part, json_t *golden, const struct loss_terms *terms,
                      const struct reference_losses *losses, const struct reference_gradients *g)
{
    json_t *want = json_object_get(golden, part), *tensors = json_object_get(want, "tensors"),
           *want_losses = json_object_get(want, "losses");
    int depths = (int)json_array_size(want_losses) - 1;
    double total = json_real_value(json_object_get(want, "total"));
    check_number(name, part, "the loss", losses->total, total, total);
    for (int k = -1; k < depths; k++) {
        char what[64];
        snprintf(what, sizeof what, k < 0 ? "the main loss" : "the loss of depth %d", k);
        check_number(name, part, what, k < 0 ? losses->main : losses->by_depth[k],
                     json_real_value(json_array_get(want_losses, (size_t)(k + 1))), total);
    }
    for (size_t k = 0; k < json_array_size(json_object_get(want, "terms")); k++)
        check_terms(name, part, terms, &losses->terms[k], (int)k, json_array_get(json_object_get(want, "terms"), k),
                    total);
    size_t listed = 0;
    for (size_t i = 0; i < g->count; i++) {
        listed += json_object_get(tensors, g->of[i].name) != NULL;
        check_tensor(name, part, &g->of[i], json_object_get(tensors, g->of[i].name));
    }
    if (listed != json_object_size(tensors))
        fail_msg("%s, %s: autograd has gradients of %zu tensors, of which %zu have one here", name, part,
                 json_object_size(tensors), listed);
}

/* The golden's parallel heads; NULL: it has none */
static struct reference *open_heads(const struct reference *r, json_t *golden, const char *part)
{
    struct reference *heads = NULL;
    vb_error err = {0};
    const char *dir = json_string_value(json_object_get(golden, "heads"));
    if (dir && reference_heads_open(&heads, dir, r, &err))
        fail_msg("%s", err.message);
    if (dir && !strcmp(part, "after"))
        heads->trunk_layers = r->config.num_hidden_layers;
    return heads;
}

void check_autograd(const char *name, const char *part, json_t *golden, const struct reference_loss_options *of_caller)
{
    struct reference_loss_options options = *of_caller;
    struct autograd_step s;
    struct reference_losses losses;
    struct reference_gradients g;
    vb_error err = {0};
    struct reference *r = open_tiny_reference(name), *heads = open_heads(r, golden, part);
    autograd_read(&s, part, golden);
    options.heads = heads;
    if (reference_gradients_open_with_heads(&g, r, heads, &err) ||
        reference_backward(r, &options, s.list, s.count, &losses, &g, &err))
        fail_msg("%s, %s: %s", name, part, err.message);
    autograd_compare(name, part, golden, options.loss ? &options.loss->terms : NULL, &losses, &g);
    reference_gradients_close(&g);
    reference_close(heads);
    reference_close(r);
}
