/* tools/quantize.c -- `verbatim quantize`: writes a model to one GGUF file, with rounded or quantized weights. */
#include <string.h>
#include <sys/stat.h>

#include "tools/cli/file.h"

static int check_paths(const struct cli *c)
{
    struct stat st;
    if (!stat(c->model_dir, &st) && !S_ISDIR(st.st_mode))
        return cli_fail(c, EXIT_OTHER, "%s is a file: what is quantized is a directory in the Hugging Face layout",
                        c->model_dir);
    return cli_check_file(c, "-o", c->out);
}

/* ---- the file ---- */

static int show_progress(void *label, size_t done, size_t total)
{
    cli_progress(label, done, total);
    return cli_stopped() != 0;
}

static int write_file(const struct cli *c, vb_quantize *q)
{
    struct cli_file file;
    vb_error err;
    char label[] = "quantizing";
    if (!cli_file_begin(c, &file, c->out))
        return EXIT_OTHER;
    int rc = vb_quantize_write(q, file.file.fd, c->out, c->session.threads, show_progress, label, &err);
    if (rc)
        cli_progress(label, 1, 1);
    return cli_file_end(c, &file, rc ? &err : NULL);
}

/* ---- the report ---- */

static const struct {
    const char *name, *shown;
} roles[] = {{"linear", "linear layers"}, {"embedding", "embedding"}, {"head", "output head"},
             {"other", "norms, routers"}};

static int same_kind(const vb_quantized_tensor *a, const vb_quantized_tensor *b)
{
    return !strcmp(a->role, b->role) && !strcmp(a->type, b->type) && a->kept == b->kept;
}

/* "ffn_down_exps" of blk.3.ffn_down_exps.weight */
static const char *base_of(const vb_quantized_tensor *t, int *size)
{
    int skip = 0;
    if (sscanf(t->name, "blk.%*d.%n", &skip) < 0)
        skip = 0;
    const char *base = t->name + skip, *dot = strrchr(base, '.');
    *size = dot ? (int)(dot - base) : (int)strlen(base);
    return base;
}

static int same_base(const vb_quantized_tensor *a, const vb_quantized_tensor *b)
{
    int n, m;
    const char *x = base_of(a, &n), *y = base_of(b, &m);
    return n == m && !memcmp(x, y, (size_t)n);
}

/* Whether a tensor before number i is of the kind of `t`, and with by_base has its base name too. */
static int stands_before(const vb_quantize *q, size_t i, const vb_quantized_tensor *t, int by_base)
{
    vb_quantized_tensor other;
    for (size_t k = 0; k < i && vb_quantize_tensor(q, k, &other); k++)
        if (same_kind(&other, t) && (!by_base || same_base(&other, t)))
            return 1;
    return 0;
}

/* Names and row lengths of what was kept, each once. */
static void print_kept(const vb_quantize *q, const vb_quantized_tensor *like)
{
    vb_quantized_tensor t;
    for (size_t i = 0; vb_quantize_tensor(q, i, &t); i++) {
        int size;
        const char *base = base_of(&t, &size);
        if (same_kind(&t, like) && !stands_before(q, i, &t, 1))
            printf(" %.*s (%zu)", size, base, t.shape[t.ndim - 1]);
    }
}

/* Of one role, those of one type: their number, bytes, and what kept them. */
static void print_line(const vb_quantize *q, const char *role, const vb_quantized_tensor *like)
{
    vb_quantized_tensor t;
    size_t count = 0, bytes = 0;
    for (size_t i = 0; vb_quantize_tensor(q, i, &t); i++)
        if (same_kind(&t, like)) {
            count++;
            bytes += t.bytes;
        }
    printf("  %-16s%-6s%10.3f MB in %zu tensor%s", role, like->type, (double)bytes / 1e6, count, count == 1 ? "" : "s");
    if (like->kept) {
        printf(", as stored, because their rows are no multiple of 32 numbers:");
        print_kept(q, like);
    }
    putchar('\n');
}

static void print_report(const struct cli *c, const vb_quantize *q)
{
    vb_quantized_tensor t;
    const char *note;
    printf("%s: %.3f MB\n", c->out, (double)vb_quantize_bytes(q) / 1e6);
    for (size_t role = 0; role < sizeof roles / sizeof *roles; role++)
        for (size_t i = 0; vb_quantize_tensor(q, i, &t); i++)
            if (!strcmp(t.role, roles[role].name) && !stands_before(q, i, &t, 0))
                print_line(q, roles[role].shown, &t);
    if (vb_quantize_tokenizer(q))
        printf("  %-16s%s\n", "tokenizer", vb_quantize_tokenizer(q));
    for (size_t i = 0; (note = vb_quantize_note(q, i)); i++)
        printf("  %-16s%s\n", "note", note);
}

static int print_json(const struct cli *c, const vb_quantize *q)
{
    json_t *tensors = json_array(), *notes = json_array();
    vb_quantized_tensor t;
    const char *note;
    for (size_t i = 0; vb_quantize_tensor(q, i, &t); i++)
        json_array_append_new(tensors, json_pack("{s:s,s:s,s:s,s:b,s:I}", "name", t.name, "type", t.type, "role",
                                                 t.role, "kept", t.kept, "bytes", (json_int_t)t.bytes));
    for (size_t i = 0; (note = vb_quantize_note(q, i)); i++)
        json_array_append_new(notes, json_string(note));
    return cli_print_json(json_pack("{s:s,s:I,s:s?,s:o,s:o}", "file", c->out, "bytes", (json_int_t)vb_quantize_bytes(q),
                                    "tokenizer", vb_quantize_tokenizer(q), "tensors", tensors, "notes", notes));
}

static int run(struct cli *c)
{
    vb_quantize_options o = {.type = c->type, .embedding_type = c->embedding_type, .head_type = c->head_type};
    vb_quantize *q;
    vb_error err;
    if (!c->type)
        return cli_fail(c, EXIT_USAGE, "--type is missing; see verbatim quantize --help");
    int code = check_paths(c);
    if (code != EXIT_DONE)
        return code;
    if (vb_model_open(&c->model, c->model_dir, NULL, &err) || vb_quantize_open(&q, c->model, c->model_dir, &o, &err))
        return cli_error(c, &err);
    code = write_file(c, q);
    if (code == EXIT_DONE && c->json)
        code = print_json(c, q);
    else if (code == EXIT_DONE)
        print_report(c, q);
    vb_quantize_close(q);
    return code;
}

static const struct note notes[] = {
    {"-o", "Write the model to this GGUF file. The file appears only when it is complete. An existing file is replaced "
           "only with --force."},
    {"--json", "Print an object with the keys file, bytes, tokenizer, tensors and notes."},
    {NULL, NULL}};

const struct command command_quantize = {
    "quantize", "write a model to one GGUF file, with its weights rounded or quantized",
    "MODEL -o OUT.gguf --type TYPE [OPTIONS]",
    "MODEL is a directory in the Hugging Face layout. The GGUF file also contains the MTP layers and the tokenizer. If "
    "the\n"
    "GGUF file is run in the default precision, the results have the same bits as those of MODEL in one of these "
    "runs:\n"
    "  q8_0                   MODEL is run with --precision q8\n"
    "  q4_0                   MODEL is run with --precision q4\n"
    "                         (a note says if INT4, int8 or NVFP4 weights differ; with q8_0, INT4 weights do)\n"
    "  f32, bf16              the weights of MODEL are first rounded to this type, and MODEL is then run\n",
    TAKES_MODEL | TAKES_OUT | TAKES_QUANTIZE, run, notes, 0, NULL};
