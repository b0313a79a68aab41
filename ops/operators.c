#include "ops/operators.h"

#include "ops/add.h"
#include "ops/argmax.h"
#include "ops/attention.h"
#include "ops/cache_rows.h"
#include "ops/embed.h"
#include "ops/finite.h"
#include "ops/linear.h"
#include "ops/mlp.h"
#include "ops/rmsnorm.h"
#include "ops/round.h"
#include "ops/router.h"

const struct operators operators_cpu = {
    .name = "cpu",
    .embed = op_embed,
    .rmsnorm = op_rmsnorm,
    .linears = op_linears,
    .linear = op_linear,
    .linear_exact = op_linear_exact,
    .linear_divided = op_linear_divided,
    .add = op_add,
    .round = op_round,
    .cache_rows = op_cache_rows,
    .attention = op_attention,
    .mlp = op_mlp,
    .router = op_router,
    .moe = op_moe,
    .first_not_finite = op_first_not_finite,
    .argmax = op_argmax,
};
