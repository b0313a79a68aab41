/* tools/inspect.c -- `verbatim inspect`: what a checkpoint is, and what becomes of each of its tensors. */
#include <string.h>

#include "tools/cli/cli.h"

/* Every key that counts, as it was read, or as the architecture's class has it when the file is silent. */
static void print_config(const struct config *c)
{
    const char *key;
    char value[32];
    int from_default;
    printf("architecture        %s (%s)\n", c->architecture, c->model_type);
    for (size_t i = 0; config_row(c, i, &key, value, &from_default); i++)
        printf("  %-34s %s%s\n", key, value, from_default ? "  (default of the class)" : "");
    printf("  %-34s %g, whatever rms_norm_eps says\n", "eps of q_a and kv_a_layernorm", c->latent_eps);
    printf("  %-34s %s are rotated\n", "rope", c->rope_interleave ? "adjacent pairs" : "halves");
    if (c->rope_yarn)
        printf("  %-34s factor %g over %d positions, beta %g to %g, mscale %g, mscale_all_dim %g\n", "YaRN",
               c->rope_factor, c->rope_original_max_position_embeddings, c->rope_beta_fast, c->rope_beta_slow,
               c->rope_mscale, c->rope_mscale_all_dim);
    if (c->fp8)
        printf("  %-34s %dx%d\n", "fp8 weight_block_size", c->fp8_block_rows, c->fp8_block_cols);
    if (c->no_groups)
        printf("  %-34s the file %s\n", "groups", CLI_NO_GROUPS);
    printf("  %-34s", "end tokens");
    for (int i = 0; i < c->num_eos; i++)
        printf(" %d", c->eos_token_ids[i]);
    puts(c->num_eos ? "" : " none");
    printf("  %-34s %.17g\n", "attention scale", config_attention_scale_f64(c));
}

static size_t count_used(const struct checkpoint *k)
{
    size_t used = 0;
    for (size_t i = 0; i < checkpoint_count(k); i++)
        used += checkpoint_at(k, i)->taken != 0;
    return used;
}

/* Bytes of each type, of all tensors. */
static json_t *types_json(const struct checkpoint *k)
{
    json_t *types = json_object();
    for (size_t i = 0; i < checkpoint_count(k); i++) {
        const struct tensor *t = checkpoint_at(k, i);
        json_int_t before = json_integer_value(json_object_get(types, t->dtype_name));
        json_object_set_new(types, t->dtype_name, json_integer(before + (json_int_t)t->bytes));
    }
    return types;
}

static int print_json(const struct model *m)
{
    json_t *ignored = json_array();
    const struct checkpoint *k = m->checkpoint;
    for (size_t i = 0; i < checkpoint_count(k); i++) {
        const struct tensor *t = checkpoint_at(k, i);
        if (t->ignored)
            json_array_append_new(ignored, json_pack("{s:s,s:s}", "name", t->name, "why", t->ignored));
    }
    json_t *out = json_pack("{s:s,s:I,s:I,s:i,s:{s:I,s:o}}", "architecture", m->config.architecture, "parameters",
                            (json_int_t)model_parameters(m), "active_parameters", (json_int_t)model_active_parameters(m),
                            "mtp_modules", m->num_mtp, "tensors", "used", (json_int_t)count_used(k), "ignored", ignored);
    json_object_set_new(out, "types", types_json(k));
    json_object_set_new(out, "rounded_bytes", json_integer((json_int_t)m->rounded_bytes));
    json_object_set_new(out, "quantised_bytes", json_integer((json_int_t)m->quantised_bytes));
    json_object_set_new(out, "repacked_bytes", json_integer((json_int_t)m->repacked_bytes));
    json_object_set_new(out, "copy_seconds", json_real(m->copy_seconds));
    return cli_print_json(out);
}

/* What a tensor belongs to, by its name; MTP layers are a part of their own. */
static const char *part_of(const struct config *c, const char *name)
{
    static const struct {
        const char *in_name, *part;
    } parts[] = {{".mlp.experts.", "routed experts"}, {".mlp.shared_experts.", "shared experts"}, {".mlp.gate.", "routers"},
                 {".mlp.", "dense layers"}, {".self_attn.", "attention"}, {"embed_tokens", "embedding"},
                 {"lm_head", "output head"}};
    int layer;
    if (sscanf(name, "model.layers.%d.", &layer) == 1 && layer >= c->num_hidden_layers)
        return "MTP layers";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i].in_name))
            return parts[i].part;
    return "norms";
}

struct part {
    size_t tensors, bytes, count;
    struct {
        const char *name;
        size_t bytes;
    } types[16];
};

static void add_to_part(struct part *p, const struct tensor *t)
{
    size_t i = 0;
    while (i < p->count && strcmp(p->types[i].name, t->dtype_name))
        i++;
    if (i == p->count && i < sizeof p->types / sizeof *p->types)
        p->types[p->count++].name = t->dtype_name;
    if (i < p->count)
        p->types[i].bytes += t->bytes;
    p->bytes += t->bytes;
    p->tensors++;
}

static void print_part(const struct part *p, const char *name)
{
    printf("  %-18s%10.3f MB in %zu tensors:", name, (double)p->bytes / 1e6, p->tensors);
    for (size_t i = 0; i < p->count; i++) {
        printf("%s %s", i ? "," : "", p->types[i].name);
        if (p->count > 1)
            printf(" %.3f", (double)p->types[i].bytes / 1e6);
    }
    putchar('\n');
}

static void print_sizes(const struct model *m)
{
    static const char *const parts[] = {"embedding", "attention", "dense layers", "routers", "routed experts",
                                        "shared experts", "norms", "output head", "MTP layers"};
    const struct checkpoint *k = m->checkpoint;
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        struct part part = {.count = 0};
        for (size_t i = 0; i < checkpoint_count(k); i++)
            if (!strcmp(part_of(&m->config, checkpoint_at(k, i)->name), parts[p]))
                add_to_part(&part, checkpoint_at(k, i));
        if (part.tensors)
            print_part(&part, parts[p]);
    }
}

/* Memory beside what is mapped. */
static void print_copies(const struct model *m)
{
    static const char *const precisions[] = {"f32", "bf16", "q8", "q4"};
    const char *precision = precisions[m->config.precision];
    if (checkpoint_copied(m->checkpoint))
        printf("copied              %.1f MB: attn_k_b, stored transposed, %s\n", (double)checkpoint_copied(m->checkpoint) / 1e6,
               "and where neither is quantised with attn_v_b as kv_b_proj");
    if (m->config.precision == PRECISION_BF16)
        printf("precision bf16      %.1f MB of matrices rounded to BF16, beside what is mapped\n", (double)m->rounded_bytes / 1e6);
    else if (m->config.precision != PRECISION_F32)
        printf("precision %-10s%.1f MB of matrices quantised to %s, beside what is mapped\n", precision,
               (double)m->quantised_bytes / 1e6, m->config.precision == PRECISION_Q8 ? "Q8_0" : "Q4_0");
    if (m->repacked_bytes)
        printf("repacked            %.1f MB of Q8_0 and Q4_0, in place of what is mapped\n", (double)m->repacked_bytes / 1e6);
    if (m->copied_bytes)
        printf("  %.1f MB in %.2f s\n", (double)m->copied_bytes / 1e6, m->copy_seconds);
}

static void print_mtp(const struct model *m)
{
    static const char *const copies[] = {"the main model's", "its own, equal to the main model's", "its own, different"};
    printf("MTP modules         %d%s\n", m->num_mtp,
           m->num_mtp ? ": mtp-vanilla and mtp-eagle draft up to 15 tokens" : "; the mtp methods are refused");
    if (m->num_mtp < m->config.num_nextn_predict_layers)
        printf("  %s%s promises %d; the file has no others\n", config_origin(&m->config), m->config.gguf ? "" : " or its class",
               m->config.num_nextn_predict_layers);
    for (int k = 0; k < m->num_mtp; k++)
        printf("  module %d: embed_tokens %s; shared_head.head %s\n", k, copies[model_mtp_copy(m, k, 0)],
               copies[model_mtp_copy(m, k, 1)]);
}

static void print_report(const struct model *m)
{
    const struct checkpoint *k = m->checkpoint;
    size_t bytes = 0;
    print_config(&m->config);
    for (size_t i = 0; i < checkpoint_count(k); i++)
        bytes += checkpoint_at(k, i)->bytes;
    printf("parameters          %lld, of which a token touches %lld\n", (long long)model_parameters(m),
           (long long)model_active_parameters(m));
    print_mtp(m);
    printf("tensors             %zu used, %.1f MB mapped, %.1f KB of vectors widened to f32\n", count_used(k),
           (double)(bytes - checkpoint_copied(k)) / 1e6, (double)m->widened_bytes / 1e3);
    print_copies(m);
    print_sizes(m);
    for (size_t i = 0; i < checkpoint_count(k); i++) {
        const struct tensor *t = checkpoint_at(k, i);
        if (t->ignored)
            printf("ignored             %s: %s\n", t->name, t->ignored);
    }
}

static void show_check(void *label, size_t done, size_t total) { cli_progress(label, done, total); }

static int run(struct cli *c)
{
    vb_error err;
    int code = cli_open(c);
    if (code != EXIT_DONE)
        return code;
    if (c->check && model_check(c->model, show_check, "checking", &err))
        return cli_error(c, &err);
    if (c->json)
        return print_json(c->model);
    print_report(c->model);
    if (c->check)
        puts("checked             every byte read, every weight finite");
    return EXIT_DONE;
}

const struct command command_inspect = {
    "inspect", "architecture, sizes, the load report, what MTP offers",
    "usage: verbatim inspect MODEL [OPTIONS]\n\n"
    "Prints what config.json (of a GGUF file: the metadata) and the defaults of its architecture say, the parameters in\n"
    "all and those that one token touches, the MTP modules, and every tensor that is not used, with the reason.\n\n"
    "  --check                read every byte: weights and scales must be finite; MTP copies are compared\n"
    "  --precision MODE       f32, bf16, q8 or q4: what opening the model in it rounds, quantises and copies (f32)\n"
    "  --repack WHETHER       on, off (on): off opens a file of quantised weights at once\n"
    "  --json                 architecture, parameters, active_parameters, mtp_modules, rounded_bytes, quantised_bytes,\n"
    "                         repacked_bytes, copy_seconds, tensors, types\n",
    TAKES_CHECK, run};
