/* tests/support/lists.h -- the tensors of a checkpoint as a list that a test can change before it binds a model to it,
 * and parameter counts computed from a config alone. */
#ifndef VB_TEST_LISTS_H
#define VB_TEST_LISTS_H

#include "engine/model/model.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

struct list {
    struct checkpoint *from; /* owns the names and data of `tensors` */
    struct config config;
    struct tensor tensors[512];
    size_t count;
};

/* Fills *l with the config and the tensors of the checkpoint in `dir`. */
void list_open(struct list *l, const char *dir);

/* Returns the tensor of this name, which must be in the list. */
struct tensor *list_find(struct list *l, const char *name);

/* Removes every tensor whose name begins with `prefix`. */
void list_remove_prefix(struct list *l, const char *prefix);

/* Binds a model to the tensors in the list; returns the engine's error code. */
int list_bind(const struct list *l, struct vb_model **m, vb_error *err);

/* Like list_bind, but returns the model, and an error fails the test. */
struct vb_model *bind_or_fail(const struct list *l);

/* Binding must return `code` and exactly the message that `format` makes. */
void expect_bind(const struct list *l, int code, const char *format, ...);

int ends_with(const char *name, const char *end);

/* Returns the number of parameters of one layer, computed from the shapes in the papers. *active: how many of them one
 * token uses. */
int64_t layer_parameters(const struct config *c, int layer, int64_t *active);

/* model_parameters and model_active_parameters must equal the sums over all layers (from layer_parameters) plus the
 * parameters outside of the layers. */
void check_parameters(const struct vb_model *m);

#endif
