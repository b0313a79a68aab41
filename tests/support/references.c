/* tests/support/references.c -- references of golden checkpoints. */
#include "tests/support/references.h"

#include <limits.h>
#include <stdlib.h>

#include "tests/support/files.h"

void check_distance(const char *what, const char *of, const struct golden *g, const double *data, double bound)
{
    size_t count;
    const void *want = golden_data(g, of, &count);
    double d = distance(data, want, count);
    if (getenv("VERBOSE"))
        print_message("%s, %s: %.3g\n", what, of, d);
    if (!(d <= bound))
        fail_msg("%s: %s is %.3g of the largest value away from the golden, allowed is %.3g", what, of, d, bound);
}

void check_tokens(const char *what, const int32_t *have, json_t *want)
{
    int32_t expected[256];
    int n = read_tokens(want, expected);
    for (int i = 0; i < n; i++)
        if (have[i] != expected[i])
            fail_msg("%s: token %d is %d, the golden has %d", what, i, (int)have[i], (int)expected[i]);
}

struct reference *open_reference(const char *dir)
{
    struct reference *r;
    vb_error err;
    if (reference_open(&r, dir, NULL, &err))
        fail_msg("%s", err.message);
    return r;
}

struct reference *open_tiny_reference(const char *name)
{
    char dir[256];
    snprintf(dir, sizeof dir, "golden/tiny/%s", name);
    return open_reference(dir);
}

double *doubles(size_t count)
{
    double *d = calloc(count, sizeof *d);
    assert_non_null(d);
    return d;
}

void variant_make(char dir[64], const char *name, json_t *keys)
{
    char path[512], copy[512], full[PATH_MAX];
    make_dir(dir);
    snprintf(path, sizeof path, "golden/tiny/%s", name);
    DIR *files = opendir(path);
    assert_non_null(files);
    for (struct dirent *f; (f = readdir(files));) {
        snprintf(path, sizeof path, "golden/tiny/%s/%.200s", name, f->d_name);
        snprintf(copy, sizeof copy, "%s/%.200s", dir, f->d_name);
        if (!strcmp(f->d_name, "config.json")) {
            json_t *config = json_load_file(path, 0, NULL);
            assert_non_null(config);
            json_object_update(config, keys);
            assert_int_equal(json_dump_file(config, copy, 0), 0);
            json_decref(config);
        } else if (f->d_name[0] != '.') {
            assert_non_null(realpath(path, full));
            assert_int_equal(symlink(full, copy), 0);
        }
    }
    closedir(files);
}

struct kept {
    int32_t *sets;
    int layers, topk;
};

static void keep_set(void *context, const struct reference_value *v)
{
    struct kept *k = context;
    if (strcmp(v->name, "index_set"))
        return;
    for (int i = 0; i < v->rows; i++)
        for (int j = 0; j < k->topk; j++)
            k->sets[(i * k->layers + v->layer) * k->topk + j] = j < v->cols ? (int32_t)v->data[i * v->cols + j] : -1;
}

int32_t *reference_sets(const struct reference *r, const struct reference_options *options, const int32_t *tokens,
                        int S)
{
    const struct config *c = reference_config(r);
    struct kept kept = {NULL, c->num_hidden_layers, c->index_topk};
    struct reference_options o = options ? *options : (struct reference_options){0};
    size_t size = (size_t)S * (size_t)kept.layers * (size_t)kept.topk * sizeof *kept.sets;
    vb_error err;
    if (!kept.topk)
        return NULL;
    kept.sets = malloc(size);
    assert_non_null(kept.sets);
    memset(kept.sets, 0xff, size);
    o.hook = keep_set;
    o.hook_context = &kept;
    if (reference_forward(r, &o, tokens, S, NULL, NULL, &err))
        fail_msg("%s", err.message);
    return kept.sets;
}

void check_target(const char *name, const char *suffix, const struct reference_options *options, double bound)
{
    struct reference *r = open_tiny_reference(name);
    const struct config *c = reference_config(r);
    json_t *told = golden_json(name);
    char file[64];
    snprintf(file, sizeof file, "%s%s", name, suffix);
    struct golden g = golden_open(file);
    int32_t tokens[256];
    int S = read_tokens(json_object_get(told, "tokens"), tokens);
    double *logits = doubles((size_t)S * c->vocab_size), *hidden = doubles((size_t)S * c->hidden_size);
    vb_error err;
    if (reference_forward(r, options, tokens, S, hidden, logits, &err))
        fail_msg("%s", err.message);
    check_distance(file, "logits", &g, logits, bound);
    if (json_object_get(g.header, "hidden"))
        check_distance(file, "hidden", &g, hidden, bound);
    free(logits);
    free(hidden);
    golden_close(&g);
    json_decref(told);
    reference_close(r);
}

void check_greedy(const char *name)
{
    struct reference *r = open_tiny_reference(name);
    json_t *told = golden_json(name), *want = json_object_get(told, "greedy");
    int32_t tokens[256], out[64];
    int S = read_tokens(json_object_get(told, "tokens"), tokens);
    vb_error err;
    assert_int_equal(reference_generate(r, NULL, tokens, S, (int)json_array_size(want), out, &err), VB_OK);
    check_tokens(name, out, want);
    json_decref(told);
    reference_close(r);
}
