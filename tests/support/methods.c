#include "tests/support/methods.h"

#include "engine/model/model.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"

vb_draft_method method_named(const char *name)
{
    vb_draft_method method = {.name = "none"};
    vb_error err;
    if (name && vb_draft_method_find(&method, name, &err))
        fail_msg("%s", err.message);
    return method;
}

int may_find_nothing(const vb_draft_method *method)
{
    return !method->needs_modules && !method->needs_model && !method->needs_head && !method->needs_callback;
}

/* ---- heads: the directory golden/FOLDER/KIND-MODEL has a head for golden/tiny/MODEL or golden/MODEL ---- */

#define MOST_HEADS 64

static struct found_head {
    char model[64], method[32], dir[128]; /* dir is empty if there is no head */
} heads[MOST_HEADS];
static size_t head_count;

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int look_in(const char *folder, struct found_head *h, const vb_model *m)
{
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; !*h->dir && (e = readdir(dir));) {
        const char *model = strrchr(e->d_name, '-');
        if (!model || strcmp(model + 1, h->model))
            continue;
        snprintf(h->dir, sizeof h->dir, "%s/%.100s", folder, e->d_name);
        if (vb_draft_check(m, &(vb_drafting){.method = h->method, .head = h->dir}, NULL)) /* a head of another kind */
            *h->dir = 0;
    }
    closedir(dir);
    return *h->dir;
}

const char *head_for(const vb_model *m, const char *method)
{
    const char *model = last_part(checkpoint_dir(m->checkpoint));
    if (!method_named(method).needs_head)
        return NULL;
    for (struct found_head *h = heads; h < heads + head_count; h++)
        if (!strcmp(h->model, model) && !strcmp(h->method, method))
            return *h->dir ? h->dir : NULL;
    assert_true(head_count < MOST_HEADS);
    struct found_head *h = &heads[head_count++];
    snprintf(h->model, sizeof h->model, "%s", model);
    snprintf(h->method, sizeof h->method, "%s", method);
    return look_in("golden/eagle", h, m) || look_in("golden/heads", h, m) ? h->dir : NULL;
}

/* ---- */

/* Drafts what followed the last token where it stood before, and so on; else the first token of the text. */
static int draft_what_followed(void *context, const int32_t *tokens, size_t count, int32_t *draft, int max)
{
    (void)context;
    for (int i = 0; i < max; i++) {
        int32_t last = i ? draft[i - 1] : tokens[count - 1];
        draft[i] = tokens[0];
        for (size_t j = 0; j + 1 < count; j++)
            if (tokens[j] == last)
                draft[i] = tokens[j + 1];
    }
    return max;
}

vb_drafting drafting_of(const vb_model *target, const char *method, int tokens)
{
    return (vb_drafting){.method = method, .tokens = tokens, .model = target, .head = head_for(target, method),
                         .callback = draft_what_followed};
}

int can_draft(const vb_model *m, const char *name)
{
    vb_draft_method method = method_named(name);
    int head = !method.needs_head || head_for(m, name);
    /* with golden/tiny/v3, every method is tested */
    if (!head && !strcmp(last_part(checkpoint_dir(m->checkpoint)), "v3"))
        fail_msg("golden/eagle and golden/heads have no head for golden/tiny/v3 that %s can use", name);
    return head && (!method.needs_modules || vb_mtp_modules(m));
}

static int takes_part(const vb_model *m, const vb_draft_method *method, int which)
{
    return (!m || can_draft(m, method->name)) && (!(which & OF_MODULES) || method->needs_modules) &&
           (!(which & OF_TREES) || method->trees) && (!(which & WITH_STATE) || method->keeps_state) &&
           (!(which & BY_TOKENS) || !method->by_history) && (!(which & WITHOUT_HEAD) || !method->needs_head) &&
           (!(which & OF_THE_MODEL) || !(method->needs_head || method->needs_model || method->needs_callback));
}

struct methods methods_for(const vb_model *m, int which)
{
    struct methods all = {.count = 0};
    vb_draft_method method;
    if (which & WITH_NONE)
        all.name[all.count++] = "none";
    for (size_t i = 0; vb_draft_methods(i, &method); i++)
        if (takes_part(m, &method, which)) {
            assert_true(all.count < MOST_METHODS);
            all.name[all.count++] = method.name;
        }
    return all;
}
