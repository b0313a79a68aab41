/* tools/cli/routes.c -- reads and writes files of routes. */
#include "tools/cli/routes.h"

#include <stdlib.h>
#include <string.h>

#include "tools/cli/base64.h"
#include "tools/cli/file.h"

/* Integers of a file: where they are, their type, and their shape. */
struct numbers {
    const char *data;
    size_t size;       /* in bytes */
    int width, is_signed; /* bytes of a number */
    size_t shape[3];
};

static int wrong(const struct cli *c, const char *name, const char *what)
{
    return cli_fail(c, EXIT_OTHER, "%.256s: %s", name, what);
}

static long long number_at(const struct numbers *n, size_t i)
{
    const unsigned char *p = (const unsigned char *)n->data + i * (size_t)n->width;
    unsigned long long u = 0;
    for (int b = 0; b < n->width; b++)
        u |= (unsigned long long)p[b] << 8 * b;
    if (n->is_signed && n->width < 8 && u >> (8 * n->width - 1))
        u -= 1ull << 8 * n->width;
    return (long long)u;
}

static const struct {
    const char *key, *rows, *shape; /* key: of JSON, and the name of a tensor */
    const char *start, *before;     /* keys of JSON beside it, or NULL */
} kinds[] = {{"routed_experts", "routes", "[tokens, layers, top_k]", "routed_experts_start_len",
              "prompt_routed_experts"},
             {"indexer_topk", "kept sets", "[tokens, layers, index_topk]", NULL, NULL}};

static int is_chosen(const struct cli *c, enum routes_kind kind, int32_t layer)
{
    return kind == ROUTES_EXPERTS ? vb_is_moe_layer(c->model, layer) : vb_has_indexer(c->model, layer);
}

/* In how many of the model's layers something is chosen. */
static size_t count_chosen(const struct cli *c, const struct routes_array *out)
{
    size_t count = 0;
    for (int32_t l = 0; l < out->layers; l++)
        count += (size_t)is_chosen(c, out->kind, l);
    return count;
}

static int begin(const struct cli *c, enum routes_kind kind, const char *name, struct routes_array *out)
{
    vb_routes shape;
    vb_model_routes(c->model, &shape);
    *out = (struct routes_array){.kind = kind, .layers = shape.layers,
                                 .width = kind == ROUTES_EXPERTS ? shape.top_k : shape.index_topk};
    if (out->width)
        return EXIT_DONE;
    return wrong(c, name, kind == ROUTES_EXPERTS ? "there are routed experts, but the model has no MoE layer"
                                                 : "there are kept sets, but the model has no indexer");
}

/* Makes room for `tokens` more tokens, and returns the first new row. */
static int32_t *add_rows(struct routes_array *out, size_t tokens)
{
    size_t row = (size_t)out->layers * (size_t)out->width, had = out->tokens;
    out->numbers = cli_must(realloc(out->numbers, ((had + tokens) * row + 1) * sizeof *out->numbers));
    out->tokens += tokens;
    return out->numbers + had * row;
}

/* Adds rows of -1. */
static void add_unknown(struct routes_array *out, size_t tokens)
{
    memset(add_rows(out, tokens), 0xff, tokens * (size_t)out->layers * (size_t)out->width * sizeof *out->numbers);
}

/* Adds the rows to *out, whose shape is the model's. */
static int take(const struct cli *c, const char *name, const struct numbers *n, struct routes_array *out)
{
    size_t layers = (size_t)out->layers, width = (size_t)out->width, chosen = count_chosen(c, out);
    if (n->shape[2] != width || (n->shape[1] != layers && n->shape[1] != chosen))
        return cli_fail(c, EXIT_OTHER,
                        out->kind == ROUTES_EXPERTS ? "%.256s: the routed experts have the shape [%zu, %zu, %zu], "
                                                      "wanted %zu layers and %zu experts per token"
                                                    : "%.256s: the kept sets have the shape [%zu, %zu, %zu], wanted "
                                                      "%zu layers and index_topk = %zu",
                        name, n->shape[0], n->shape[1], n->shape[2], layers, width);
    int32_t *to = add_rows(out, n->shape[0]);
    size_t at = 0;
    for (size_t t = 0; t < n->shape[0]; t++)
        for (size_t l = 0; l < layers; l++)
            for (size_t k = 0; k < width; k++) {
                int is_there = n->shape[1] == layers || is_chosen(c, out->kind, (int32_t)l);
                long long e = is_there ? number_at(n, at++) : out->kind == ROUTES_EXPERTS ? 0 : -1;
                if (e < INT32_MIN || e > INT32_MAX)
                    return cli_fail(c, EXIT_OTHER, "%.256s: %s %lld does not exist", name,
                                    out->kind == ROUTES_EXPERTS ? "expert" : "token", e);
                *to++ = (int32_t)e;
            }
    return EXIT_DONE;
}

/* ---- .npy -------------------------------------------------------------------------------------------------------- */

static int is_npy(const char *data, size_t size) { return size >= 10 && !memcmp(data, "\x93NUMPY", 6); }

/* The header is a Python dictionary: {'descr': '<i4', 'fortran_order': False, 'shape': (5, 4, 2), } */
static int read_npy(const struct cli *c, enum routes_kind kind, const char *name, const char *data, size_t size,
                    struct numbers *n)
{
    const unsigned char *u = (const unsigned char *)data;
    size_t prefix = u[6] == 1 ? 10 : 12, length = u[8] | (size_t)u[9] << 8;
    char header[1024], order, type;
    if (prefix == 12 && size >= 12)
        length |= (size_t)u[10] << 16 | (size_t)u[11] << 24;
    if (size < prefix || length >= sizeof header || size - prefix < length)
        return wrong(c, name, "the header of the .npy file is too long");
    memcpy(header, data + prefix, length);
    header[length] = '\0';
    const char *descr = strstr(header, "'descr'"), *shape = strstr(header, "'shape'");
    if (!descr || !shape || sscanf(descr, "'descr': '%c%c%1d'", &order, &type, &n->width) != 3 ||
        !strstr(header, "'fortran_order': False") || !strchr("<|", order) || !strchr("iu", type) ||
        !strchr("\1\2\4\10", n->width))
        return wrong(c, name, "wanted integers in C order in the .npy file");
    if (sscanf(shape, "'shape': (%zu, %zu, %zu)", &n->shape[0], &n->shape[1], &n->shape[2]) != 3)
        return cli_fail(c, EXIT_OTHER, "%.256s: wanted the shape %s in the .npy file", name, kinds[kind].shape);
    n->is_signed = type == 'i';
    n->data = data + prefix + length;
    n->size = size - prefix - length;
    size_t row = n->shape[1] * n->shape[2] * (size_t)n->width;
    if (n->shape[1] > 1 << 20 || n->shape[2] > 1 << 20 || !row || n->size % row || n->size / row != n->shape[0])
        return wrong(c, name, "the .npy file does not have the size of its shape");
    return EXIT_DONE;
}

/* ---- safetensors ------------------------------------------------------------------------------------------------- */

static int read_safetensors(const struct cli *c, const char *path, struct routes_array *out)
{
    static const struct {
        const char *name;
        int width, is_signed;
    } types[] = {{"I32", 4, 1}, {"I64", 8, 1}, {"I16", 2, 1}, {"U16", 2, 0}, {"U8", 1, 0}, {"I8", 1, 1}, {"U32", 4, 0}};
    vb_tensors *all;
    vb_tensor t, second;
    vb_error err;
    int code = EXIT_OTHER;
    if (vb_tensors_open(&all, path, NULL, &err))
        return cli_error(c, &err);
    int found = vb_tensors_find(all, kinds[out->kind].key, &t) ||
                (vb_tensors_at(all, 0, &t) && !vb_tensors_at(all, 1, &second));
    size_t type = 0;
    while (found && type < sizeof types / sizeof *types && strcmp(types[type].name, t.dtype))
        type++;
    if (!found)
        cli_fail(c, EXIT_OTHER, "%.256s: it has no tensor %s", path, kinds[out->kind].key);
    else if (type == sizeof types / sizeof *types || t.ndim != 3)
        cli_fail(c, EXIT_OTHER, "%.256s: the tensor of the %s has to hold integers, %s", path,
                 out->kind == ROUTES_EXPERTS ? "routed experts" : kinds[out->kind].rows, kinds[out->kind].shape);
    else
        code = take(c, path, &(struct numbers){t.data, t.bytes, types[type].width, types[type].is_signed,
                                               {(size_t)t.shape[0], (size_t)t.shape[1], (size_t)t.shape[2]}}, out);
    vb_tensors_close(all);
    return code;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static int take_text(const struct cli *c, const char *name, const json_t *value, struct routes_array *out)
{
    size_t size, width = (size_t)out->width * sizeof(int32_t), row = (size_t)out->layers * width,
                 chosen = count_chosen(c, out);
    const char *key = kinds[out->kind].key;
    char *bytes = base64_decode(json_string_value(value), json_string_length(value), &size);
    struct numbers n = {bytes, size, 4, 1, {0, (size_t)out->layers, (size_t)out->width}};
    int code = bytes ? EXIT_DONE : cli_fail(c, EXIT_OTHER, "%.256s: %s is not base64", name, key);
    if (bytes && is_npy(bytes, size)) {
        code = read_npy(c, out->kind, name, bytes, size, &n);
    } else if (bytes) {
        if (size % row && chosen && size % (chosen * width) == 0)
            n.shape[1] = chosen;
        row = n.shape[1] * width;
        n.shape[0] = size / row;
        if (size % row)
            code = cli_fail(c, EXIT_OTHER, "%.256s: %s has %zu bytes, wanted int32 [tokens, %d, %d]", name, key, size,
                            out->layers, out->width);
    }
    if (code == EXIT_DONE)
        code = take(c, name, &n, out);
    free(bytes);
    return code;
}

static int take_lists(const struct cli *c, const char *name, const json_t *value, struct routes_array *out)
{
    const json_t *first = json_array_get(value, 0);
    struct numbers n = {NULL, 0, 4, 1,
                        {json_array_size(value), json_array_size(first), json_array_size(json_array_get(first, 0))}};
    size_t count = n.shape[0] * n.shape[1] * n.shape[2], at = 0;
    int32_t *flat = cli_must(calloc(count + 1, sizeof *flat));
    int fits = 1;
    for (size_t t = 0; t < n.shape[0] && fits; t++) {
        const json_t *token = json_array_get(value, t);
        fits &= json_array_size(token) == n.shape[1];
        for (size_t l = 0; l < n.shape[1] && fits; l++) {
            const json_t *layer = json_array_get(token, l);
            fits &= json_array_size(layer) == n.shape[2];
            for (size_t k = 0; k < n.shape[2] && fits; k++) {
                const json_t *e = json_array_get(layer, k);
                long long i = json_integer_value(e);
                fits &= json_is_integer(e) && i >= INT32_MIN && i <= INT32_MAX;
                flat[at++] = (int32_t)i;
            }
        }
    }
    n.data = (const char *)flat;
    int code = fits ? take(c, name, &n, out)
                    : cli_fail(c, EXIT_OTHER, "%.256s: %s is not an array %s of integers", name, kinds[out->kind].key,
                               kinds[out->kind].shape);
    free(flat);
    return code;
}

static int take_value(const struct cli *c, const char *name, const json_t *value, struct routes_array *out)
{
    if (json_is_string(value))
        return take_text(c, name, value, out);
    return json_is_array(value)
               ? take_lists(c, name, value, out)
               : cli_fail(c, EXIT_OTHER, "%.256s: %s is neither an array nor a text", name, kinds[out->kind].key);
}

static const json_t *only(const json_t *array) { return json_array_size(array) == 1 ? json_array_get(array, 0) : NULL; }

static int given(const json_t *value) { return value && !json_is_null(value); }

/* Returns the value of `key`, or `otherwise` if there is none. */
static const json_t *value_of(const json_t *object, const char *key, const json_t *otherwise)
{
    const json_t *value = key ? json_object_get(object, key) : NULL;
    return given(value) ? value : otherwise;
}

int routes_array_of_json(const struct cli *c, enum routes_kind kind, const char *name, const json_t *value,
                         struct routes_array *out)
{
    const json_t *before = NULL, *start = NULL;
    if (begin(c, kind, name, out) != EXIT_DONE)
        return EXIT_OTHER;
    while (json_is_object(value) || json_is_object(only(value))) { /* down to the numbers */
        const json_t *o = json_is_object(value) ? value : only(value), *meta = json_object_get(o, "meta_info");
        before = value_of(o, kinds[kind].before, before);
        start = value_of(o, kinds[kind].start, start);
        const json_t *next = value_of(o, kinds[kind].key, meta ? meta : json_object_get(o, "outputs"));
        value = next ? next : json_object_get(o, "choices");
        if (!value)
            return cli_fail(c, EXIT_OTHER, "%.256s: it has no key %s", name, kinds[kind].key);
    }
    if (start && json_integer_value(start) > 0) {
        long long rows = json_integer_value(start);
        if (rows > vb_max_positions(c->model))
            return cli_fail(c, EXIT_OTHER, "%.256s: %s is larger than the context", name, kinds[kind].start);
        add_unknown(out, (size_t)rows);
    }
    int code = before ? take_value(c, name, before, out) : EXIT_DONE;
    return code == EXIT_DONE ? take_value(c, name, value, out) : code;
}

static int read_json(const struct cli *c, const char *path, const char *text, size_t size, struct routes_array *out)
{
    vb_error err;
    json_t *j = json_read(text, size, path, &err);
    if (!j)
        return cli_error(c, &err);
    int code = routes_array_of_json(c, out->kind, path, j, out);
    json_decref(j);
    return code;
}

/* ---- --routes-in and --kept-in ----------------------------------------------------------------------------------- */

int routes_array_of_file(const struct cli *c, enum routes_kind kind, const char *path, struct routes_array *out)
{
    char *text;
    size_t size, at = 0;
    vb_error err;
    struct numbers n;
    if (begin(c, kind, path, out) != EXIT_DONE)
        return EXIT_OTHER;
    if (vb_read_input(NULL, path, &text, &size, &err))
        return cli_error(c, &err);
    while (at < size && strchr(" \t\r\n", text[at]))
        at++;
    int is_json = at < size && strchr("{[\"", text[at]), code;
    if (is_npy(text, size)) {
        code = read_npy(c, kind, path, text, size, &n);
        if (code == EXIT_DONE)
            code = take(c, path, &n, out);
    } else {
        code = is_json ? read_json(c, path, text, size, out) : read_safetensors(c, path, out);
    }
    vb_free(NULL, text);
    return code;
}

int routes_array_check(const struct cli *c, const char *name, const struct routes_array *choices, size_t tokens,
                       size_t most)
{
    const char *rows = kinds[choices->kind].rows;
    if (choices->tokens + 1 < tokens)
        return cli_fail(c, EXIT_OTHER, "%.256s: it has %s of %zu tokens, the text has %zu", name, rows, choices->tokens,
                        tokens);
    if (choices->tokens > most)
        return cli_fail(c, EXIT_OTHER, "%.256s: it has %s of %zu tokens, the text only has %zu", name, rows,
                        choices->tokens, most);
    return EXIT_DONE;
}

vb_routes routes_join(const struct cli *c, struct routes_array *experts, struct routes_array *kept)
{
    vb_routes r;
    vb_model_routes(c->model, &r);
    r.tokens = experts->tokens > kept->tokens ? experts->tokens : kept->tokens;
    if (experts->numbers)
        add_unknown(experts, r.tokens - experts->tokens);
    if (kept->numbers)
        add_unknown(kept, r.tokens - kept->tokens);
    r.experts = experts->numbers;
    r.kept = kept->numbers;
    return r;
}

static int read_option(const struct cli *c, enum routes_kind kind, const char *path, size_t tokens, size_t most,
                       struct routes_array *out)
{
    int code = path ? routes_array_of_file(c, kind, path, out) : EXIT_DONE;
    return path && code == EXIT_DONE ? routes_array_check(c, path, out, tokens, most) : code;
}

int cli_routes_in(struct cli *c, size_t tokens, size_t most)
{
    struct routes_array experts = {0}, kept = {0};
    c->session.record_routes = c->routes_out != NULL;
    c->session.record_kept = c->kept_out != NULL;
    int code = read_option(c, ROUTES_EXPERTS, c->routes_in, tokens, most, &experts);
    if (code == EXIT_DONE)
        code = read_option(c, ROUTES_KEPT, c->kept_in, tokens, most, &kept);
    if (code == EXIT_DONE)
        c->session.routes = routes_join(c, &experts, &kept);
    c->routes = experts.numbers;
    c->kept = kept.numbers;
    return code;
}

/* ---- --routes-out and --kept-out --------------------------------------------------------------------------------- */

static int check_out(const struct cli *c, const char *option, const char *path)
{
    if (path && !cli_ends_with(path, ".safetensors") && !cli_ends_with(path, ".npy") && !cli_ends_with(path, ".json"))
        return cli_fail(c, EXIT_USAGE, "%s is %.256s, wanted a name that ends in .safetensors, .npy or .json", option,
                        path);
    return cli_check_file(c, option, path);
}

int cli_check_routes_out(const struct cli *c)
{
    int code = check_out(c, "--routes-out", c->routes_out);
    return code == EXIT_DONE ? check_out(c, "--kept-out", c->kept_out) : code;
}

static struct routes_array choices_of(const vb_routes *r, enum routes_kind kind)
{
    const int32_t *numbers = kind == ROUTES_EXPERTS ? r->experts : r->kept;
    return (struct routes_array){kind, numbers ? r->tokens : 0, r->layers,
                                 kind == ROUTES_EXPERTS ? r->top_k : r->index_topk, (int32_t *)(uintptr_t)numbers};
}

static size_t bytes_of(const struct routes_array *r)
{
    return r->tokens * (size_t)r->layers * (size_t)r->width * sizeof *r->numbers;
}

char *routes_base64(const vb_routes *r, enum routes_kind kind)
{
    struct routes_array choices = choices_of(r, kind);
    return base64_encode((const char *)choices.numbers, bytes_of(&choices));
}

static void write_npy(FILE *f, const struct routes_array *r)
{
    char header[256];
    int n = snprintf(header, sizeof header, "{'descr': '<i4', 'fortran_order': False, 'shape': (%zu, %d, %d), }",
                     r->tokens, r->layers, r->width);
    while ((10 + n + 1) % 64)
        header[n++] = ' ';
    header[n++] = '\n';
    fwrite("\x93NUMPY\1\0", 1, 8, f);
    fputc(n & 0xff, f);
    fputc(n >> 8, f);
    fwrite(header, 1, (size_t)n, f);
    if (r->tokens)
        fwrite(r->numbers, 1, bytes_of(r), f);
}

static int write_file(const struct cli *c, const char *path, const vb_routes *routes, enum routes_kind kind)
{
    struct cli_file file;
    struct routes_array r = choices_of(routes, kind);
    vb_error err = {0};
    if (!path)
        return EXIT_DONE;
    FILE *f = cli_file_begin(c, &file, path);
    if (!f)
        return EXIT_OTHER;
    if (cli_ends_with(path, ".npy")) {
        write_npy(f, &r);
    } else if (cli_ends_with(path, ".json")) {
        char *text = routes_base64(routes, kind);
        fprintf(f, "{\"meta_info\": {\"%s\": \"%s\"}}\n", kinds[kind].key, text);
        free(text);
    } else {
        vb_tensor t = {.name = kinds[kind].key, .dtype = "I32", .ndim = 3,
                       .shape = {(int64_t)r.tokens, r.layers, r.width}, .data = r.numbers, .bytes = bytes_of(&r)};
        vb_tensors_write(file.file.fd, path, &t, 1, NULL, NULL, &err);
    }
    return cli_file_end(c, &file, err.code ? &err : NULL);
}

int cli_routes_out(const struct cli *c, const vb_routes *r)
{
    int code = write_file(c, c->routes_out, r, ROUTES_EXPERTS);
    return code == EXIT_DONE ? write_file(c, c->kept_out, r, ROUTES_KEPT) : code;
}

int cli_routes_out_of(const struct cli *c, const vb_session *session)
{
    vb_routes r;
    return vb_session_routes(session, &r) ? cli_routes_out(c, &r) : EXIT_DONE;
}

static const int32_t *add_choices(struct routes_array *all, const vb_routes *r, enum routes_kind kind)
{
    struct routes_array some = choices_of(r, kind);
    all->layers = some.layers;
    all->width = some.width;
    if (some.numbers)
        memcpy(add_rows(all, some.tokens), some.numbers, bytes_of(&some));
    return all->numbers;
}

void routes_list_add(struct routes_list *list, const vb_session *session)
{
    vb_routes r;
    if (!session || !vb_session_routes(session, &r))
        return;
    size_t tokens = list->routes.tokens + r.tokens;
    list->routes = r;
    list->routes.tokens = tokens;
    list->routes.experts = add_choices(&list->experts, &r, ROUTES_EXPERTS);
    list->routes.kept = add_choices(&list->kept, &r, ROUTES_KEPT);
}
