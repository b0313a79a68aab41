/* engine/session/operator.c -- one operator in a workspace of its own. */
#include "engine/session/operator.h"

#include "numbers/numbers.h"
#include "engine/model/numa.h"
#include "engine/session/session.h"
#include "simd/fpenv.h"

int session_operator(const vb_model *model, const vb_session_options *options, const struct operator_call *call,
                     vb_error *err)
{
    struct pass w = {0};
    vb_session_options o = *options;
    size_t context;
    if (model->ranks)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "single operators are computed by one process, and this is one of several ranks");
    int code = session_limits(model, &o, &context, err);
    if (code)
        return code;
    o.prefill = call->expanded ? "expanded" : NULL;
    struct fpenv env = fpenv_enter();
    struct numa_visit visit = numa_enter(model);
    code = session_open_pass(&w, model, &o, call->S, 1, max_size(context, call->S), err);
    if (!code)
        code = operator_compute(&w, call, err);
    if (w.model)
        pass_close(&w);
    numa_leave(&visit);
    fpenv_leave(env);
    return code;
}
