/* tools/cli/speculative_json.c -- --speculative-config of vLLM and vllm-ascend, and --plugin-params of MindIE: JSON
 * objects.
 *
 * The keys and defaults are those of vllm/config/speculative.py and of the page "MTP" in MindIE's documentation (read,
 * not copied). By default, vLLM matches n-grams of 5 tokens. If only one of prompt_lookup_min and prompt_lookup_max is
 * given, the other one gets the same value. */
#include <string.h>

#include "tools/cli/speculative.h"

/* The names of draft methods. A method with a second model has Verbatim's name. */
static const struct method_name vllm_methods[] = {
    {"deepseek_mtp", "mtp-eagle"}, {"mtp", "mtp-eagle"}, {"ngram", "ngram"}, {"eagle", "eagle"}, {"eagle3", "eagle3"},
    {"draft_model", "draft-model"}, {NULL, NULL}};
static const struct method_name mindie_methods[] = {{"mtp", "eagle-reroll"}, {NULL, NULL}};

/* Keys for graphs, processors and batches. No draft depends on them. */
static const char *const without_meaning_here[] = {"draft_tensor_parallel_size", "enforce_eager",
                                                   "disable_by_batch_size", "disable_log_stats", NULL};

static int is_without_meaning(const char *key)
{
    for (const char *const *k = without_meaning_here; *k; k++)
        if (!strcmp(*k, key))
            return 1;
    return 0;
}

static int wrong(const struct cli *c, const struct wish *w, const char *key, const json_t *value, const char *wanted)
{
    char shown[JSON_SHOWN];
    return cli_fail(c, EXIT_USAGE, "%s: %s is %s, wanted %s", w->option, key, json_show(value, shown), wanted);
}

static int unknown_key(const struct cli *c, const struct wish *w, const char *key, const char *known)
{
    char shown[JSON_SHOWN];
    json_t *name = json_string(key);
    int code = cli_fail(c, EXIT_USAGE, "%s: unknown key %s; known are %s", w->option, json_show(name, shown), known);
    json_decref(name);
    return code;
}

static int read_length(const struct cli *c, struct wish *w, const json_t *value)
{
    char shown[JSON_SHOWN];
    w->tokens = json_integer_value(value);
    return !json_is_integer(value) || w->tokens < 0 || w->tokens > VB_MAX_DRAFT
               ? wish_bad_length(c, w->length_option, json_show(value, shown))
               : EXIT_DONE;
}

static int read_ngram(const struct cli *c, const struct wish *w, const char *key, const json_t *value, int32_t *n)
{
    json_int_t i = json_integer_value(value);
    if (!json_is_integer(value) || i < 1 || i > 64)
        return wrong(c, w, key, value, "an integer from 1 to 64");
    *n = (int32_t)i;
    return EXIT_DONE;
}

static int read_vllm_member(struct cli *c, struct wish *w, const char *key, const json_t *value)
{
    static const char known[] =
        "method, num_speculative_tokens, model, prompt_lookup_min, prompt_lookup_max, disable_padded_drafter_batch";
    if (!strcmp(key, "method"))
        return json_is_string(value) ? wish_method(c, w, vllm_methods, json_string_value(value))
                                     : wrong(c, w, key, value, "a string");
    if (!strcmp(key, "num_speculative_tokens"))
        return read_length(c, w, value);
    if (!strcmp(key, "prompt_lookup_min"))
        return read_ngram(c, w, key, value, &w->ngram_min);
    if (!strcmp(key, "prompt_lookup_max"))
        return read_ngram(c, w, key, value, &w->ngram_max);
    if (!strcmp(key, "model")) {
        w->model = json_string_value(value);
        return w->model && *w->model ? EXIT_DONE : wrong(c, w, key, value, "the directory of a model");
    }
    if (!strcmp(key, "disable_padded_drafter_batch")) {
        w->padded = json_is_false(value);
        return json_is_boolean(value) ? EXIT_DONE : wrong(c, w, key, value, "true or false");
    }
    if (!is_without_meaning(key))
        return unknown_key(c, w, key, known);
    size_t used = strlen(c->foreign.ignored);
    snprintf(c->foreign.ignored + used, sizeof c->foreign.ignored - used, "%s%s", used ? ", " : "", key);
    return EXIT_DONE;
}

/* Checks that each key fits the method. */
static int check_vllm(struct cli *c, struct wish *w)
{
    int is_ngram = !strcmp(w->method, "ngram"), is_mtp = !strcmp(w->method, "mtp-eagle");
    if ((w->ngram_min || w->ngram_max) && !is_ngram)
        return cli_fail(c, EXIT_USAGE, "%s: %s is of the method ngram", w->option,
                        w->ngram_min ? "prompt_lookup_min" : "prompt_lookup_max");
    if (is_ngram && !w->ngram_min && !w->ngram_max)
        w->ngram_min = w->ngram_max = 5;
    w->ngram_min = w->ngram_min ? w->ngram_min : w->ngram_max;
    w->ngram_max = w->ngram_max ? w->ngram_max : w->ngram_min;
    if (w->model && is_mtp && c->model_dir && !strcmp(w->model, c->model_dir))
        w->model = NULL; /* vLLM's documentation gives the path of the model itself here */
    if (w->model && (is_mtp || is_ngram))
        return cli_fail(c, EXIT_USAGE, "%s: model is %.128s, and %s takes no second model", w->option, w->model,
                        w->method);
    if (!w->model && !is_mtp && !is_ngram && !c->drafting.model_dir)
        return cli_fail(c, EXIT_USAGE, "%s: model is missing, the directory of what drafts with the method %s",
                        w->option, w->method);
    return EXIT_DONE;
}

static int read_mindie_member(struct cli *c, struct wish *w, const char *key, const json_t *value)
{
    if (!strcmp(key, "plugin_type"))
        return json_is_string(value) ? wish_method(c, w, mindie_methods, json_string_value(value))
                                     : wrong(c, w, key, value, "a string");
    if (!strcmp(key, "num_speculative_tokens"))
        return read_length(c, w, value);
    return unknown_key(c, w, key, "plugin_type, num_speculative_tokens");
}

/* Returns whether the text contains True, False or None outside of strings, or a string in single quotes, as in
 * Python. */
static int looks_like_python(const char *text)
{
    static const char *const words[] = {"True", "False", "None"};
    int in_string = 0;
    for (const char *p = text; *p; p++) {
        if (*p == '"' && (p == text || p[-1] != '\\'))
            in_string = !in_string;
        if (in_string)
            continue;
        if (*p == '\'')
            return 1;
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (!strncmp(p, words[i], strlen(words[i])))
                return 1;
    }
    return 0;
}

/* Reads a JSON object. The caller releases *object with json_decref. */
static int read_object(const struct cli *c, const struct wish *w, const char *text, size_t size, json_t **object)
{
    vb_error err;
    *object = json_read(text, size, w->option, &err);
    if (!*object && looks_like_python(text))
        return cli_fail(c, EXIT_USAGE,
                        "%s; JSON writes true, false, null and \"text\" where Python writes True, False, None and "
                        "'text'",
                        err.message);
    if (!*object)
        return cli_fail(c, EXIT_USAGE, "%s", err.message);
    return json_is_object(*object) ? EXIT_DONE : cli_fail(c, EXIT_USAGE, "%s: not a JSON object", w->option);
}

int wish_of_vllm(struct cli *c, struct wish *w)
{
    const char *key;
    json_t *value, *object = NULL;
    if (!c->foreign.vllm)
        return EXIT_DONE;
    int code = read_object(c, w, c->foreign.vllm, strlen(c->foreign.vllm), &object);
    json_object_foreach(object, key, value)
        if (code == EXIT_DONE)
            code = read_vllm_member(c, w, key, value);
    if (code == EXIT_DONE && !w->method)
        code = cli_fail(c, EXIT_USAGE, "%s: method is missing", w->option);
    if (code == EXIT_DONE)
        code = check_vllm(c, w);
    if (code == EXIT_DONE && w->model) { /* the string belongs to the JSON object, which is released below */
        w->model = c->foreign.model_dir = strdup(w->model);
        code = w->model ? EXIT_DONE : cli_fail(c, EXIT_OTHER, "no memory for the options of %s", w->option);
    }
    json_decref(object);
    return code;
}

/* Reads the options from a file. A configuration file of MindIE has them as text in
 * BackendConfig.ModelDeployConfig.ModelConfig[].plugin_params. The file may also contain the object itself. */
static int read_service(const struct cli *c, const struct wish *w, const char *path, json_t **object)
{
    vb_error err;
    char *text;
    size_t size, i;
    json_t *model, *all;
    if (vb_read_file(NULL, path, &text, &size, &err))
        return cli_error(c, &err);
    int code = read_object(c, w, text, size, &all);
    vb_free(NULL, text);
    if (code != EXIT_DONE || json_object_get(all, "plugin_type")) {
        *object = all;
        return code;
    }
    json_t *models = json_object_get(json_object_get(json_object_get(all, "BackendConfig"), "ModelDeployConfig"),
                                     "ModelConfig");
    json_array_foreach(models, i, model) {
        const json_t *params = json_object_get(model, "plugin_params");
        if (json_is_string(params) && !*object && code == EXIT_DONE)
            code = read_object(c, w, json_string_value(params), json_string_length(params), object);
    }
    json_decref(all);
    if (code == EXIT_DONE && !*object)
        code = cli_fail(c, EXIT_USAGE, "%s: %.256s has no BackendConfig.ModelDeployConfig.ModelConfig[].plugin_params",
                        w->option, path);
    return code;
}

int wish_of_mindie(struct cli *c, struct wish *w)
{
    const char *key, *text = c->foreign.mindie;
    json_t *value, *object = NULL;
    if (!text)
        return EXIT_DONE;
    int code = *text == '@' ? read_service(c, w, text + 1, &object) : read_object(c, w, text, strlen(text), &object);
    json_object_foreach(object, key, value)
        if (code == EXIT_DONE)
            code = read_mindie_member(c, w, key, value);
    if (code == EXIT_DONE && !w->method)
        code = cli_fail(c, EXIT_USAGE, "%s: plugin_type is missing", w->option);
    json_decref(object);
    return code;
}
