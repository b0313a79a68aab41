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

static int wrong(const struct cli *c, const char *name, const char *what) { return cli_fail(c, EXIT_OTHER, "%.256s: %s", name, what); }

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

/* How many of the model's layers are MoE layers. */
static size_t count_moe(const struct cli *c, int32_t layers)
{
    size_t count = 0;
    for (int32_t l = 0; l < layers; l++)
        count += (size_t)vb_is_moe_layer(c->model, l);
    return count;
}

/* Makes room for `tokens` more tokens in *out, and returns the first new row. */
static int32_t *add_rows(vb_routes *out, int32_t **experts, size_t tokens)
{
    size_t row = (size_t)out->layers * (size_t)out->top_k, had = out->tokens;
    *experts = cli_must(realloc(*experts, ((had + tokens) * row + 1) * sizeof **experts));
    out->experts = *experts;
    out->tokens += tokens;
    return *experts + had * row;
}

/* Adds the rows to *out, whose shape is the model's. */
static int take(const struct cli *c, const char *name, const struct numbers *n, vb_routes *out, int32_t **experts)
{
    size_t layers = (size_t)out->layers, top_k = (size_t)out->top_k, moe = count_moe(c, out->layers);
    if (n->shape[2] != top_k || (n->shape[1] != layers && n->shape[1] != moe))
        return cli_fail(c, EXIT_OTHER, "%.256s: the routed experts have the shape [%zu, %zu, %zu], wanted %zu layers and %zu experts per token", name,
                        n->shape[0], n->shape[1], n->shape[2], layers, top_k);
    int32_t *to = add_rows(out, experts, n->shape[0]);
    size_t at = 0;
    for (size_t t = 0; t < n->shape[0]; t++)
        for (size_t l = 0; l < layers; l++)
            for (size_t k = 0; k < top_k; k++) {
                int is_there = n->shape[1] == layers || vb_is_moe_layer(c->model, (int32_t)l);
                long long e = is_there ? number_at(n, at++) : 0;
                if (e < INT32_MIN || e > INT32_MAX)
                    return cli_fail(c, EXIT_OTHER, "%.256s: expert %lld does not exist", name, e);
                *to++ = (int32_t)e;
            }
    return EXIT_DONE;
}

/* ---- .npy -------------------------------------------------------------------------------------------------------------- */

static int is_npy(const char *data, size_t size) { return size >= 10 && !memcmp(data, "\x93NUMPY", 6); }

/* The header is a Python dictionary: {'descr': '<i4', 'fortran_order': False, 'shape': (5, 4, 2), } */
static int read_npy(const struct cli *c, const char *name, const char *data, size_t size, struct numbers *n)
{
    const unsigned char *u = (const unsigned char *)data;
    size_t prefix = u[6] == 1 ? 10 : 12, length = u[8] | (size_t)u[9] << 8;
    char header[1024], order, kind;
    if (prefix == 12 && size >= 12)
        length |= (size_t)u[10] << 16 | (size_t)u[11] << 24;
    if (size < prefix || length >= sizeof header || size - prefix < length)
        return wrong(c, name, "the header of the .npy file is too long");
    memcpy(header, data + prefix, length);
    header[length] = '\0';
    const char *descr = strstr(header, "'descr'"), *shape = strstr(header, "'shape'");
    if (!descr || !shape || sscanf(descr, "'descr': '%c%c%1d'", &order, &kind, &n->width) != 3 || !strstr(header, "'fortran_order': False") ||
        !strchr("<|", order) || !strchr("iu", kind) || !strchr("\1\2\4\10", n->width))
        return wrong(c, name, "wanted integers in C order in the .npy file");
    if (sscanf(shape, "'shape': (%zu, %zu, %zu)", &n->shape[0], &n->shape[1], &n->shape[2]) != 3)
        return wrong(c, name, "wanted the shape [tokens, layers, top_k] in the .npy file");
    n->is_signed = kind == 'i';
    n->data = data + prefix + length;
    n->size = size - prefix - length;
    size_t row = n->shape[1] * n->shape[2] * (size_t)n->width;
    if (n->shape[1] > 1 << 20 || n->shape[2] > 1 << 20 || !row || n->size % row || n->size / row != n->shape[0])
        return wrong(c, name, "the .npy file does not have the size of its shape");
    return EXIT_DONE;
}

/* ---- safetensors ------------------------------------------------------------------------------------------------------- */

static int read_safetensors(const struct cli *c, const char *path, vb_routes *out, int32_t **experts)
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
    int found = vb_tensors_find(all, "routed_experts", &t) || (vb_tensors_at(all, 0, &t) && !vb_tensors_at(all, 1, &second));
    size_t type = 0;
    while (found && type < sizeof types / sizeof *types && strcmp(types[type].name, t.dtype))
        type++;
    if (!found)
        wrong(c, path, "it has no tensor routed_experts");
    else if (type == sizeof types / sizeof *types || t.ndim != 3)
        wrong(c, path, "the tensor of the routed experts has to hold integers, [tokens, layers, top_k]");
    else
        code = take(c, path, &(struct numbers){t.data, t.bytes, types[type].width, types[type].is_signed,
                                               {(size_t)t.shape[0], (size_t)t.shape[1], (size_t)t.shape[2]}}, out, experts);
    vb_tensors_close(all);
    return code;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------- */

static int take_text(const struct cli *c, const char *name, const json_t *value, vb_routes *out, int32_t **experts)
{
    size_t size, row = (size_t)out->layers * (size_t)out->top_k * sizeof(int32_t);
    char *bytes = base64_decode(json_string_value(value), json_string_length(value), &size);
    struct numbers n = {bytes, size, 4, 1, {0, (size_t)out->layers, (size_t)out->top_k}};
    int code = bytes ? EXIT_DONE : wrong(c, name, "routed_experts is not base64");
    if (bytes && is_npy(bytes, size)) {
        code = read_npy(c, name, bytes, size, &n);
    } else if (bytes) {
        if (size % row && out->top_k && size % (count_moe(c, out->layers) * (size_t)out->top_k * sizeof(int32_t)) == 0)
            n.shape[1] = count_moe(c, out->layers);
        row = n.shape[1] * n.shape[2] * sizeof(int32_t);
        n.shape[0] = size / row;
        if (size % row)
            code = cli_fail(c, EXIT_OTHER, "%.256s: routed_experts has %zu bytes, wanted int32 [tokens, %d, %d]", name, size, out->layers, out->top_k);
    }
    if (code == EXIT_DONE)
        code = take(c, name, &n, out, experts);
    free(bytes);
    return code;
}

static int take_lists(const struct cli *c, const char *name, const json_t *value, vb_routes *out, int32_t **experts)
{
    const json_t *first = json_array_get(value, 0);
    struct numbers n = {NULL, 0, 4, 1, {json_array_size(value), json_array_size(first), json_array_size(json_array_get(first, 0))}};
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
    int code = fits ? take(c, name, &n, out, experts) : wrong(c, name, "routed_experts is not an array [tokens, layers, top_k] of integers");
    free(flat);
    return code;
}

static int take_value(const struct cli *c, const char *name, const json_t *value, vb_routes *out, int32_t **experts)
{
    if (json_is_string(value))
        return take_text(c, name, value, out, experts);
    return json_is_array(value) ? take_lists(c, name, value, out, experts) : wrong(c, name, "routed_experts is neither an array nor a text");
}

static const json_t *only(const json_t *array) { return json_array_size(array) == 1 ? json_array_get(array, 0) : NULL; }

static int given(const json_t *value) { return value && !json_is_null(value); }

int routes_of_json(const struct cli *c, const char *name, const json_t *value, vb_routes *out, int32_t **experts)
{
    *experts = NULL;
    vb_model_routes(c->model, out);
    if (!out->top_k)
        return wrong(c, name, "there are routed experts, but the model has no MoE layer");
    const json_t *before = NULL, *start = NULL, *prompt;
    while (json_is_object(value) || json_is_object(only(value))) { /* down to the numbers */
        const json_t *o = json_is_object(value) ? value : only(value), *meta = json_object_get(o, "meta_info");
        prompt = json_object_get(o, "prompt_routed_experts");
        before = given(prompt) ? prompt : before;
        start = given(json_object_get(o, "routed_experts_start_len")) ? json_object_get(o, "routed_experts_start_len") : start;
        const json_t *next = json_object_get(o, "routed_experts");
        next = given(next) ? next : meta ? meta : json_object_get(o, "outputs");
        value = next ? next : json_object_get(o, "choices");
        if (!value)
            return wrong(c, name, "it has no key routed_experts");
    }
    if (start && json_integer_value(start) > 0) {
        long long rows = json_integer_value(start);
        if (rows > vb_max_positions(c->model))
            return wrong(c, name, "routed_experts_start_len is larger than the context");
        memset(add_rows(out, experts, (size_t)rows), 0xff, (size_t)rows * (size_t)out->layers * (size_t)out->top_k * sizeof **experts);
    }
    int code = before ? take_value(c, name, before, out, experts) : EXIT_DONE;
    return code == EXIT_DONE ? take_value(c, name, value, out, experts) : code;
}

static int read_json(const struct cli *c, const char *path, const char *text, size_t size, vb_routes *out, int32_t **experts)
{
    vb_error err;
    json_t *j = json_read(text, size, path, &err);
    if (!j)
        return cli_error(c, &err);
    int code = routes_of_json(c, path, j, out, experts);
    json_decref(j);
    return code;
}

/* ---- --routes-in ------------------------------------------------------------------------------------------------------- */

int routes_of_file(const struct cli *c, const char *path, vb_routes *out, int32_t **experts)
{
    char *text;
    size_t size, at = 0;
    vb_error err;
    struct numbers n;
    vb_model_routes(c->model, out);
    if (!out->top_k)
        return wrong(c, path, "there are routed experts, but the model has no MoE layer");
    if (vb_read_input(NULL, path, &text, &size, &err))
        return cli_error(c, &err);
    while (at < size && strchr(" \t\r\n", text[at]))
        at++;
    int is_json = at < size && strchr("{[\"", text[at]), code;
    if (is_npy(text, size)) {
        code = read_npy(c, path, text, size, &n);
        if (code == EXIT_DONE)
            code = take(c, path, &n, out, experts);
    } else {
        code = is_json ? read_json(c, path, text, size, out, experts) : read_safetensors(c, path, out, experts);
    }
    vb_free(NULL, text);
    return code;
}

int routes_check(const struct cli *c, const char *name, const vb_routes *routes, size_t tokens, size_t most)
{
    if (routes->tokens + 1 < tokens)
        return cli_fail(c, EXIT_OTHER, "%.256s: it has routes of %zu tokens, the text has %zu", name, routes->tokens, tokens);
    if (routes->tokens > most)
        return cli_fail(c, EXIT_OTHER, "%.256s: it has routes of %zu tokens, the text only has %zu", name, routes->tokens, most);
    return EXIT_DONE;
}

int cli_routes_in(struct cli *c, size_t tokens, size_t most)
{
    vb_routes *r = &c->session.routes;
    c->session.record_routes = c->routes_out != NULL;
    if (!c->routes_in)
        return EXIT_DONE;
    int code = routes_of_file(c, c->routes_in, r, &c->routes);
    return code == EXIT_DONE ? routes_check(c, c->routes_in, r, tokens, most) : code;
}

/* ---- --routes-out ------------------------------------------------------------------------------------------------------ */

int cli_check_routes_out(const struct cli *c)
{
    const char *path = c->routes_out;
    if (path && !cli_ends_with(path, ".safetensors") && !cli_ends_with(path, ".npy") && !cli_ends_with(path, ".json"))
        return cli_fail(c, EXIT_USAGE, "--routes-out is %.256s, wanted a name that ends in .safetensors, .npy or .json", path);
    return cli_check_file(c, "--routes-out", path);
}

char *routes_base64(const vb_routes *r)
{
    return base64_encode((const char *)r->experts, r->tokens * (size_t)r->layers * (size_t)r->top_k * sizeof *r->experts);
}

static void write_npy(FILE *f, const vb_routes *r)
{
    char header[256];
    int n = snprintf(header, sizeof header, "{'descr': '<i4', 'fortran_order': False, 'shape': (%zu, %d, %d), }", r->tokens, r->layers, r->top_k);
    while ((10 + n + 1) % 64)
        header[n++] = ' ';
    header[n++] = '\n';
    fwrite("\x93NUMPY\1\0", 1, 8, f);
    fputc(n & 0xff, f);
    fputc(n >> 8, f);
    fwrite(header, 1, (size_t)n, f);
    fwrite(r->experts, sizeof *r->experts, r->tokens * (size_t)r->layers * (size_t)r->top_k, f);
}

int cli_routes_out(const struct cli *c, const vb_routes *r)
{
    struct cli_file file;
    vb_error err = {0};
    if (!c->routes_out)
        return EXIT_DONE;
    FILE *f = cli_file_begin(c, &file, c->routes_out);
    if (!f)
        return EXIT_OTHER;
    if (cli_ends_with(c->routes_out, ".npy")) {
        write_npy(f, r);
    } else if (cli_ends_with(c->routes_out, ".json")) {
        char *text = routes_base64(r);
        fprintf(f, "{\"meta_info\": {\"routed_experts\": \"%s\"}}\n", text);
        free(text);
    } else {
        vb_tensor t = {.name = "routed_experts", .dtype = "I32", .ndim = 3, .shape = {(int64_t)r->tokens, r->layers, r->top_k}, .data = r->experts,
                       .bytes = r->tokens * (size_t)r->layers * (size_t)r->top_k * sizeof *r->experts};
        vb_tensors_write(file.file.fd, c->routes_out, &t, 1, NULL, NULL, &err);
    }
    return cli_file_end(c, &file, err.code ? &err : NULL);
}

int cli_routes_out_of(const struct cli *c, const vb_session *session)
{
    vb_routes r;
    return vb_session_routes(session, &r) ? cli_routes_out(c, &r) : EXIT_DONE;
}

void routes_list_add(struct routes_list *list, const vb_session *session)
{
    vb_routes r;
    if (!session || !vb_session_routes(session, &r))
        return;
    list->routes.layers = r.layers;
    list->routes.top_k = r.top_k;
    memcpy(add_rows(&list->routes, &list->experts, r.tokens), r.experts, r.tokens * (size_t)r.layers * (size_t)r.top_k * sizeof *r.experts);
}
