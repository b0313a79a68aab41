/* ops/probe.h -- intermediate values inside operators, for callers that want to see them (engine/pass/tap.h). */
#ifndef VB_PROBE_H
#define VB_PROBE_H

#include <stddef.h>

/* What a probe receives. The headers of the operators define the values. */
enum probed_value {
    PROBE_ATTENTION_SCORES, /* op_attention, op_expanded: s_j; `index` is the number of the head */
    PROBE_INDEX_SCORES,     /* op_index_choose */
    PROBE_INDEX_KEPT,
    PROBE_INDEX_MARGIN,
    PROBE_ROUTER_SCORES,    /* op_router: s */
    PROBE_ROUTER_CHOICE,
    PROBE_ROUTER_GROUP_SCORES,
    PROBE_ROUTER_GROUPS,
    PROBE_ROUTER_EXPERTS,
    PROBE_ROUTER_WEIGHTS,
    PROBE_EXPERT_OUTPUT,    /* op_moe: mlp_e(x); `index` is the number of the expert */
    PROBE_SHARED_OUTPUT,
    PROBED_VALUES
};

/* Tokens, groups and experts are int32_t; all other values are float. */
static inline int probed_is_integer(enum probed_value v)
{
    return v == PROBE_INDEX_KEPT || v == PROBE_ROUTER_GROUPS || v == PROBE_ROUTER_EXPERTS;
}

/* An operator calls `see` on its caller's thread, with rows [first, first + count) of its S rows. Each row has `width`
 * numbers, and rows are contiguous. `index` is -1 unless the value says what it is. */
struct op_probe {
    void (*see)(struct op_probe *probe, enum probed_value value, int index, size_t first, size_t count,
                const void *data, size_t width);
    int scores; /* nonzero: attention scores are wanted too; they are computed a second time for the probe */
};

#endif
