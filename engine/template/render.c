/* engine/template/render.c -- computes the output from the nodes.
 *
 * Names belong to scopes. The body of a loop has a new scope for each element, so a name that is set inside is not
 * known after the loop (for this reason templates use namespaces). The scope of a macro's body is inside the scope in
 * which the macro was defined. */
#include <stdio.h>
#include <string.h>

#include "engine/template/template_internal.h"

static int run_body(struct rendering *r, const struct node *body);
static int evaluate(struct rendering *r, const struct node *n, struct value *out);

/* ---- bounds, output ---------------------------------------------------------------------------------------------- */

int run_fail(struct rendering *r, const char *format, ...)
{
    char what[320];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return template_fail(r->err, VB_BAD_ARGUMENT, r->t->name, r->line, "%s", what);
}

int run_no_memory(struct rendering *r)
{
    if (r->arena.full)
        return run_fail(r, "the rendering takes more than %u MB", MAX_MEMORY >> 20);
    return template_fail(r->err, VB_NO_MEMORY, r->t->name, r->line, "no memory for the rendering");
}

int run_steps(struct rendering *r, size_t bytes)
{
    r->steps += 1 + bytes / 16;
    return r->steps <= MAX_STEPS ? VB_OK : run_fail(r, "the rendering takes more than %d steps", MAX_STEPS);
}

int run_deeper(struct rendering *r)
{
    if (r->depth++ < MAX_DEPTH)
        return run_steps(r, 0);
    return run_fail(r, "the rendering is nested more than %d deep", MAX_DEPTH);
}

int run_put(struct rendering *r, const char *s, size_t n)
{
    struct output *o = &r->out;
    int rc = run_steps(r, n);
    if (rc)
        return rc;
    if (o->room - o->n <= n) {
        size_t room = 2 * o->room + n + 256;
        r->arena.full |= room > MAX_MEMORY;
        char *now = r->arena.full ? NULL : vb_alloc(&r->t->allocator, room, 1);
        if (!now)
            return run_no_memory(r);
        if (o->n)
            memcpy(now, o->s, o->n);
        vb_free(&r->t->allocator, o->s);
        o->s = now;
        o->room = room;
    }
    if (n)
        memcpy(o->s + o->n, s, n);
    o->n += n;
    return VB_OK;
}

int run_take(struct rendering *r, size_t from, struct value *out)
{
    size_t n = r->out.n - from;
    char *s = arena_get(&r->arena, n + 1, 1);
    if (!s)
        return run_no_memory(r);
    if (n)
        memcpy(s, r->out.s + from, n);
    r->out.n = from;
    for (struct template_marks *m = r->marks; m && m->count && m->at[m->count - 1].end > from; m->count--)
        m->moved = 1;
    *out = value_string((struct template_text){s, n});
    return VB_OK;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static struct variable *variable_in(struct rendering *r, const struct template_scope *scope, struct template_text name)
{
    for (struct variable *v = scope->first; v; v = v->next, r->steps++)
        if (v->name.n == name.n) {
            r->steps += name.n / 16;
            if (!memcmp(v->name.s, name.s, name.n))
                return v;
        }
    return NULL;
}

static const struct value *find_name(struct rendering *r, struct template_text name)
{
    for (const struct template_scope *s = r->scope; s; s = s->outer) {
        const struct variable *v = variable_in(r, s, name);
        if (v)
            return &v->value;
    }
    return NULL;
}

static int set_name(struct rendering *r, struct template_text name, struct value value)
{
    struct variable *v = variable_in(r, r->scope, name);
    if (!v) {
        if (!(v = arena_get(&r->arena, 1, sizeof *v)))
            return run_no_memory(r);
        *v = (struct variable){name, value, r->scope->first};
        r->scope->first = v;
    }
    v->value = value;
    return VB_OK;
}

static int enter_scope(struct rendering *r, struct template_scope *outer)
{
    struct template_scope *s = arena_get(&r->arena, 1, sizeof *s);
    if (!s)
        return run_no_memory(r);
    s->outer = outer;
    r->scope = s;
    return VB_OK;
}

/* ---- attributes, items, slices ----------------------------------------------------------------------------------- */

static int loop_attribute(struct rendering *r, const struct loop *l, struct template_text name, struct value *out)
{
    int64_t at = (int64_t)l->at, n = (int64_t)l->over->n;
    const struct {
        const char *name;
        struct value value;
    } all[] = {{"index", value_int(at + 1)}, {"index0", value_int(at)}, {"first", value_bool(at == 0)},
               {"last", value_bool(at + 1 >= n)}, {"length", value_int(n)}, {"revindex", value_int(n - at)},
               {"revindex0", value_int(n - at - 1)}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (text_is(name, all[i].name))
            return *out = all[i].value, VB_OK;
    int before = text_is(name, "previtem");
    if (!before && !text_is(name, "nextitem"))
        return run_fail(r, "loop.%s is not implemented", text_show(name).s);
    *out = (struct value){V_UNDEFINED, {.s = name}};
    if (before ? at > 0 && at <= n : at + 1 < n)
        *out = l->over->items[before ? at - 1 : at + 1];
    return VB_OK;
}

int value_attribute(struct rendering *r, struct value on, struct template_text name, struct value *out)
{
    const struct value *v = NULL;
    if (on.type == V_UNDEFINED)
        return run_fail(r, "%s is undefined", text_show(on.s).s);
    if (on.type == V_LOOP)
        return loop_attribute(r, on.loop, name, out);
    if (on.type == V_DICT && method_of_dict(name) >= 0)
        return run_fail(r, "the method %s without a call is not implemented", text_show(name).s);
    if (on.type == V_DICT || on.type == V_NAMESPACE)
        v = dict_find(r, on.dict, name);
    *out = v ? *v : (struct value){V_UNDEFINED, {.s = name}};
    return VB_OK;
}

static int item(struct rendering *r, struct value on, struct value at, struct value *out)
{
    struct value list;
    int rc;
    if (on.type == V_UNDEFINED)
        return run_fail(r, "%s is undefined", text_show(on.s).s);
    if (at.type == V_STRING && on.type == V_DICT) {
        const struct value *v = dict_find(r, on.dict, at.s);
        *out = v ? *v : (struct value){V_UNDEFINED, {.s = at.s}};
        return VB_OK;
    }
    *out = (struct value){V_UNDEFINED, {.s = at.type == V_STRING ? at.s : TEXT("an element that is not there")}};
    if (at.type == V_STRING && (on.type == V_NAMESPACE || on.type == V_LOOP))
        return value_attribute(r, on, at.s, out);
    if (at.type != V_INT || (on.type != V_LIST && on.type != V_STRING))
        return VB_OK;
    if ((rc = value_to_list(r, on, &list)))
        return rc;
    int64_t n = (int64_t)list.list->n, i = at.i < 0 ? at.i + n : at.i;
    if (i >= 0 && i < n)
        *out = list.list->items[i];
    return VB_OK;
}

/* Computes one of the numbers of a slice. The number is 0 if it is missing or none. */
static int slice_part(struct rendering *r, const struct node *n, int *given, int64_t *out)
{
    struct value v = {.type = V_NONE};
    int rc = n ? evaluate(r, n, &v) : VB_OK;
    *given = !rc && v.type == V_INT;
    *out = *given ? v.i : 0;
    return rc || v.type == V_NONE || *given ? rc : run_fail(r, "a slice takes integers, not %s", value_kind(v));
}

/* Computes a limit of a slice, clamped as in Python: to [0, count] if the step is positive, to [-1, count-1] if it is
 * negative. */
static int bound(struct rendering *r, const struct node *n, int64_t otherwise, int64_t count, int64_t step,
                 int64_t *out)
{
    int64_t least = step < 0 ? -1 : 0, most = step < 0 ? count - 1 : count;
    int given, rc = slice_part(r, n, &given, out);
    *out += given && *out < 0 && *out >= -count ? count : 0;
    *out = !given ? otherwise : *out < least ? least : *out > most ? most : *out;
    return rc;
}

static int slice(struct rendering *r, const struct node *n, struct value on, struct value *out)
{
    struct value list;
    int64_t from, to, step;
    int given, rc;
    size_t start = r->out.n;
    if (on.type != V_STRING && on.type != V_LIST)
        return run_fail(r, "%s cannot be sliced", on.type == V_UNDEFINED ? text_show(on.s).s : value_kind(on));
    if ((rc = value_to_list(r, on, &list)) || (rc = slice_part(r, n->d, &given, &step)))
        return rc;
    int64_t count = (int64_t)list.list->n;
    if (given && (!step || step < -count - 1 || step > count + 1)) /* such a step visits one element at most, so its
                                                                      size does not matter */
        step = !step ? 0 : step < 0 ? -count - 1 : count + 1;
    if (given && !step)
        return run_fail(r, "a slice has a step of 0");
    step = given ? step : 1;
    if ((rc = bound(r, n->b, step < 0 ? count - 1 : 0, count, step, &from)) ||
        (rc = bound(r, n->c, step < 0 ? -1 : count, count, step, &to)) || (rc = value_list(r, 0, out)))
        return rc;
    for (; (step < 0 ? from > to : from < to) && !rc; from += step) {
        struct value one = list.list->items[from];
        rc = on.type == V_STRING ? run_put(r, one.s.s, one.s.n) : list_append(r, out->list, one);
    }
    return rc || on.type != V_STRING ? rc : run_take(r, start, out);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static int arguments(struct rendering *r, const struct node *list, struct arguments *out)
{
    int rc = VB_OK;
    for (out->n = 0; list && !rc; list = list->next, out->n++) {
        out->all[out->n].keyword = list->keyword;
        rc = evaluate(r, list, &out->all[out->n].value);
    }
    return rc;
}

static const struct value *argument_for(const struct arguments *args, struct template_text name, size_t position,
                                        size_t *used)
{
    for (size_t i = 0; i < args->n; i++) {
        const struct argument *a = &args->all[i];
        if (a->keyword.n ? a->keyword.n == name.n && !memcmp(a->keyword.s, name.s, name.n) : i == position)
            return ++*used, &a->value;
    }
    return NULL;
}

static int bind_parameters(struct rendering *r, const struct node *macro, const struct arguments *args)
{
    size_t position = 0, used = 0;
    int rc = VB_OK;
    for (const struct node *p = macro->a; p && !rc; p = p->next) {
        const struct value *given = argument_for(args, p->name, position++, &used);
        struct value v = given ? *given : (struct value){V_UNDEFINED, {.s = p->name}};
        r->steps += args->n * (p->name.n / 16); /* each parameter is compared with the keywords */
        if (!given && p->a)
            rc = evaluate(r, p->a, &v);
        if (!rc)
            rc = set_name(r, p->name, v);
    }
    return rc || used == args->n ? rc : run_fail(r, "the macro %s has no such arguments", text_show(macro->name).s);
}

static int call_macro(struct rendering *r, const struct macro *m, const struct arguments *args, struct value *out)
{
    struct template_scope *saved = r->scope;
    size_t from = r->out.n;
    int rc = enter_scope(r, m->scope);
    if (!rc && !(rc = bind_parameters(r, m->node, args)) && !(rc = run_body(r, m->node->c)))
        rc = run_take(r, from, out);
    r->scope = saved;
    return rc;
}

static int call_name(struct rendering *r, const struct node *n, const struct arguments *args, struct value *out)
{
    const struct value *v = find_name(r, n->name);
    if (v && v->type == V_MACRO)
        return call_macro(r, v->macro, args, out);
    if (v || n->op < 0)
        return template_fail(r->err, VB_UNSUPPORTED, r->t->name, r->line, "the function %s is not implemented",
                             text_show(n->name).s);
    return function_call(r, n->op, args, out);
}

static int call(struct rendering *r, const struct node *n, struct value *out)
{
    struct arguments args;
    struct value on;
    int rc;
    if (n->kind != E_CALL || n->a)
        if ((rc = evaluate(r, n->a, &on)))
            return rc;
    if ((rc = arguments(r, n->b, &args)))
        return rc;
    if (n->kind == E_FILTER)
        return filter_call(r, n->op, on, &args, out);
    return n->a ? method_call(r, n->op, on, &args, out) : call_name(r, n, &args, out);
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

static int make_list(struct rendering *r, const struct node *n, struct value *out)
{
    int rc = value_list(r, 0, out);
    for (const struct node *e = n->a; e && !rc; e = e->next) {
        struct value v;
        if (!(rc = evaluate(r, e, &v)))
            rc = list_append(r, out->list, v);
    }
    return rc;
}

static int make_dict(struct rendering *r, const struct node *n, struct value *out)
{
    int rc = value_dict(r, V_DICT, out);
    for (const struct node *e = n->a; e && !rc; e = e->next) {
        struct value key, v;
        if ((rc = evaluate(r, e->a, &key)) || (rc = evaluate(r, e->b, &v)))
            break;
        rc = key.type == V_STRING ? dict_set(r, out->dict, key.s, v)
                                  : run_fail(r, "a dict's key is %s, wanted a string", value_kind(key));
    }
    return rc;
}

static int name_of(struct rendering *r, const struct node *n, struct value *out)
{
    const struct value *v = find_name(r, n->name);
    *out = v ? *v : (struct value){V_UNDEFINED, {.s = n->name}};
    return VB_OK;
}

static int sign(struct rendering *r, const struct node *n, struct value v, struct value *out)
{
    if (v.type != V_INT && v.type != V_FLOAT)
        return run_fail(r, "%s has no sign", v.type == V_UNDEFINED ? text_show(v.s).s : value_kind(v));
    return n->kind == E_PLUS ? (*out = v, VB_OK) : value_binary(r, OP_SUBTRACT, value_int(0), v, out);
}

static int evaluate_kind(struct rendering *r, const struct node *n, struct value *out)
{
    struct value a, b;
    int yes, rc;
    switch (n->kind) {
    case E_CONST: return *out = n->value, VB_OK;
    case E_NAME: return name_of(r, n, out);
    case E_LIST: return make_list(r, n, out);
    case E_DICT: return make_dict(r, n, out);
    case E_CALL:
    case E_FILTER: return call(r, n, out);
    default: break;
    }
    if ((rc = evaluate(r, n->a, &a)))
        return rc;
    switch (n->kind) {
    case E_ATTRIBUTE: return value_attribute(r, a, n->name, out);
    case E_ITEM: return (rc = evaluate(r, n->b, &b)) ? rc : item(r, a, b, out);
    case E_SLICE: return slice(r, n, a, out);
    case E_TEST:
        if ((n->b && (rc = evaluate(r, n->b, &b))) || (rc = test_call(r, n->op, a, n->b ? &b : NULL, &yes)))
            return rc;
        return *out = value_bool(yes), VB_OK;
    case E_NOT: return *out = value_bool(!value_true(a)), VB_OK;
    case E_AND: return value_true(a) ? evaluate(r, n->b, out) : (*out = a, VB_OK);
    case E_OR: return value_true(a) ? (*out = a, VB_OK) : evaluate(r, n->b, out);
    case E_BINARY: return (rc = evaluate(r, n->b, &b)) ? rc : value_binary(r, n->op, a, b, out);
    case E_CONDITIONAL:
        if (value_true(a) || n->c)
            return evaluate(r, value_true(a) ? n->b : n->c, out);
        return *out = (struct value){V_UNDEFINED, {.s = TEXT("an if without an else")}}, VB_OK;
    default: return sign(r, n, a, out);
    }
}

static int evaluate(struct rendering *r, const struct node *n, struct value *out)
{
    r->line = n->line;
    int rc = run_deeper(r);
    if (!rc)
        rc = evaluate_kind(r, n, out);
    r->depth--;
    return rc;
}

/* ---- statements -------------------------------------------------------------------------------------------------- */

static int run_print(struct rendering *r, const struct node *n)
{
    struct value v;
    int rc = evaluate(r, n->a, &v);
    return rc ? rc : value_print(r, v);
}

static int run_if(struct rendering *r, const struct node *n)
{
    for (;;) {
        struct value v;
        int rc = evaluate(r, n->a, &v);
        if (rc)
            return rc;
        if (value_true(v))
            return run_body(r, n->b);
        if (!n->c || n->c->kind != N_IF || n->c->next)
            return run_body(r, n->c);
        n = n->c; /* the else part is an elif */
    }
}

static int bind_targets(struct rendering *r, const struct node *targets, struct value v)
{
    struct value parts;
    int rc;
    if (!targets->next)
        return set_name(r, targets->name, v);
    if ((rc = value_to_list(r, v, &parts)))
        return rc;
    size_t i = 0;
    for (; targets && i < parts.list->n && !rc; targets = targets->next, i++)
        rc = set_name(r, targets->name, parts.list->items[i]);
    return rc || (!targets && i == parts.list->n)
               ? rc
               : run_fail(r, "a loop's names and an element's %zu values differ", parts.list->n);
}

/* Keeps only the elements for which the loop's condition is true. */
static int filtered(struct rendering *r, const struct node *n, struct value *list)
{
    struct template_scope *saved = r->scope;
    struct value all = *list, v;
    int rc = value_list(r, 0, list);
    for (size_t i = 0; i < all.list->n && !rc; i++)
        if (!(rc = enter_scope(r, saved)) && !(rc = bind_targets(r, n->a, all.list->items[i])) &&
            !(rc = evaluate(r, n->a->d, &v)) && value_true(v))
            rc = list_append(r, list->list, all.list->items[i]);
    r->scope = saved;
    return rc;
}

static int run_for(struct rendering *r, const struct node *n)
{
    struct template_scope *saved = r->scope;
    struct value list;
    struct loop *loop = arena_get(&r->arena, 1, sizeof *loop);
    int rc = loop ? evaluate(r, n->b, &list) : run_no_memory(r);
    if (rc || (rc = value_to_list(r, list, &list)) || (n->a->d && (rc = filtered(r, n, &list))))
        return rc;
    if (!list.list->n)
        return run_body(r, n->d);
    loop->over = list.list;
    for (; loop->at < list.list->n && !rc && r->jump != N_BREAK; loop->at++) {
        r->jump = 0;
        if (!(rc = enter_scope(r, saved)) && !(rc = bind_targets(r, n->a, list.list->items[loop->at])) &&
            !(rc = set_name(r, TEXT("loop"), (struct value){V_LOOP, {.loop = loop}})))
            rc = run_body(r, n->c);
    }
    r->jump = 0;
    r->scope = saved;
    return rc;
}

/* The text of a block's body. Names that are set inside of it are not known after it. */
static int run_block(struct rendering *r, const struct node *body, struct value *out)
{
    struct template_scope *saved = r->scope;
    size_t from = r->out.n;
    int rc = enter_scope(r, saved);
    if (!rc)
        rc = run_body(r, body);
    r->scope = saved;
    return rc ? rc : run_take(r, from, out);
}

static int run_set(struct rendering *r, const struct node *n)
{
    struct value v;
    int rc = n->a ? evaluate(r, n->a, &v) : run_block(r, n->c, &v);
    if (rc || !n->keyword.n)
        return rc ? rc : set_name(r, n->name, v);
    const struct value *space = find_name(r, n->name);
    if (!space || space->type != V_NAMESPACE)
        return run_fail(r, "%s is no namespace", text_show(n->name).s);
    return dict_set(r, space->dict, n->keyword, v);
}

static int run_macro(struct rendering *r, const struct node *n)
{
    struct macro *m = arena_get(&r->arena, 1, sizeof *m);
    if (!m)
        return run_no_memory(r);
    *m = (struct macro){n, r->scope};
    return set_name(r, n->name, (struct value){V_MACRO, {.macro = m}});
}

static int run_mark(struct rendering *r, size_t first)
{
    struct template_marks *m = r->marks;
    if (m->count == m->room) {
        size_t room = 2 * m->room + 16;
        struct template_mark *now = vb_alloc(&r->t->allocator, room, sizeof *now);
        if (!now)
            return run_no_memory(r);
        if (m->count)
            memcpy(now, m->at, m->count * sizeof *now);
        vb_free(&r->t->allocator, m->at);
        m->at = now;
        m->room = room;
    }
    m->at[m->count++] = (struct template_mark){first, r->out.n};
    return VB_OK;
}

static int run_generation(struct rendering *r, const struct node *n)
{
    size_t first = r->out.n;
    int rc = run_body(r, n->c);
    return rc || !r->marks ? rc : run_mark(r, first);
}

static int run_statement(struct rendering *r, const struct node *n)
{
    r->line = n->line;
    switch (n->kind) {
    case N_TEXT: return run_put(r, n->value.s.s, n->value.s.n);
    case N_PRINT: return run_print(r, n);
    case N_IF: return run_if(r, n);
    case N_FOR: return run_for(r, n);
    case N_SET: return run_set(r, n);
    case N_MACRO: return run_macro(r, n);
    case N_GENERATION: return run_generation(r, n);
    default: return r->jump = (int)n->kind, VB_OK;
    }
}

static int run_body(struct rendering *r, const struct node *body)
{
    int rc = run_deeper(r);
    for (; body && !rc && !r->jump; body = body->next)
        rc = run_statement(r, body);
    r->depth--;
    return rc;
}

/* ---- a rendering ------------------------------------------------------------------------------------------------- */

static int set_variables(struct rendering *r, const json_t *variables)
{
    struct value all;
    int rc = json_is_object(variables) ? value_from_json(r, variables, &all)
                                       : run_fail(r, "its variables are no object");
    for (size_t i = 0; !rc && i < all.dict->n; i++)
        rc = set_name(r, all.dict->entries[i].key, all.dict->entries[i].value);
    return rc;
}

int template_render(const struct vb_template *t, const json_t *variables, char **text, size_t *size, vb_error *err)
{
    return template_render_marked(t, variables, NULL, text, size, err);
}

int template_render_marked(const struct vb_template *t, const json_t *variables, struct template_marks *marks,
                           char **text, size_t *size, vb_error *err)
{
    struct rendering r = {.t = t, .arena = {.allocator = &t->allocator, .limit = MAX_MEMORY}, .err = err, .line = 1,
                          .marks = marks};
    int rc = enter_scope(&r, NULL);
    if (marks)
        *marks = (struct template_marks){0};
    *text = NULL;
    *size = 0;
    if (!rc && !(rc = set_variables(&r, variables)) && !(rc = run_body(&r, t->body)))
        rc = run_put(&r, "", 1); /* the 0 byte after the text */
    arena_free(&r.arena);
    if (rc) {
        vb_free(&t->allocator, r.out.s);
        return rc;
    }
    *text = r.out.s;
    *size = r.out.n - 1;
    return VB_OK;
}
