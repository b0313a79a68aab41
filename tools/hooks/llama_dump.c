/* tools/hooks/llama_dump.c -- writes what llama.cpp computes to a file that `verbatim diff --names llama.cpp` reads.
 *
 *   llama_dump MODEL.gguf --tokens 5,6,7 -o theirs.safetensors [--chunk N] [--threads N]
 *   verbatim diff theirs.safetensors MODEL.gguf --tokens 5,6,7 --names llama.cpp
 *
 * Build it beside a llama.cpp that was built with shared libraries in its folder build/:
 *
 *   cc -O2 -o llama_dump llama_dump.c -I llama.cpp/include -I llama.cpp/ggml/include -L llama.cpp/build/bin -lllama
 *   -lggml -lggml-base \
 *      -Wl,-rpath,$PWD/llama.cpp/build/bin
 *
 * The tokens are computed in passes of N tokens (all of them in one pass unless --chunk says otherwise), so that later
 * passes read the KV cache. Of each named tensor of the graph whose slowest dimension counts the tokens of the pass,
 * the file has one row per token, as F32 or I32. llama.cpp gives some names to several tensors; the last one counts. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>

#define MOST_TENSORS 65536

struct dumped {
    char name[GGML_MAX_NAME];
    int is_integer, dims, passes; /* passes: how many have added rows */
    int64_t dim[3];               /* of one row, the slowest first */
    size_t row;                   /* numbers of a row: all of them have 4 bytes */
    char *data;                   /* [tokens, row] */
};

static struct dumped tensor[MOST_TENSORS];
static int tensors, passes;            /* passes: how many were computed before this one */
static int64_t tokens, first, at_once; /* all tokens; this pass has [first, first + at_once) */

static void stop(const char *what, const char *which)
{
    fprintf(stderr, "llama_dump: %s%s%s\n", what, *which ? ": " : "", which);
    exit(1);
}

static void *must(void *memory)
{
    if (!memory)
        stop("no memory", "");
    return memory;
}

static struct dumped *find(const char *name)
{
    for (int i = 0; i < tensors; i++)
        if (!strcmp(tensor[i].name, name))
            return &tensor[i];
    if (tensors == MOST_TENSORS)
        stop("too many tensors", name);
    snprintf(tensor[tensors].name, sizeof tensor->name, "%s", name);
    return &tensor[tensors++];
}

/* ---- tensors of the graph ---- */

/* The dimension that counts tokens: the slowest that is not 1, or the slowest if the pass has one token. -1: there is
 * none. */
static int token_dim(const struct ggml_tensor *t)
{
    int d = GGML_MAX_DIMS - 1;
    if (at_once == 1)
        return ggml_n_dims(t) - 1 + (t->ne[ggml_n_dims(t) - 1] != 1 && ggml_n_dims(t) < GGML_MAX_DIMS);
    while (d > 0 && t->ne[d] == 1)
        d--;
    return t->ne[d] == at_once ? d : -1;
}

static int is_wanted(const struct ggml_tensor *t)
{
    int known = t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16 ||
                t->type == GGML_TYPE_I32;
    int is_named = *t->name && !strpbrk(t->name, " (") && strncmp(t->name, "leaf_", 5) != 0 &&
                   strncmp(t->name, "node_", 5) != 0;
    return known && is_named && token_dim(t) >= 0;
}

static void write_number(char *to, const char *from, enum ggml_type type)
{
    float x;
    uint16_t half;
    memcpy(&half, from, sizeof half);
    if (type == GGML_TYPE_F16)
        x = ggml_fp16_to_fp32(half);
    else if (type == GGML_TYPE_BF16)
        x = ggml_bf16_to_fp32((ggml_bf16_t){half});
    memcpy(to, type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ? (const char *)&x : from, 4);
}

/* Sets the shape of a row in the first pass. Returns 0 for another shape in a later pass: the name's last tensor has
 * the first one. */
static int takes_shape(struct dumped *k, const struct ggml_tensor *t, int token)
{
    struct dumped now = {.is_integer = t->type == GGML_TYPE_I32, .row = 1};
    for (int d = token - 1; d >= 0; d--) {
        now.row *= (size_t)t->ne[d];
        if (t->ne[d] != 1)
            now.dim[now.dims++] = t->ne[d];
    }
    if (passes)
        return k->row == now.row && k->is_integer == now.is_integer;
    memcpy(k->dim, now.dim, sizeof k->dim);
    k->dims = now.dims;
    k->row = now.row;
    k->is_integer = now.is_integer;
    free(k->data);
    k->data = must(calloc((size_t)tokens * k->row, 4));
    return 1;
}

static void keep(const struct ggml_tensor *t)
{
    int token = token_dim(t);
    struct dumped *k = find(t->name);
    if (k->passes < passes || !takes_shape(k, t, token)) /* it was missing in an earlier pass */
        return;
    size_t bytes = ggml_nbytes(t);
    char *data = must(malloc(bytes)), *to = k->data + (size_t)first * k->row * 4;
    ggml_backend_tensor_get(t, data, 0, bytes);
    for (int64_t i = 0; i < at_once; i++)
        for (size_t j = 0; j < k->row; j++, to += 4) {
            size_t at = (size_t)i * t->nb[token], rest = j;
            for (int d = 0; d < token; d++) {
                at += rest % (size_t)t->ne[d] * t->nb[d];
                rest /= (size_t)t->ne[d];
            }
            write_number(to, data + at, t->type);
        }
    free(data);
    k->passes = passes + 1;
}

static bool seen(struct ggml_tensor *t, bool ask, void *unused)
{
    (void)unused;
    if (ask)
        return is_wanted(t);
    keep(t);
    return true;
}

/* ---- the file ---- */

static void write_file(const char *path)
{
    size_t size = 0, room = 64 + (size_t)tensors * (GGML_MAX_NAME + 200), offset = 0;
    char *head = must(malloc(room));
    size += (size_t)sprintf(head, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (struct dumped *k = tensor; k < tensor + tensors; k++) {
        size_t bytes = (size_t)tokens * k->row * 4;
        if (k->passes < passes)
            continue;
        size += (size_t)sprintf(head + size, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64, k->name,
                                k->is_integer ? "I32" : "F32", tokens);
        for (int d = 0; d < k->dims; d++)
            size += (size_t)sprintf(head + size, ",%" PRId64, k->dim[d]);
        size += (size_t)sprintf(head + size, "],\"data_offsets\":[%zu,%zu]}", offset, offset + bytes);
        offset += bytes;
    }
    size += (size_t)sprintf(head + size, "}");
    while (size % 8)
        head[size++] = ' ';
    uint64_t header = size;
    FILE *file = fopen(path, "wb");
    if (!file)
        stop(path, strerror(errno));
    int bad = fwrite(&header, sizeof header, 1, file) != 1 || fwrite(head, 1, size, file) != size, count = 0;
    for (struct dumped *k = tensor; k < tensor + tensors; k++)
        if (k->passes == passes) {
            bad |= fwrite(k->data, k->row * 4, (size_t)tokens, file) != (size_t)tokens;
            count++;
        }
    if (fclose(file) || bad)
        stop(path, "cannot be written");
    free(head);
    fprintf(stderr, "%d tensors of %" PRId64 " tokens\n", count, tokens);
}

/* ---- the model ---- */

static int64_t read_tokens(const char *text, llama_token *out)
{
    int64_t n = 0;
    for (char *end; *text; text = *end ? end + 1 : end) {
        out[n++] = (llama_token)strtol(text, &end, 10);
        if (end == text || (*end && *end != ','))
            stop("--tokens must be token ids with commas between them", text);
    }
    return n;
}

static void log_errors(enum ggml_log_level level, const char *text, void *unused)
{
    (void)unused;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static void compute(struct llama_context *context, const llama_token *token, int64_t chunk)
{
    for (first = 0; first < tokens; first += at_once, passes++) {
        at_once = tokens - first < chunk ? tokens - first : chunk;
        struct llama_batch batch = llama_batch_init((int32_t)at_once, 0, 1);
        for (int32_t i = 0; i < at_once; i++) {
            batch.token[i] = token[first + i];
            batch.pos[i] = (llama_pos)(first + i);
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1; /* else the last layer leaves the row out */
        }
        batch.n_tokens = (int32_t)at_once;
        if (llama_decode(context, batch))
            stop("llama_decode failed", "");
        llama_batch_free(batch);
    }
}

int main(int argc, char **argv)
{
    const char *list = NULL, *out = NULL;
    int64_t chunk = 0, threads = 1;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--tokens"))
            list = argv[i + 1];
        else if (!strcmp(argv[i], "-o"))
            out = argv[i + 1];
        else if (!strcmp(argv[i], "--chunk"))
            chunk = strtol(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--threads"))
            threads = strtol(argv[i + 1], NULL, 10);
        else
            stop("unknown option", argv[i]);
    }
    if (argc < 2 || argc % 2 || !list || !out || !*list || threads < 1)
        stop("llama_dump MODEL.gguf --tokens 5,6,7 -o OUT.safetensors [--chunk N] [--threads N]", "");
    llama_token *token = must(calloc(strlen(list) + 1, sizeof *token));
    tokens = read_tokens(list, token);
    chunk = chunk > 0 && chunk < tokens ? chunk : tokens;

    llama_log_set(log_errors, NULL);
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model)
        stop(argv[1], "llama.cpp cannot open it");
    struct llama_context_params options = llama_context_default_params();
    options.n_ctx = (uint32_t)tokens;
    options.n_batch = options.n_ubatch = (uint32_t)chunk; /* one graph per pass */
    options.n_threads = options.n_threads_batch = (int32_t)threads;
    options.type_k = options.type_v = GGML_TYPE_F32;
    options.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    options.cb_eval = seen;
    struct llama_context *context = llama_init_from_model(model, options);
    if (!context)
        stop(argv[1], "llama.cpp cannot make a context");
    compute(context, token, chunk);
    write_file(out);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
