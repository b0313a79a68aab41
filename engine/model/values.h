/* engine/model/values.h -- the named values of a pass: one row for each value, in one table.
 *
 * A pass computes them in the order of the enum. Their names are those of callbacks and dumps (docs/ORACLE.md). The
 * engine reads from the table how it computes a value (engine/pass/step.h) and under which name it reports it
 * (engine/pass/tap.h). The reference and `verbatim replay` read from it which values a value is computed from. */
#ifndef VB_VALUES_H
#define VB_VALUES_H

#include <stddef.h>

#include "engine/model/config.h"
#include "ops/probe.h"

enum pass_value {
    EMBEDDING, /* of the target */
    /* of an MTP module, before its layer */
    MODULE_EMBEDDING,
    ENORM,
    HNORM_INPUT,
    HNORM,
    EH_INPUT,
    EH_PROJ,
    /* of a layer: attention */
    LAYER_INPUT,
    INPUT_NORM,
    Q_A,
    Q_A_NORM,
    Q_B,
    Q_PROJ,
    KV_A,
    K_PROJ,
    V_PROJ,
    Q_ROPE,
    LATENT,
    K_ROPE,
    INDEX_WK,
    INDEX_K_NORM,
    INDEX_K,
    INDEX_WQ_B,
    INDEX_WEIGHTS_PROJ,
    INDEX_Q,
    INDEX_WEIGHTS,
    INDEX_SCORES,
    INDEX_KEPT,
    INDEX_MARGIN,
    ATTENTION_SCORES,
    ATTENTION_PROBABILITIES,
    ATTENTION_HEADS,
    O_PROJ,
    /* of a layer: the feed-forward part */
    MIDDLE,
    POST_ATTENTION_NORM,
    ROUTER_LOGITS,
    ROUTER_SCORES,
    ROUTER_CHOICE,
    ROUTER_GROUP_SCORES,
    ROUTER_GROUPS,
    ROUTER_EXPERTS,
    ROUTER_WEIGHTS,
    EXPERT_OUTPUT,
    EXPERT_OUTPUTS,
    SHARED_EXPERTS,
    MLP_OUTPUT,
    LAYER_OUTPUT,
    /* of an MTP module, after its layer */
    MODULE_NORM_INPUT,
    MODULE_NORM,
    MODULE_LOGITS,
    /* of the target, after its layers */
    FINAL_NORM_INPUT,
    FINAL_NORM,
    LOGITS,
    VALUES,
    /* Inputs that are no value of the same layer */
    ROW_TOKENS = VALUES, /* the tokens of the rows */
    STREAM,          /* the residual stream: the output of the layer before, of eh_proj, or of the embedding */
    HIDDEN_STATES,   /* the hidden states that an MTP module takes */
    KEPT_TOKENS,     /* sparse attention: the positions to which a row attends; none in other models */
    /* [S, i]: inside the MLP of a dense layer, or of the shared experts: gate x and up x. They are only kept (struct
     * keep, engine/pass/pass.h) */
    MLP_GATE,
    MLP_UP,
    NO_VALUE
};

/* Where a value exists: once in a pass of the target, in each layer, or in each MTP module. */
enum value_place { OF_PASS, OF_LAYER, OF_MODULE };

/* The parts of a pass that a clock distinguishes (ops/clock.h). Time after a pass belongs to PART_OUTSIDE. */
enum pass_part {
    PART_OUTSIDE,
    PART_Q_A,       /* q_a_proj or q_proj, kv_a_proj, and an indexer's wk, which share their parallel
                       regions */
    PART_Q_B,
    PART_INDEXER,   /* wq_b, weights_proj, scores and choice of an indexer; wk belongs to PART_Q_A */
    PART_ATTENTION, /* q_abs, scores, softmax, values, W_uv; in the expanded form also keys and values */
    PART_O,
    PART_DENSE,     /* the MLP of a layer without experts */
    PART_ROUTER,    /* mlp.gate and the choice of experts */
    PART_EXPERTS,   /* the chosen experts and the shared experts, which share their parallel regions */
    PART_EH,        /* eh_proj of an MTP module */
    PART_HEAD,      /* the output head */
    PART_SMALL,     /* everything else in a pass: embedding, norms, RoPE, writing cache rows, residual sums */
    PASS_PARTS
};

/* The arrays of a pass that hold values (struct workspace, engine/pass/workspace.h). */
enum pass_array {
    ARRAY_NONE, /* the value is inside an operator */
    ARRAY_X, ARRAY_NORMED, ARRAY_DELTA, ARRAY_Q_A, ARRAY_Q, ARRAY_KV_A, ARRAY_HEADS, ARRAY_CONCAT,
    ARRAY_INDEX_K, ARRAY_INDEX_Q, ARRAY_INDEX_W, ARRAY_SCORES, ARRAY_HIDDEN,
    ARRAY_TAKEN, ARRAY_GIVEN, /* of the caller: the hidden states that an MTP module takes, and the input of its output
                                 head */
    PASS_ARRAYS
};

/* How the ranks of a group divide the rows of a weight among them (ops/ranks.h). */
enum value_division {
    UNDIVIDED, /* each rank computes the whole value */
    BY_HEADS,  /* each rank computes its attention heads. If somebody wants to see the value, the ranks exchange them */
    BY_ROWS    /* each rank computes a share of the numbers, and the ranks exchange them */
};

#define VALUE_INPUTS 5
#define VALUE_SOURCES 3

typedef size_t value_size(const struct config *c);

struct value_row {
    const char *name; /* in its layer. H stands for the number of a head, and E for that of an expert: one value for
                         each */
    /* What it is computed from: for each input up to three sources, of which the first counts that exists in the
     * layer. */
    struct {
        enum pass_value from[VALUE_SOURCES];
        int optional; /* a model may have none of them */
    } inputs[VALUE_INPUTS];
    size_t count; /* of inputs */
    enum value_place place;
    int (*exists)(const struct config *c, int layer); /* NULL: wherever `place` says. MTP depth k is layer
                                                         num_hidden_layers + k */
    value_size *width; /* numbers in a row; NULL: one for each row of the call */
    enum pass_part part;
    /* Row s begins at number at + s * pitch of the array. It has `outer` vectors of width / outer numbers, which are
     * outer_pitch apart. */
    enum pass_array array;
    value_size *at, *pitch; /* NULL: 0, and `width` */
    value_size *outer, *outer_pitch; /* NULL: 1, and `width` */
    size_t weight; /* the weight of a norm or a linear layer: its offset in struct layer, struct mtp_module or struct
                      vb_model */
    size_t bias;   /* the offset of a vector that is added to the output of a linear layer, where it is not NULL; 0:
                      none is */
    enum value_division division;
    unsigned char is_part;  /* 1: an operator computes it together with other values */
    unsigned char is_copy;  /* 1: its numbers are those of its inputs, so nothing is computed */
    unsigned char integers; /* 1: a set of integers: those with the largest numbers of the first input */
    unsigned char of_router; /* 1: a part of the router, which engines compute in f32 */
    unsigned char all_rows; /* k > 0: a row also depends on all earlier rows of input k and of the inputs after it */
};

extern const struct value_row value_table[VALUES];

/* Returns the value that an operator reports from inside. */
enum pass_value value_probed(enum probed_value v);
/* Returns the value with this name in its layer; NO_VALUE if there is none. */
enum pass_value value_named(const char *name);
/* Whether the value exists in this layer. */
int value_exists(enum pass_value v, const struct config *c, int layer);
/* The source of input i of a value in this layer; NO_VALUE if the model has none. */
enum pass_value value_input(enum pass_value v, size_t i, const struct config *c, int layer);

/* Where the numbers of a value are. */
struct value_shape {
    size_t at, pitch, outer, inner, outer_pitch;
};
/* The distance from one row to the next. */
size_t value_pitch(enum pass_value v, const struct config *c);
struct value_shape value_shape(enum pass_value v, const struct config *c);

#endif
