/* tools/logits.c -- `verbatim logits`: writes the logits and the hidden state of every position to a safetensors file.
 * Rows are written as they are computed. The file gets its name when it is complete. */
#include <stdlib.h>

#include "tools/cli/file.h"
#include "tools/cli/routes.h"

struct writer {
    FILE *f;
    size_t rows, V, d, data_begin; /* of the data section in the file */
};

static void write_at(struct writer *w, size_t offset, const void *data, size_t size)
{
    if (!fseeko(w->f, (off_t)offset, SEEK_SET))
        fwrite(data, 1, size, w->f);
}

static int write_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct writer *w = context;
    (void)depth;
    size_t row = w->V * sizeof *logits, hidden_begin = w->data_begin + w->rows * row;
    write_at(w, w->data_begin + index * row, logits, row);
    write_at(w, hidden_begin + index * w->d * sizeof *hidden, hidden, w->d * sizeof *hidden);
    cli_progress("logits", index + 1, w->rows);
    return ferror(w->f) || cli_stopped();
}

/* 8 bytes of length, then the JSON, padded with spaces to a multiple of 8 */
static void write_header(struct writer *w)
{
    char header[512];
    size_t logits = w->rows * w->V * sizeof(float), hidden = w->rows * w->d * sizeof(float);
    int n = snprintf(header, sizeof header,
                     "{\"logits\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu],\"data_offsets\":[0,%zu]},"
                     "\"hidden\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu],\"data_offsets\":[%zu,%zu]}}",
                     w->rows, w->V, logits, w->rows, w->d, logits, logits + hidden);
    while (n % 8)
        header[n++] = ' ';
    unsigned char length[8] = {(unsigned char)n, (unsigned char)(n >> 8)};
    w->data_begin = 8 + (size_t)n;
    write_at(w, 0, length, sizeof length);
    write_at(w, 8, header, (size_t)n);
}

static int stop(void *unused)
{
    (void)unused;
    return cli_stopped();
}

static int evaluate(struct cli *c, vb_session *session, const int32_t *ids, size_t count)
{
    struct cli_file file;
    vb_error err = {0};
    struct writer w = {.f = cli_file_begin(c, &file, c->out), .rows = count, .V = (size_t)vb_vocab_size(c->model),
                       .d = (size_t)vb_hidden_size(c->model)};
    if (!w.f)
        return EXIT_OTHER;
    write_header(&w);
    int failed = vb_append(session, ids, count, &err) || vb_evaluate(session, 0, write_row, &w, &err);
    return cli_file_end(c, &file, failed ? &err : NULL);
}

static int run(struct cli *c)
{
    int32_t *ids = NULL;
    size_t count;
    vb_session *session = NULL;
    int code = cli_without_prefill(c, "onednn");
    if (code == EXIT_DONE)
        code = cli_check_file(c, "-o", c->out);
    if (code == EXIT_DONE)
        code = cli_check_routes_out(c);
    if (code == EXIT_DONE)
        code = cli_open(c);
    if (code == EXIT_DONE)
        code = cli_prompt(c, &ids, &count);
    if (code == EXIT_DONE)
        code = cli_routes_in(c, count, count);
    c->session.stop = stop;
    if (code == EXIT_DONE)
        code = cli_session(c, count, 0, &session);
    if (code == EXIT_DONE)
        code = evaluate(c, session, ids, count);
    if (code == EXIT_DONE)
        code = cli_routes_out_of(c, session);
    if (code == EXIT_DONE && c->json)
        code = cli_print_json(json_pack("{s:s,s:I}", "file", c->out, "tokens", (json_int_t)count));
    vb_session_close(session);
    free(ids);
    return code;
}

static const struct note notes[] = {
    {"-o", "Write the tensors to this safetensors file. The file appears only when it is complete."},
    {"--prefill", "Choose how attention is computed for all tokens: contract, expanded or cublas (default contract). "
                  "With expanded and "
                  "cublas, the results are those of a prompt."},
    {"--json", "Print {\"file\": ..., \"tokens\": n} on stdout."},
    {NULL, NULL}};

const struct command command_logits = {
    "logits", "write the logits and the hidden state of every position to a file",
    "MODEL --tokens IDS -o OUT.safetensors [OPTIONS]",
    "Writes two tensors for n tokens: `logits`, F32 [n, vocabulary size], and `hidden`, F32 [n, hidden size]. The "
    "hidden states are\n"
    "those after model.norm.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_TOKENS | TAKES_OUT | TAKES_PREFILL | TAKES_ROUTES, run, notes, 0, NULL};
