/* tools/inspect.c -- `verbatim inspect`: what a checkpoint is, and what becomes of each of its tensors. */
#include <string.h>

#include "cli.h"

static void print_config(const struct config *c)
{
    static const char *const methods[] = {"greedy", "group_limited_greedy", "noaux_tc"};
    printf("architecture        %s (%s)\n", c->architecture, c->model_type);
    printf("vocab_size          %d, hidden_size %d, layers %d, MTP layers promised %d\n", c->vocab_size, c->hidden_size,
           c->num_hidden_layers, c->num_nextn_predict_layers);
    printf("attention           %d heads, q_lora_rank %d, kv_lora_rank %d, nope %d, rope %d, value %d\n",
           c->num_attention_heads, c->q_lora_rank, c->kv_lora_rank, c->qk_nope_head_dim, c->qk_rope_head_dim, c->v_head_dim);
    printf("norms               rms_norm_eps %g, of the latents %g\n", c->rms_norm_eps, c->latent_eps);
    printf("rope                theta %g, %s", c->rope_theta, c->rope_interleave ? "adjacent pairs" : "halves");
    if (c->rope_yarn)
        printf(", YaRN factor %g over %d positions, beta %g to %g, mscale %g, mscale_all_dim %g", c->rope_factor,
               c->rope_original_max_position_embeddings, c->rope_beta_fast, c->rope_beta_slow, c->rope_mscale,
               c->rope_mscale_all_dim);
    printf("\npositions           %d\n", c->max_position_embeddings);
    if (c->n_routed_experts)
        printf("experts             %d of %d wide %d, %d shared; %s, %s; groups %d of %d; norm_topk_prob %s, factor %g\n",
               c->num_experts_per_tok, c->n_routed_experts, c->moe_intermediate_size, c->n_shared_experts,
               c->scoring_func == SCORING_SIGMOID ? "sigmoid" : "softmax", methods[c->topk_method], c->topk_group,
               c->n_group, c->norm_topk_prob ? "true" : "false", c->routed_scaling_factor);
    printf("dense layers        wide %d; experts from layer %d on, every %d\n", c->intermediate_size,
           c->first_k_dense_replace, c->moe_layer_freq);
    printf("embeddings          %s\n", c->tie_word_embeddings ? "tied" : "separate head");
    if (c->fp8)
        printf("fp8                 blocks of %dx%d\n", c->fp8_block_rows, c->fp8_block_cols);
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
    return cli_print_json(json_pack("{s:s,s:I,s:I,s:i,s:{s:I,s:o}}", "architecture", m->config.architecture, "parameters",
                                    (json_int_t)model_parameters(m), "active_parameters",
                                    (json_int_t)model_active_parameters(m), "mtp_modules", m->num_mtp, "tensors", "used",
                                    (json_int_t)count_used(k), "ignored", ignored));
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
    printf("MTP                 %d modules%s\n", m->num_mtp,
           m->num_mtp ? ": mtp-vanilla and mtp-eagle draft up to 15 tokens" : "; the mtp methods are refused");
    printf("tensors             %zu used, %.1f MB mapped, %.1f KB of vectors widened to f32\n", count_used(k),
           (double)bytes / 1e6, (double)m->widened_bytes / 1e3);
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
    "  --json                 architecture, parameters, active_parameters, mtp_modules, tensors\n",
    TAKES_CHECK, run};
