#include "engine/pass/watch.h"

#include "engine/model/prefetch.h"
#include "engine/pass/pass.h"

void pass_watch(const struct pass *p, enum moment moment)
{
    for (struct pass_watcher *w = p->watchers; w; w = w->next)
        if (w->at[moment])
            w->at[moment](w, p);
}

static void layer_begins(struct pass_watcher *w, const struct pass *p)
{
    (void)w;
    model_prefetch_layer(p->model, p->l);
}

static void experts_chosen(struct pass_watcher *w, const struct pass *p)
{
    (void)w;
    model_prefetch_experts(p->model, p->l, p->w.experts, p->S * p->model->config.dims.chosen);
}

struct pass_watcher watch_prefetch(void)
{
    return (struct pass_watcher){.at = {[LAYER_BEGINS] = layer_begins, [EXPERTS_CHOSEN] = experts_chosen}};
}
