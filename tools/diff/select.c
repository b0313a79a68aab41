/* tools/diff/select.c -- --taps, --layers and --steps of `diff`: which of the results are wanted. */
#include "tools/diff/local.h"

int diff_select_rows(struct cli *c, struct diff_side *a, struct diff_side *b)
{
    struct diff_side *sides[2] = {a, b};
    if (!c->steps)
        return EXIT_DONE;
    if (!a->has_steps && !b->has_steps)
        return cli_fail(c, EXIT_USAGE,
                        "--steps wants a dump with a manifest that gives the step or the pass of its tensors");
    for (size_t i = 0; i < sides[a->has_steps]->count; i++)
        for (size_t k = 0; k < sides[a->has_steps]->series[i].count; k++)
            sides[a->has_steps]->series[i].rows[k].outside = 0;
    return EXIT_DONE;
}

void diff_sum_up(struct comparison *r)
{
    r->verdict = NOT_COMPARED;
    r->first = r->structural = r->biased = NULL;
    for (struct tap *t = r->taps; t < r->taps + r->count; t++) {
        if (t->verdict != AFTER_TIE_FLIP && t->verdict > r->verdict)
            r->verdict = t->verdict;
        r->first = !r->first && (t->differs || t->verdict >= ROUNDING) ? t : r->first;
        r->structural = !r->structural && t->verdict == STRUCTURAL ? t : r->structural;
        r->biased = !r->biased && t->verdict == BIASED ? t : r->biased;
    }
}

void diff_select(const struct cli *c, struct comparison *r)
{
    size_t kept = 0;
    if (!c->taps && !c->layers)
        return;
    for (size_t i = 0; i < r->count; i++)
        if (cli_wants(c, r->taps[i].a->name, r->taps[i].a->layer)) {
            r->taps[kept++] = r->taps[i];
        } else {
            bias_close(&r->taps[i], 1);
            r->unselected = 1;
        }
    r->count = kept;
    diff_sum_up(r);
}

void local_select(const struct cli *c, struct local *l)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->count; i++)
        if (cli_wants(c, l->results[i].series->name, l->results[i].series->layer))
            l->results[kept++] = l->results[i];
        else
            local_bias_close(l->results[i].bias);
    l->count = kept;
    local_sum_up(l);
}
