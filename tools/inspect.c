/* tools/inspect.c -- `verbatim inspect`: describes a checkpoint and the use of each of its tensors. */
#include <string.h>

#include "tools/cli/cli.h"

static const char *text(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }
static double number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }
static long long integer(const json_t *o, const char *key)
{
    return (long long)json_integer_value(json_object_get(o, key));
}
static int flag(const json_t *o, const char *key) { return json_is_true(json_object_get(o, key)); }
static double megabytes(const json_t *o, const char *key) { return number(o, key) / 1e6; }

/* Every key that counts, as it was read, or as the architecture's class has it when the file is silent. */
static void print_config(const json_t *model)
{
    const json_t *c = json_object_get(model, "config"), *yarn = json_object_get(c, "yarn"),
                 *fp8 = json_object_get(c, "fp8_weight_block_size");
    json_t *row;
    size_t i;
    printf("architecture        %s (%s)\n", text(model, "architecture"), text(model, "model_type"));
    json_array_foreach(json_object_get(c, "keys"), i, row)
        printf("  %-34s %s%s\n", text(row, "key"), text(row, "value"),
               flag(row, "default") ? "  (default of the class)" : "");
    printf("  %-34s %g, whatever rms_norm_eps says\n", "eps of q_a and kv_a_layernorm", number(c, "latent_eps"));
    printf("  %-34s %s are rotated\n", "rope", flag(c, "rope_halves") ? "halves" : "adjacent pairs");
    if (json_object_get(c, "indexers"))
        printf("  %-34s %s (S: a layer shares the choice of the last F before it)\n", "indexers of the layers",
               text(c, "indexers"));
    if (!json_is_null(yarn))
        printf("  %-34s factor %g over %lld positions, beta %g to %g, mscale %g, mscale_all_dim %g\n", "YaRN",
               number(yarn, "factor"), integer(yarn, "original_max_position_embeddings"), number(yarn, "beta_fast"),
               number(yarn, "beta_slow"), number(yarn, "mscale"), number(yarn, "mscale_all_dim"));
    if (fp8)
        printf("  %-34s %dx%d\n", "fp8 weight_block_size", (int)json_integer_value(json_array_get(fp8, 0)),
               (int)json_integer_value(json_array_get(fp8, 1)));
    if (json_object_get(c, "int4_group_size"))
        printf("  %-34s %lld\n", "int4 group_size", integer(c, "int4_group_size"));
    if (json_object_get(c, "int8_scales"))
        printf("  %-34s one for each row\n", "int8 scales");
    if (flag(c, "no_groups"))
        printf("  %-34s the file %s\n", "groups", CLI_NO_GROUPS);
    if (flag(c, "no_query_scale"))
        printf("  %-34s the file %s\n", "scale of queries", CLI_NO_QUERY_SCALE);
    printf("  %-34s", "end tokens");
    json_array_foreach(json_object_get(c, "end_tokens"), i, row)
        printf(" %d", (int)json_integer_value(row));
    puts(i ? "" : " none");
    printf("  %-34s %.17g\n", "attention scale", number(c, "attention_scale"));
}

static void print_parts(const json_t *model)
{
    json_t *part, *bytes;
    const char *type;
    size_t i;
    json_array_foreach(json_object_get(model, "parts"), i, part) {
        json_t *types = json_object_get(part, "types");
        const char *comma = "";
        printf("  %-18s%10.3f MB in %lld tensors:", text(part, "part"), megabytes(part, "bytes"),
               integer(part, "tensors"));
        json_object_foreach(types, type, bytes) {
            printf("%s %s", comma, type);
            if (json_object_size(types) > 1)
                printf(" %.3f", json_number_value(bytes) / 1e6);
            comma = ",";
        }
        putchar('\n');
    }
}

static const char *quantized_type(const json_t *model, const char *precision)
{
    int int4 = json_object_get(json_object_get(model, "config"), "int4_group_size") != NULL;
    if (int4)
        return !strcmp(precision, "q8") ? "Q8_0, or with the codes of I4" : "Q4_0, or with the codes of I4";
    return !strcmp(precision, "q8") ? "Q8_0" : "Q4_0";
}

/* Prints the sizes of copies, which need memory in addition to the mapped files. */
static void print_copies(const json_t *model, const vb_model_facts *facts)
{
    const char *precision = text(model, "precision");
    if (integer(model, "joined_bytes"))
        printf("copied              %.1f MB: attn_k_b, stored transposed, %s\n", megabytes(model, "joined_bytes"),
               "and where neither is quantized with attn_v_b as kv_b_proj");
    if (!strcmp(precision, "bf16"))
        printf("precision bf16      %.1f MB of matrices rounded to BF16, beside what is mapped\n",
               megabytes(model, "rounded_bytes"));
    else if (strcmp(precision, "f32"))
        printf("precision %-10s%.1f MB of matrices quantized to %s, beside what is mapped\n", precision,
               megabytes(model, "quantized_bytes"), quantized_type(model, precision));
    if (integer(model, "repacked_bytes"))
        printf("repacked            %.1f MB of Q8_0, Q4_0 and IQ4_NL, in place of what is mapped\n",
               megabytes(model, "repacked_bytes"));
    if (facts->copied_bytes)
        printf("  %.1f MB in %.2f s\n", (double)facts->copied_bytes / 1e6, facts->copy_seconds);
}

/* Prints how much memory the KV cache takes for a token, with each cache type. */
static void print_cache(json_t *bytes)
{
    const char *type, *before = "KV cache            ";
    json_t *value;
    json_object_foreach(bytes, type, value) {
        printf("%s%.1f KB per token with %s", before, json_number_value(value) / 1e3, type);
        before = ", ";
    }
    putchar('\n');
}

static const char *whose(const char *copy)
{
    return !strcmp(copy, "absent") ? "the main model's"
           : !strcmp(copy, "equal") ? "its own, equal to the main model's"
           : "its own, different";
}

static void print_mtp(const json_t *model)
{
    const char *origin = text(json_object_get(model, "config"), "origin");
    long long stored = integer(model, "mtp_modules"), promised = integer(model, "mtp_modules_promised");
    json_t *module;
    size_t k;
    printf("MTP modules         %lld%s\n", stored,
           stored ? ": mtp-vanilla and mtp-eagle draft up to 15 tokens" : "; the mtp methods are refused");
    if (stored < promised)
        printf("  %s%s promises %lld; the file has no others\n", origin,
               strcmp(origin, "config.json") ? "" : " or its class", promised);
    json_array_foreach(json_object_get(model, "mtp"), k, module)
        printf("  module %zu: embed_tokens %s; shared_head.head %s\n", k, whose(text(module, "embed_tokens")),
               whose(text(module, "shared_head.head")));
}

static void print_report(const json_t *model, const vb_model_facts *facts)
{
    const json_t *tensors = json_object_get(model, "tensors");
    json_t *ignored;
    size_t i;
    print_config(model);
    printf("parameters          %lld, of which a token touches %lld\n", integer(model, "parameters"),
           integer(model, "active_parameters"));
    print_mtp(model);
    printf("tensors             %lld used, %.1f MB mapped, %.1f KB of vectors widened to f32\n",
           integer(tensors, "used"), megabytes(model, "mapped_bytes"), number(model, "widened_bytes") / 1e3);
    print_copies(model, facts);
    print_cache(json_object_get(model, "cache_bytes_per_token"));
    print_parts(model);
    json_array_foreach(json_object_get(tensors, "ignored"), i, ignored)
        printf("ignored             %s: %s\n", text(ignored, "name"), text(ignored, "why"));
}

static void show_check(void *label, size_t done, size_t total) { cli_progress(label, done, total); }

static int run(struct cli *c)
{
    vb_error err;
    vb_model_facts facts;
    char *described;
    int code = cli_open(c);
    if (code != EXIT_DONE)
        return code;
    if ((c->check && vb_model_check(c->model, show_check, "checking", &err)) ||
        vb_model_describe(c->model, &described, &err))
        return cli_error(c, &err);
    json_t *model = c->json ? NULL : json_loads(described, 0, NULL);
    if (c->json)
        puts(described);
    vb_text_free(described);
    if (c->json)
        return EXIT_DONE;
    if (!model)
        return cli_fail(c, EXIT_OTHER, "no memory to describe the model");
    vb_model_look(c->model, &facts);
    print_report(model, &facts);
    json_decref(model);
    if (c->check)
        puts("checked             every byte read, every weight finite");
    return EXIT_DONE;
}

static const struct note notes[] = {
    {"--precision", "Show which weights are rounded, quantized or copied when the model is opened in this precision: "
                    "f32, bf16, q8 or q4 "
                    "(default f32)."},
    {"--json",
     "Print an object with the keys architecture, model_type, config, parameters, active_parameters, mtp_modules, "
     "mtp_modules_promised, mtp, tensors, types, parts, precision, mapped_bytes, widened_bytes, "
     "joined_bytes, rounded_bytes, quantized_bytes, repacked_bytes, copy_seconds and cache_bytes_per_token "
     "(for each cache type)."},
    {NULL, NULL}};

const struct command command_inspect = {
    "inspect", "show architecture, sizes, MTP modules and unused tensors of a model",
    "MODEL [OPTIONS]",
    "Prints the model's configuration, which comes from config.json or from the metadata of a GGUF file. Missing keys "
    "have the\n"
    "defaults of the architecture. Also prints the number of parameters, how many parameters one token uses, the MTP "
    "modules, and\n"
    "every unused tensor with the reason.\n",
    TAKES_MODEL | TAKES_CHECK, run, notes, REPORTS_MISSING, NULL};
