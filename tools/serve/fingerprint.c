/* tools/serve/fingerprint.c -- version, model, precision, cache type, prefill and conventions as text, and a hash of
 * these and of all the rest: weights, tokenizer, chat template, the longest request, and what relaxed or rejection
 * sampling reads of the drafts. */
#include "tools/serve/fingerprint.h"

#include <inttypes.h>
#include <sha2.h>
#include <stdarg.h>
#include <string.h>

static void mix(SHA2_CTX *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void mix(SHA2_CTX *h, const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    SHA256Update(h, (const uint8_t *)text, strlen(text) + 1);
}

static int mix_model(SHA2_CTX *h, const struct server *s, const vb_model *model)
{
    vb_error err;
    uint64_t hash;
    if (vb_model_fingerprint(model, s->c->fingerprint_sample, s->c->session.threads, &hash, &err))
        return cli_error(s->c, &err);
    mix(h, "model %016" PRIx64, hash);
    return EXIT_DONE;
}

static void mix_texts(SHA2_CTX *h, const struct server *s)
{
    size_t size = 0;
    const char *source = s->chat ? vb_template_source(s->chat, &size) : "";
    mix(h, "tokenizer %016" PRIx64, s->tokenizer ? vb_tokenizer_fingerprint(s->tokenizer) : 0);
    mix(h, "template %zu", size);
    SHA256Update(h, (const uint8_t *)source, size);
}

static void mix_file(SHA2_CTX *h, const char *dir, const char *name)
{
    char path[4096];
    uint8_t bytes[1 << 14];
    size_t size;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "rbe");
    mix(h, "%s %s", name, file ? "is there" : "is missing");
    while (file && (size = fread(bytes, 1, sizeof bytes, file)))
        SHA256Update(h, bytes, size);
    if (file)
        fclose(file);
}

/* What the drafts depend on, where answers depend on drafts. */
static int mix_drafts(SHA2_CTX *h, const struct server *s)
{
    const vb_sampling *a = &s->c->session.sampling;
    const vb_drafting *d = &s->drafting;
    mix(h, "%s %s %d %a %d %d", a->acceptance, a->draft_sample_method ? a->draft_sample_method : "", a->relaxed_topk,
        (double)a->relaxed_delta, a->thinking_begin, a->thinking_end);
    mix(h, "%s %d %a %s", d->method ? d->method : "none", d->tokens, (double)d->p_min, d->settings ? d->settings : "");
    if (d->head) {
        mix_file(h, d->head, "config.json");
        mix_file(h, d->head, "model.safetensors");
    }
    return d->model ? mix_model(h, s, d->model) : EXIT_DONE;
}

int fingerprint_server(struct server *s)
{
    const char *conventions, *sampled = s->c->fingerprint_sample ? "sampled-" : "";
    uint8_t digest[SHA256_DIGEST_LENGTH];
    vb_model_facts facts;
    SHA2_CTX h;
    char cached[32] = "", split[256];
    int expanded = s->c->session.prefill && !strcmp(s->c->session.prefill, "expanded");
    vb_model_look(s->c->model, &facts);
    conventions = facts.conventions;
    if (strcmp(facts.cache_type, "f32"))
        snprintf(cached, sizeof cached, "cache-%.16s/", facts.cache_type);
    SHA256Init(&h);
    int code = mix_model(&h, s, s->c->model);
    if (code != EXIT_DONE)
        return code;
    mix_texts(&h, s);
    mix(&h, "context %zu", s->context);
    if (expanded)
        mix(&h, "prefill expanded");
    cli_tensor_split(s->c, split, sizeof split);
    if (*split)
        mix(&h, "%s", split);
    if (server_drafts_lead(s) && (code = mix_drafts(&h, s)) != EXIT_DONE)
        return code;
    SHA256Final(digest, &h);
    int n = snprintf(s->fingerprint, sizeof s->fingerprint, "verbatim-%s/%.64s/%s/%s%s%.96s%s%s%s%s", vb_version(),
                     s->name, facts.precision, cached, expanded ? "prefill-expanded/" : "", conventions,
                     *conventions ? "/" : "", server_drafts_lead(s) ? cli_acceptance(s->c) : "",
                     server_drafts_lead(s) ? "/" : "", sampled);
    for (int i = 0; i < 8; i++)
        n += snprintf(s->fingerprint + n, sizeof s->fingerprint - (size_t)n, "%02x", digest[i]);
    return EXIT_DONE;
}
