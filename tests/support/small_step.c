#include "tests/support/small_step.h"

#include "tests/support/differences.h"
#include "tests/support/files.h"
#include "tests/support/references.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const int32_t small_text[14] = {5, 3, 7, 1, 0, 9, 5, 11, 4, 4, 6, 8, 1, 2};
const struct reference_sequence small_sequences[SMALL_SEQUENCES] = {
    {small_text, 8, NULL}, {small_text + 8, 3, NULL}, {small_text + 11, 2, NULL}, {small_text + 13, 1, NULL}};
static const unsigned char small_mask[14] = {1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 1, 0, 1, 1};
const struct reference_sequence small_masked[SMALL_SEQUENCES] = {
    {small_text, 8, small_mask}, {small_text + 8, 3, small_mask + 8}, {small_text + 11, 2, small_mask + 11},
    {small_text + 13, 1, small_mask + 13}};

/* Files are mapped read-only; the test changes tensors. */
static void own_tensors(const struct reference *r)
{
    for (size_t i = 0; r && i < checkpoint_count(r->checkpoint); i++) {
        struct tensor *t = (struct tensor *)checkpoint_at(r->checkpoint, i);
        void *copy = malloc(t->bytes);
        assert_non_null(copy);
        t->data = memcpy(copy, t->data, t->bytes);
    }
}

static void free_tensors(const struct reference *r)
{
    for (size_t i = 0; r && i < checkpoint_count(r->checkpoint); i++)
        free((void *)checkpoint_at(r->checkpoint, i)->data);
}

void small_open(struct small *m, const struct small_checkpoint *c)
{
    *m = (struct small){.options = {.mtp_loss_scaling_factor = 0.3}, .list = small_sequences, .count = SMALL_SEQUENCES};
    vb_error err = {0};
    small_checkpoint(m->dir, c);
    if (reference_open(&m->r, m->dir, NULL, &err) || (c->heads && reference_heads_open(&m->heads, m->dir, m->r, &err)))
        fail_msg("%s: %s", c->name, err.message);
    m->options.heads = m->heads;
    own_tensors(m->r);
    own_tensors(m->heads);
}

void small_close(struct small *m)
{
    free_tensors(m->r);
    free_tensors(m->heads);
    reference_close(m->heads);
    reference_close(m->r);
    remove_dir(m->dir);
}

struct reference_losses small_losses(const struct small *m, struct reference_gradients *g)
{
    struct reference_losses losses;
    vb_error err = {0};
    if (reference_backward(m->r, &m->options, m->list, m->count, &losses, g, &err))
        fail_msg("%s", err.message);
    return losses;
}

static double moved_loss(void *context, double *size)
{
    const struct small *m = context;
    for (size_t i = 0; i < m->n; i++)
        m->weights[i] = (float)m->x[i];
    *size = m->error * 0x1p53;
    return small_losses(m, NULL).total;
}

double small_perturbed(const struct small *m, uint64_t perturb)
{
    struct small perturbed = *m;
    perturbed.options.perturb = perturb;
    perturbed.options.hook = NULL;
    return small_losses(&perturbed, NULL).total;
}

/* A perturbed run changes every value by up to 2^-24, and here a value is a sum of at most 16 terms (2 d, in eh_proj)
 * and some more steps, so that its error is at most 24 * 2^-53. As `diff` does, takes 8 times what 8 perturbed runs
 * show, because the errors of such a run may cancel. */
double small_rounding_error(const struct small *m, double (*total)(const struct small *m, uint64_t perturb),
                            double exact)
{
    double most = 0;
    for (uint64_t seed = 1; seed <= 8; seed++)
        most = fmax(most, fabs(total(m, seed) - exact));
    return 8 * most * 0x1p24 * 24 * 0x1p-53;
}

void small_gradients_open(const struct small *m, struct reference_gradients *g)
{
    vb_error err = {0};
    if (reference_gradients_open_with_heads(g, m->r, m->heads, &err))
        fail_msg("%s", err.message);
}

void small_check_tensors(struct small *m, const struct reference_gradients *g, const char *start, const char *name)
{
    for (size_t i = 0; i < g->count; i++) {
        char what[300];
        if (strncmp(g->of[i].name, start, strlen(start)))
            continue;
        snprintf(what, sizeof what, "%s, %s", name, g->of[i].name);
        m->n = (size_t)g->of[i].rows * (size_t)g->of[i].cols;
        const struct reference *from = strncmp(g->of[i].name, "extra_heads.", 12) ? m->r : m->heads;
        m->weights = (float *)checkpoint_find(from->checkpoint, g->of[i].name)->data;
        m->x = doubles(m->n);
        for (size_t j = 0; j < m->n; j++)
            m->x[j] = m->weights[j];
        check_differences(&(struct differences){what, moved_loss, m, 1}, m->x, g->of[i].data, m->n, 0);
        for (size_t j = 0; j < m->n; j++)
            m->weights[j] = (float)m->x[j];
        free(m->x);
    }
}
