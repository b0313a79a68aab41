/* tools/inspect.c -- `verbatim inspect`: what a checkpoint is, and what becomes of each of its tensors. */
#include <string.h>

#include "cli.h"

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

static int print_json(const struct model *m)
{
    json_t *ignored = json_array();
    const struct checkpoint *k = m->checkpoint;
    for (size_t i = 0; i < checkpoint_count(k); i++) {
        const struct tensor *t = checkpoint_at(k, i);
        if (t->ignored)
            json_array_append_new(ignored, json_pack("{s:s,s:s}", "name", t->name, "why", t->ignored));
    }
    return cli_print_json(json_pack("{s:s,s:I,s:I,s:i,s:I,s:{s:I,s:o}}", "architecture", m->config.architecture, "parameters",
                                    (json_int_t)model_parameters(m), "active_parameters",
                                    (json_int_t)model_active_parameters(m), "mtp_modules", m->num_mtp, "rounded_bytes",
                                    (json_int_t)m->rounded_bytes, "tensors", "used", (json_int_t)count_used(k), "ignored",
                                    ignored));
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

static void print_sizes(const struct model *m)
{
    static const char *const parts[] = {"embedding", "attention", "dense layers", "routers", "routed experts",
                                        "shared experts", "norms", "output head", "MTP layers"};
    const struct checkpoint *k = m->checkpoint;
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        size_t bytes = 0, tensors = 0;
        for (size_t i = 0; i < checkpoint_count(k); i++) {
            const struct tensor *t = checkpoint_at(k, i);
            if (!strcmp(part_of(&m->config, t->name), parts[p])) {
                bytes += t->bytes;
                tensors++;
            }
        }
        if (tensors)
            printf("  %-18s%10.3f MB in %zu tensors\n", parts[p], (double)bytes / 1e6, tensors);
    }
}

static void print_mtp(const struct model *m)
{
    static const char *const copies[] = {"the main model's", "its own, equal to the main model's", "its own, different"};
    printf("MTP modules         %d%s\n", m->num_mtp,
           m->num_mtp ? ": mtp-vanilla and mtp-eagle draft up to 15 tokens" : "; the mtp methods are refused");
    if (m->num_mtp < m->config.num_nextn_predict_layers)
        printf("  config.json or its class promises %d; the file has no others\n", m->config.num_nextn_predict_layers);
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
           (double)bytes / 1e6, (double)m->widened_bytes / 1e3);
    if (m->config.precision == PRECISION_BF16)
        printf("precision bf16      %.1f MB of matrices rounded to BF16, beside what is mapped\n", (double)m->rounded_bytes / 1e6);
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
    "Prints what config.json and the defaults of its architecture say, the parameters in all and those that one token\n"
    "touches, the MTP modules, and every tensor that is not used, with the reason.\n\n"
    "  --check                read every byte: weights and scales must be finite; MTP copies are compared\n"
    "  --precision MODE       f32 or bf16: what opening the model in it rounds and copies (f32)\n"
    "  --json                 architecture, parameters, active_parameters, mtp_modules, rounded_bytes, tensors\n",
    TAKES_CHECK, run};
