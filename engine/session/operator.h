/* engine/session/operator.h -- computes one operator of the engine alone, for `verbatim replay`. */
#ifndef VB_SESSION_OPERATOR_H
#define VB_SESSION_OPERATOR_H

#include "engine/pass/operators.h"

/* Computes one operator (engine/pass/operators.h). Of the options, isa, threads, exact_threads and context count: the
 * convention `yarn` depends on the context. The operator must exist in this layer of the model. Returns VB_UNSUPPORTED
 * if the engine does not compute this result alone, VB_BAD_ARGUMENT if an option is invalid, and VB_NO_MEMORY if there
 * is no memory. */
int session_operator(const vb_model *model, const vb_session_options *options, const struct operator_call *call,
                     vb_error *err);

#endif
