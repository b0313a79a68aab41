/* engine/template/call_internal.h -- what the tables of call.c (methods, functions, tests) and of filters.c share. */
#ifndef VB_TEMPLATE_CALL_INTERNAL_H
#define VB_TEMPLATE_CALL_INTERNAL_H

#include "engine/template/template_internal.h"

#define MOST_PARAMETERS 3

/* arg[i] is the argument for parameter i, or NULL if it is missing. `on` is the value to which a filter or a method is
 * applied. */
typedef int call(struct rendering *r, struct value on, const struct value *const *arg, struct value *out);

struct callable {
    const char *name;
    const char *parameters[MOST_PARAMETERS]; /* a name with a space cannot be written as a keyword */
    int required;
    call *call;
    enum value_type of; /* the type, for a method that only one type has; else V_UNDEFINED */
};

#define CALL(name) \
    static int name(struct rendering *r __attribute__((unused)), struct value on __attribute__((unused)), \
                    const struct value *const *arg __attribute__((unused)), struct value *out __attribute__((unused)))

/* Returns the index of the entry named `wanted` from the function that contains it, or -1. */
#define FIND(table, wanted)                                            \
    for (size_t i = 0; i < sizeof(table) / sizeof *(table); i++)       \
        if (text_is(wanted, (table)[i].name))                          \
            return (int)i;                                             \
    return -1

/* Calls `c` with the arguments, or fails if they do not fit its parameters. */
int call_with(struct rendering *r, const struct callable *c, struct value on, const struct arguments *args,
              struct value *out);
int call_wrong(struct rendering *r, const char *of, struct value v, const char *wanted); /* fails: `of` takes `wanted`,
                                                                                            not v */
/* Reads an argument that must be an integer. The result is `otherwise` if the argument is missing or none. */
int call_integer(struct rendering *r, const char *of, const struct value *v, int64_t otherwise, int64_t *out);

/* What methods and filters share. lower, upper and capitalize take strings in ASCII. */
int call_strip(struct rendering *r, const char *name, struct value on, const struct value *set, int left, int right,
               struct value *out);
int call_replace(struct rendering *r, struct value on, const struct value *const *arg, struct value *out);
int call_join(struct rendering *r, struct value list, struct template_text between, struct value *out);
/* as Python's str() */
int call_string(struct rendering *r, struct value on, const struct value *const *arg, struct value *out);
int call_lower(struct rendering *r, struct value on, const struct value *const *arg, struct value *out);
int call_upper(struct rendering *r, struct value on, const struct value *const *arg, struct value *out);
int call_capitalize(struct rendering *r, struct value on, const struct value *const *arg, struct value *out);
/* Returns a list of [key, value] pairs. If `which` is 0 or 1, returns only the keys or only the values. */
int call_items(struct rendering *r, const struct dict *d, int which, struct value *out);

#endif
