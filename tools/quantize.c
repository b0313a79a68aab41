/* tools/quantize.c -- `verbatim quantize`: a model as one GGUF file, rounded or quantised. */
#include <string.h>

#include "engine/files/gguf.h"
#include "engine/export/gguf_write.h"
#include "tools/cli/file.h"

/* ---- what is asked for ---- */

static int read_type(const struct cli *c, const char *option, const char *value, int or_as_stored, enum gguf_as *as)
{
    static const char *const names[] = {"as-stored", "f32", "bf16", "q8_0", "q4_0"};
    for (int i = or_as_stored ? 0 : 1; i < 5; i++)
        if (!strcmp(value, names[i])) {
            *as = (enum gguf_as)i;
            return EXIT_DONE;
        }
    return cli_fail(c, EXIT_USAGE, "%s is %s, wanted %sf32, bf16, q8_0 or q4_0", option, value, or_as_stored ? "as-stored, " : "");
}

static int read_options(const struct cli *c, struct gguf_write_options *o)
{
    int code;
    if (!c->type)
        return cli_fail(c, EXIT_USAGE, "--type is missing; see verbatim quantize --help");
    if ((code = read_type(c, "--type", c->type, 0, &o->linear)) != EXIT_DONE)
        return code;
    o->embedding = GGUF_AS_STORED;
    o->head = o->linear;
    if (c->embedding_type && (code = read_type(c, "--embedding-type", c->embedding_type, 1, &o->embedding)) != EXIT_DONE)
        return code;
    return c->head_type ? read_type(c, "--head-type", c->head_type, 1, &o->head) : EXIT_DONE;
}

static int check_paths(const struct cli *c)
{
    if (gguf_is_path(c->model_dir))
        return cli_fail(c, EXIT_OTHER, "%s is a file: what is quantised is a directory in the Hugging Face layout", c->model_dir);
    return cli_check_file(c, "-o", c->out);
}

/* ---- the file ---- */

static int show_progress(void *label, size_t done, size_t total)
{
    cli_progress(label, done, total);
    return cli_stopped() != 0;
}

static int write_file(const struct cli *c, const struct gguf_plan *p)
{
    struct cli_file file;
    vb_error err;
    char label[] = "quantising";
    if (!cli_file_begin(c, &file, c->out))
        return EXIT_OTHER;
    int rc = gguf_plan_write(p, file.file.fd, c->out, c->session.threads, show_progress, label, &err);
    if (rc)
        cli_progress(label, 1, 1);
    return cli_file_end(c, &file, rc ? &err : NULL);
}

/* ---- the report ---- */

static const char *const roles[] = {"linear layers", "embedding", "output head", "norms, routers"};

static int same_kind(const struct gguf_planned *a, const struct gguf_planned *b)
{
    return a->role == b->role && a->type == b->type && a->kept == b->kept;
}

/* "ffn_down_exps" of blk.3.ffn_down_exps.weight */
static const char *base_of(const struct gguf_planned *t, int *size)
{
    int skip = 0;
    if (sscanf(t->name, "blk.%*d.%n", &skip) < 0)
        skip = 0;
    const char *base = t->name + skip, *dot = strrchr(base, '.');
    *size = dot ? (int)(dot - base) : (int)strlen(base);
    return base;
}

static int same_base(const struct gguf_planned *a, const struct gguf_planned *b)
{
    int n, m;
    const char *x = base_of(a, &n), *y = base_of(b, &m);
    return n == m && !memcmp(x, y, (size_t)n);
}

/* Names and row lengths of what was kept, each once. */
static void print_kept(const struct gguf_plan *p, const struct gguf_planned *like)
{
    for (size_t i = 0, before; i < p->count; i++) {
        const struct gguf_planned *t = &p->tensors[i];
        int size;
        const char *base = base_of(t, &size);
        if (!same_kind(t, like))
            continue;
        for (before = 0; !(same_kind(&p->tensors[before], like) && same_base(&p->tensors[before], t)); before++)
            ;
        if (before == i)
            printf(" %.*s (%zu)", size, base, t->shape[t->ndim - 1]);
    }
}

/* Of one role, those of one type: their number, bytes, and what kept them. */
static void print_line(const struct gguf_plan *p, const struct gguf_planned *like)
{
    size_t count = 0, bytes = 0;
    for (size_t i = 0; i < p->count; i++)
        if (same_kind(&p->tensors[i], like)) {
            count++;
            bytes += p->tensors[i].bytes;
        }
    printf("  %-16s%-6s%10.3f MB in %zu tensor%s", roles[like->role], like->type->name, (double)bytes / 1e6, count,
           count == 1 ? "" : "s");
    if (like->kept) {
        printf(", as stored, because their rows are no multiple of 32 numbers:");
        print_kept(p, like);
    }
    putchar('\n');
}

static void print_report(const struct cli *c, const struct gguf_plan *p)
{
    printf("%s: %.3f MB\n", c->out, (double)(p->header_bytes + p->data_bytes) / 1e6);
    for (enum gguf_role role = GGUF_LINEAR; role <= GGUF_OTHER; role++)
        for (size_t i = 0, before; i < p->count; i++) {
            for (before = 0; !same_kind(&p->tensors[before], &p->tensors[i]); before++)
                ;
            if (before == i && p->tensors[i].role == role)
                print_line(p, &p->tensors[i]);
        }
    if (p->pre)
        printf("  %-16s%s\n", "tokenizer", p->pre);
    for (int i = 0; i < p->num_notes; i++)
        printf("  %-16s%s\n", "note", p->notes[i]);
}

static int print_json(const struct cli *c, const struct gguf_plan *p)
{
    static const char *const role_names[] = {"linear", "embedding", "head", "other"};
    json_t *tensors = json_array(), *notes = json_array();
    for (size_t i = 0; i < p->count; i++) {
        const struct gguf_planned *t = &p->tensors[i];
        json_array_append_new(tensors, json_pack("{s:s,s:s,s:s,s:b,s:I}", "name", t->name, "type", t->type->name, "role",
                                                 role_names[t->role], "kept", t->kept, "bytes", (json_int_t)t->bytes));
    }
    for (int i = 0; i < p->num_notes; i++)
        json_array_append_new(notes, json_string(p->notes[i]));
    json_int_t bytes = (json_int_t)(p->header_bytes + p->data_bytes);
    return cli_print_json(json_pack("{s:s,s:I,s:s?,s:o,s:o}", "file", c->out, "bytes", bytes, "tokenizer", p->pre, "tensors",
                                    tensors, "notes", notes));
}

static int run(struct cli *c)
{
    struct gguf_write_options o;
    struct gguf_plan *p;
    vb_error err;
    int code = read_options(c, &o);
    if (code != EXIT_DONE || (code = check_paths(c)) != EXIT_DONE)
        return code;
    if (vb_model_open(&c->model, c->model_dir, NULL, &err) || gguf_plan_open(&p, c->model, c->model_dir, &o, &err))
        return cli_error(c, &err);
    code = write_file(c, p);
    if (code == EXIT_DONE && c->json)
        code = print_json(c, p);
    else if (code == EXIT_DONE)
        print_report(c, p);
    gguf_plan_close(p);
    return code;
}

const struct command command_quantize = {
    "quantize", "a model as one GGUF file, its weights rounded or quantised",
    "usage: verbatim quantize MODEL -o OUT.gguf --type f32|bf16|q8_0|q4_0 [OPTIONS]\n\n"
    "MODEL is a directory in the Hugging Face layout. The file has the MTP layers and the tokenizer, and takes the place of\n"
    "OUT when it is whole, not before. Running it gives the bits of MODEL run with --precision q8 or q4, and with f32 and\n"
    "bf16 those of its weights.\n\n"
    "  --type TYPE            of linear layers, experts and heads. q8_0 and q4_0: 32 integers of 8 or 4 bits and a scale;\n"
    "                         a matrix whose rows are no multiple of 32 numbers stays as stored (FP8: F32), and is named\n"
    "  --embedding-type TYPE  of the embedding: as-stored, f32, bf16, q8_0 or q4_0 (as-stored)\n"
    "  --head-type TYPE       of the output head, MTP modules' own heads included: the same names (that of --type)\n"
    "  -o OUT.gguf            the file; one that exists is not replaced\n"
    "  --force                it is\n"
    "  --threads N            threads (processors of the affinity mask)\n"
    "  --json                 file, bytes, tokenizer, tensors, notes\n",
    TAKES_OUT | TAKES_QUANTIZE, run};
