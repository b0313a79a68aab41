/* tests/support/methods.h -- the draft methods, with all that each of them needs. Tests of properties that every method
 * has walk over this list and name no method, so they run a new method without a change. */
#ifndef VB_TEST_METHODS_H
#define VB_TEST_METHODS_H

#include "engine/verbatim.h"

#define MOST_METHODS 32

struct methods {
    const char *name[MOST_METHODS];
    size_t count;
};

/* Which methods a test walks over. Several are combined with |. */
enum {
    ALL_METHODS = 0,
    WITH_NONE = 1,    /* "none" comes first */
    OF_MODULES = 2,   /* only methods that need MTP modules */
    OF_TREES = 4,     /* only methods that can draft trees */
    WITH_STATE = 8,   /* only methods whose state is saved in session files */
    BY_TOKENS = 16,   /* only methods whose drafts depend on the tokens alone, not on the rounds (by_history is 0) */
    WITHOUT_HEAD = 32, /* only methods that need no draft head */
    OF_THE_MODEL = 64  /* only methods that need nothing but the model: no head, no draft model, no callback */
};

/* Returns the methods of vb_draft_methods for which model m has everything: MTP modules, and a head in golden/eagle or
 * golden/heads. m may be NULL: then all methods. */
struct methods methods_for(const vb_model *m, int which);
/* Whether model m has everything that the method needs. */
int can_draft(const vb_model *m, const char *method);

/* Returns what vb_draft_methods says about a method. The method must exist. For "none" all fields are 0. */
vb_draft_method method_named(const char *name);

/* Whether the method drafts from the text alone, as ngram does, and so may find nothing to draft. */
int may_find_nothing(const vb_draft_method *method);

/* Returns options for the method with everything that it needs: the target itself as the draft model, a head for the
 * target, and a callback that always drafts as many tokens as it may. */
vb_drafting drafting_of(const vb_model *target, const char *method, int tokens);

/* Returns the directory of the head in golden/ that this method needs for model m; NULL if the method needs none, or
 * there is none for this model. */
const char *head_for(const vb_model *m, const char *method);

#endif
