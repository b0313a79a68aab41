/* tools/training/eagle.c -- EAGLE heads: the draft vocabulary of a new one, and the folder DIR/head, which other
 * engines read, too.
 *
 * config.json has the keys of SafeAILab/EAGLE's heads (commit cb7e084: those of a Llama model with one layer, bias,
 * draft_vocab_size), and for EAGLE-3 also those of vllm-project/speculators (commit c05b95b: speculators_config,
 * transformer_layer_config and others). The tensors have the names of SafeAILab's heads; d2t and t2d map the two
 * vocabularies. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/cli/file.h"
#include "tools/training/training.h"

#define PATH_SIZE 4096
#define MOST_DRAFTED 32000 /* the usual draft vocabulary */

/* ---- options ----------------------------------------------------------------------------------------------------- */

struct frequency {
    int64_t count;
    int32_t token;
};

/* More frequent tokens first; of equally frequent ones, the lowest id. */
static int by_frequency(const void *a, const void *b)
{
    const struct frequency *x = a, *y = b;
    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static int by_token(const void *a, const void *b) { return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1; }

/* The `count` tokens that are most often labels in the data, ascending. */
static int32_t *most_frequent(const struct training *r, size_t V, size_t count)
{
    struct frequency *of = cli_must(calloc(V, sizeof *of));
    int32_t *tokens = cli_must(malloc(count * sizeof *tokens));
    for (size_t v = 0; v < V; v++)
        of[v].token = (int32_t)v;
    for (size_t i = 0; i < r->data.tokens; i++)
        of[r->data.ids[i]].count += r->data.mask[i] != 0;
    qsort(of, V, sizeof *of, by_frequency);
    for (size_t i = 0; i < count; i++)
        tokens[i] = of[i].token;
    qsort(tokens, count, sizeof *tokens, by_token);
    free(of);
    return tokens;
}

int eagle_options(struct training *r)
{
    const struct cli_training *t = &r->c->train;
    size_t V = (size_t)vb_vocab_size(r->c->model), count = t->draft_vocab_size > 0 ? (size_t)t->draft_vocab_size
                                                           : V < MOST_DRAFTED ? V
                                                           : MOST_DRAFTED;
    r->eagle = (struct trainer_eagle){.dir = t->eagle_head,
                                      .heads = t->attention_heads < 0 ? 0 : (size_t)t->attention_heads,
                                      .groups = t->query_groups < 0 ? 0 : (size_t)t->query_groups,
                                      .dim = t->kv_channels < 0 ? 0 : (size_t)t->kv_channels,
                                      .intermediate = t->ffn_hidden_size < 0 ? 0 : (size_t)t->ffn_hidden_size,
                                      .norms = {t->norm_before_residual, t->norm_before_fc, t->fc_norm,
                                                t->norm_output}};
    if (!strcmp(t->part, "eagle3") && !t->eagle_head && count < V) {
        r->eagle.tokens = most_frequent(r, V, count);
        r->eagle.vocab_size = count;
    }
    return EXIT_DONE;
}

void eagle_free(struct training *r) { free((void *)(uintptr_t)r->eagle.tokens); }

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static json_t *layer_config(const struct trained_eagle *e, const char *type)
{
    return cli_must(json_pack("{s:[s],s:s,s:s,s:I,s:I,s:I,s:i,s:I,s:I,s:I,s:f,s:f,s:n,s:I,s:b,s:b,s:b,s:s}",
                              "architectures", "LlamaForCausalLM", "model_type", "llama", "hidden_act", "silu",
                              "vocab_size", (json_int_t)e->target_vocab, "hidden_size", (json_int_t)e->hidden_size,
                              "intermediate_size", (json_int_t)e->intermediate, "num_hidden_layers", 1,
                              "num_attention_heads", (json_int_t)e->heads, "num_key_value_heads", (json_int_t)e->groups,
                              "head_dim", (json_int_t)e->dim, "rms_norm_eps", e->rms_norm_eps, "rope_theta",
                              e->rope_theta, "rope_scaling", "max_position_embeddings", (json_int_t)e->positions,
                              "attention_bias", 0, "mlp_bias", 0, "tie_word_embeddings", 0, "torch_dtype", type));
}

/* The keys of speculators, in which the verifier is the model that the head drafts for. */
static void add_speculators(const struct training *r, const struct trained_eagle *e, json_t *config, const char *type)
{
    vb_model_facts facts;
    vb_model_look(r->c->model, &facts);
    json_object_update_new(config,
                           cli_must(json_pack("{s:s,s:b,s:b,s:b,s:b,s:I,s:[iii],s:{s:s,s:s,s:[{s:s,s:i}],s:{s:s,s:[s]}}"
                                              "}",
                                              "speculators_model_type", "eagle3", "norm_before_residual",
                                              e->norms.norm_before_residual, "norm_before_fc", e->norms.norm_before_fc,
                                              "fc_norm", e->norms.fc_norm, "norm_output", e->norms.norm_output,
                                              "target_hidden_size", (json_int_t)e->target_hidden,
                                              "eagle_aux_hidden_state_layer_ids", e->layer[0], e->layer[1], e->layer[2],
                                              "speculators_config", "algorithm", "eagle3", "default_proposal_method",
                                              "greedy", "proposal_methods", "proposal_type", "greedy",
                                              "speculative_tokens", 3, "verifier", "name_or_path", r->model_dir,
                                              "architectures", facts.architecture)));
    json_object_set_new(config, "transformer_layer_config", layer_config(e, type));
}

static json_t *new_config(const struct training *r, const struct trained_eagle *e, const char *type)
{
    json_t *config = layer_config(e, type);
    if (e->version == 1) {
        json_object_set_new(config, "bias", json_false()); /* fc has none */
        return config;
    }
    json_object_set_new(config, "draft_vocab_size", json_integer((json_int_t)e->vocab_size));
    add_speculators(r, e, config, type);
    return config;
}

/* That of the head with which the run began. */
static json_t *old_config(const struct training *r, const char *type)
{
    char path[PATH_SIZE + 32];
    json_error_t why;
    snprintf(path, sizeof path, "%s/config.json", r->eagle.dir);
    json_t *config = json_load_file(path, 0, &why);
    if (!config) {
        cli_fail(r->c, EXIT_OTHER, "%s: %s", path, why.text);
        return NULL;
    }
    json_object_set_new(config, "torch_dtype", json_string(type));
    return config;
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

static int failed(const struct training *r, const char *path)
{
    return cli_fail(r->c, EXIT_OTHER, "%s: %s", path, strerror(errno));
}

static int write_config(const struct training *r, const struct trained_eagle *e, const char *dir)
{
    char path[PATH_SIZE + 32];
    const char *type = strcmp(r->c->train.type, "f32") ? "bfloat16" : "float32";
    json_t *config = r->eagle.dir ? old_config(r, type) : new_config(r, e, type);
    if (!config)
        return EXIT_OTHER;
    snprintf(path, sizeof path, "%s/config.json", dir);
    int code = json_dump_file(config, path, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) ? failed(r, path) : EXIT_DONE;
    json_decref(config);
    return code;
}

/* d2t [vocab_size], I64, and t2d [target_vocab], BOOL, of a new head. */
struct vocabularies {
    int64_t *d2t;
    unsigned char *t2d;
};

static size_t add_vocabularies(const struct trained_eagle *e, struct vocabularies *v, vb_tensor *list)
{
    if (!e->tokens)
        return 0;
    v->d2t = cli_must(malloc(e->vocab_size * sizeof *v->d2t));
    v->t2d = cli_must(calloc(e->target_vocab, 1));
    for (size_t i = 0; i < e->vocab_size; i++) {
        v->d2t[i] = e->tokens[i] - (int64_t)i;
        v->t2d[e->tokens[i]] = 1;
    }
    list[0] = (vb_tensor){.name = "d2t", .dtype = "I64", .ndim = 1, .shape = {(int64_t)e->vocab_size}, .data = v->d2t,
                          .bytes = e->vocab_size * sizeof *v->d2t};
    list[1] = (vb_tensor){.name = "t2d", .dtype = "BOOL", .ndim = 1, .shape = {(int64_t)e->target_vocab},
                          .data = v->t2d, .bytes = e->target_vocab};
    return 2;
}

/* The embedding of the head with which the run began, which is not trained. */
static size_t add_embedding(const vb_tensors *old, vb_tensor *list)
{
    return old && vb_tensors_find(old, "embed_tokens.weight", list);
}

static int write_list(const struct training *r, const char *dir, const vb_tensor *list, size_t count)
{
    char path[PATH_SIZE + 32];
    struct new_file file;
    vb_error err;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (new_file_begin(&file, path, 0, NULL, &err))
        return cli_error(r->c, &err);
    int rc = vb_tensors_write(file.fd, path, list, count, NULL, NULL, &err);
    return new_file_end(&file, rc, &err) ? cli_error(r->c, &err) : EXIT_DONE;
}

static int write_tensors(const struct training *r, const struct trained_eagle *e, const char *dir)
{
    size_t count = trainer_count(r->trainer), n = 0;
    vb_tensor *list = cli_must(calloc(count + 3, sizeof *list));
    void **memory = cli_must(calloc(count, sizeof *memory));
    struct vocabularies v = {0};
    vb_tensors *old = NULL;
    vb_error err;
    int code = r->eagle.dir && vb_tensors_open(&old, r->eagle.dir, NULL, &err) ? cli_error(r->c, &err) : EXIT_DONE;
    if (code == EXIT_DONE) {
        for (; n < count; n++)
            list[n] = output_stored(trainer_tensor(r->trainer, n), !strcmp(r->c->train.type, "f32"), &memory[n]);
        n += add_vocabularies(e, &v, list + n);
        n += add_embedding(old, list + n);
        code = write_list(r, dir, list, n);
    }
    vb_tensors_close(old);
    for (size_t i = 0; i < count; i++)
        free(memory[i]);
    free(v.d2t);
    free(v.t2d);
    free(memory);
    free(list);
    return code;
}

int eagle_write(struct training *r)
{
    char dir[PATH_SIZE], head[PATH_SIZE];
    struct trained_eagle e;
    trainer_eagle_look(r->trainer, &e);
    if (snprintf(dir, sizeof dir, "%s/head.new", r->dir) >= PATH_SIZE - 32)
        return cli_fail(r->c, EXIT_OTHER, "%.200s: the path is too long", r->dir);
    snprintf(head, sizeof head, "%s/head", r->dir);
    output_remove(dir);
    int code = mkdir(dir, 0777) ? failed(r, dir) : EXIT_DONE;
    if (code == EXIT_DONE)
        code = write_config(r, &e, dir);
    if (code == EXIT_DONE)
        code = write_tensors(r, &e, dir);
    if (code == EXIT_DONE) {
        output_remove(head); /* of a run that has ended, and was then continued */
        code = rename(dir, head) ? failed(r, head) : EXIT_DONE;
    }
    if (code != EXIT_DONE)
        output_remove(dir);
    return code;
}
