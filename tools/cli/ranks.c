/* tools/cli/ranks.c -- what each rank has and did, if several processes compute the model (engine/verbatim_ranks.h). */
#include <inttypes.h>
#include <stdlib.h>

#include "tools/cli/cli.h"

/* Returns the facts of all ranks, or NULL if there is one process. The caller frees them. */
static vb_rank_facts *facts_of(const struct cli *c)
{
    if (!c->group || c->group_size < 2)
        return NULL;
    vb_rank_facts *facts = cli_must(calloc((size_t)c->group_size, sizeof *facts));
    vb_ranks_facts(c->group, facts);
    return facts;
}

static double each(uint64_t all, uint64_t passes) { return passes ? (double)all / (double)passes : 0.0; }

void cli_tell_ranks(const struct cli *c, int passed)
{
    vb_rank_facts *facts = c->stats && c->command->takes & TAKES_STATS ? facts_of(c) : NULL;
    for (int i = 0; facts && i < c->group_size; i++) {
        const vb_rank_facts *f = &facts[i];
        fprintf(stderr, "rank %d on %s: weights %.1f MB, memory in use %.1f MB", i, f->host,
                1e-6 * (double)f->weight_bytes, 1e-6 * (double)f->resident_bytes);
        if (passed)
            fprintf(stderr, ", %.3f s in gathers", f->seconds);
        fputc('\n', stderr);
    }
    if (facts && passed)
        fprintf(stderr, "%" PRIu64 " passes of the model; per pass, with drafts, %.1f gathers of %.0f bytes in all\n",
                facts->passes, each(facts->gathers, facts->passes), each(facts->bytes, facts->passes));
    free(facts);
}

void cli_add_ranks(const struct cli *c, json_t *stats)
{
    vb_rank_facts *facts = facts_of(c);
    if (!facts)
        return;
    json_t *ranks = json_array();
    for (int i = 0; i < c->group_size; i++) {
        const vb_rank_facts *f = &facts[i];
        json_array_append_new(ranks, json_pack("{s:s,s:I,s:I,s:f}", "host", f->host, "weight_bytes",
                                               (json_int_t)f->weight_bytes, "resident_bytes",
                                               (json_int_t)f->resident_bytes, "gather_seconds", f->seconds));
    }
    json_t *all = json_pack("{s:I,s:I,s:I,s:f,s:f,s:o}", "passes", (json_int_t)facts->passes, "gathers",
                            (json_int_t)facts->gathers, "gathered_bytes", (json_int_t)facts->bytes, "gathers_per_pass",
                            each(facts->gathers, facts->passes), "bytes_per_pass", each(facts->bytes, facts->passes),
                            "ranks", ranks);
    json_object_set_new(stats, "ranks", all);
    free(facts);
}
