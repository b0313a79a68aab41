#include "tests/support/training.h"

#include "engine/base/hash64.h"
#include "tests/support/engine_support.h"

static const size_t lengths[TRAINING_SEQUENCES] = {30, 9, 1, 3, 37};

void training_step(struct training_step *s, const struct vb_model *m, enum trained_part part, int depths)
{
    *s = (struct training_step){.options = {.part = part, .depths = depths, .mtp_loss_scaling_factor = 0.3,
                                            .threads = 1}};
    s->options.adamw = (struct adamw){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    random_tokens(m, 17, s->tokens, TRAINING_TOKENS);
    for (size_t q = 0, at = 0; q < TRAINING_SEQUENCES; at += lengths[q++])
        s->list[q] = (struct training_sequence){.tokens = s->tokens + at, .count = lengths[q]};
}

void training_mask(struct training_step *s)
{
    for (size_t q = 0; q < TRAINING_SEQUENCES; q++) {
        unsigned char *mask = s->mask + (s->list[q].tokens - s->tokens);
        for (size_t i = 0; i < lengths[q]; i++)
            mask[i] = q != 1 && i * i % 5 != 1;
        s->list[q].loss_mask = mask;
    }
}

void training_heads_open(struct training_step *s, const struct vb_model *m, const char *dir)
{
    struct vb_model *stored = NULL;
    int trunk_layers = 0;
    if (dir)
        OK(model_open_heads(&stored, &trunk_layers, dir, m, &err));
    s->heads = (struct trained_heads){.stored = stored, .after_last = trunk_layers == m->config.num_hidden_layers};
    s->options.heads = &s->heads;
}

void training_heads_close(struct training_step *s) { vb_model_close((struct vb_model *)(uintptr_t)s->heads.stored); }

vb_model *training_model(const char *dir, const char *conventions)
{
    struct vb_model *m;
    struct conventions c = {0};
    OK(conventions_parse(&c, conventions, &err));
    OK(model_open_under(&m, dir, &(struct model_options){.conventions = &c}, NULL, &err));
    return m;
}

struct vb_trainer *training_open(const struct vb_model *m, const struct training_step *s)
{
    struct vb_trainer *t;
    OK(trainer_open(&t, m, &s->options, &err));
    return t;
}

struct training_losses training_gradients(struct vb_trainer *t, const struct training_step *s)
{
    struct training_losses losses;
    OK(trainer_gradients(t, s->list, TRAINING_SEQUENCES, &losses, &err));
    return losses;
}

struct trained_tensor *training_tensor(struct vb_trainer *t, const char *name)
{
    for (size_t i = 0; i < trainer_count(t); i++)
        if (!strcmp(trainer_tensor(t, i)->name, name))
            return trainer_tensor(t, i);
    fail_msg("%s is not trained", name);
    return NULL;
}

void training_fails_without_memory(const struct vb_model *m, const struct training_step *s, struct counted *counted)
{
    long alive = counted->alive;
    for (int rc = VB_NO_MEMORY, n = 0; rc; n++) {
        struct vb_trainer *t = NULL;
        struct training_losses losses;
        vb_error said = {0};
        counted->fail = counted->requests + n;
        rc = trainer_open(&t, m, &s->options, &said);
        if (!rc)
            rc = trainer_gradients(t, s->list, TRAINING_SEQUENCES, &losses, &said);
        counted->fail = -1;
        if (rc && (rc != VB_NO_MEMORY || !said.message[0]))
            fail_msg("with allocation %d failing: status %d, \"%s\"", n, rc, said.message);
        if (t)
            training_gradients(t, s);
        trainer_close(t);
        assert_int_equal(counted->alive, alive);
    }
}

uint64_t training_bits(struct vb_trainer *t)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < trainer_count(t); i++) {
        const struct trained_tensor *x = trainer_tensor(t, i);
        const float *const all[] = {x->w, x->g, x->m, x->v};
        for (size_t k = 0; k < COUNT(all); k++)
            if (all[k])
                hash = hash64(hash, all[k], training_numbers(x) * sizeof(float));
    }
    return hash;
}
