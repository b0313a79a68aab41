/* tests/support/toy_session.c -- a session without a model. */
#include "tests/support/toy_session.h"

void toy_open(struct toy *t, const vb_sampling *o, int V, int K)
{
    *t = (struct toy){.model = {.config = {.vocab_size = V, .dims.V = (size_t)V}}};
    t->session = (struct vb_session){.model = &t->model, .tokens = t->tokens, .context = TOY_ROOM, .max_draft = K};
    OK(sampler_open(&t->session.sampler, o, (size_t)V, NULL, &err));
    OK(acceptance_open(&t->session.acceptance, o, t->session.sampler, (size_t)V, K, NULL, &err));
    t->run = (struct run){.session = &t->session, .options = &t->options, .result = &t->result};
}

void toy_close(struct toy *t)
{
    acceptance_close(t->session.acceptance, NULL);
    sampler_close(t->session.sampler, NULL);
}

void toy_start(struct toy *t, const int32_t *prompt, size_t count, size_t most)
{
    sampler_restart(t->session.sampler);
    memcpy(t->tokens, prompt, count * sizeof *prompt);
    for (size_t i = 0; i < count; i++)
        sampler_saw_prompt(t->session.sampler, prompt[i]);
    t->session.count = count;
    t->result = (vb_result){0};
    t->options = (vb_generate_options){.max_tokens = most, .ignore_eos = 1};
    t->run.finished = 0;
}

size_t toy_round(struct toy *t, const int32_t *drafts, int count)
{
    int32_t chosen[VB_MAX_DRAFT + 1];
    size_t n = 0;
    t->run.plan = (struct plan){.committed = 1, .drafts = count, .chooses = 1, .logits = t->logits};
    memcpy(t->run.plan.draft, drafts, (size_t)count * sizeof *drafts);
    OK(decode_choose(&t->run, &t->pass, chosen, &n, &err));
    for (size_t i = 0; i < n; i++)
        t->tokens[t->session.count + i] = chosen[i];
    t->session.count += n;
    return n;
}
