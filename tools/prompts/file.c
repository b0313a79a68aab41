/* tools/prompts/file.c -- reads the lines of a file of prompts, and computes the key of an answer. */
#include "tools/prompts/prompts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sha2.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static int is_space(char ch) { return ch == ' ' || ch == '\t' || ch == '\r'; }

static struct prompt_line trimmed(const char *begin, const char *end)
{
    while (begin < end && is_space(*begin))
        begin++;
    while (end > begin && is_space(end[-1]))
        end--;
    return (struct prompt_line){.text = begin, .size = (size_t)(end - begin)};
}

int prompt_file_read(const struct cli *c, struct prompt_file *f, const char *path)
{
    size_t size;
    vb_error err;
    int is_stdin = !strcmp(path, "-");
    *f = (struct prompt_file){.name = is_stdin ? "stdin" : path};
    if (vb_read_input(NULL, is_stdin ? NULL : path, &f->text, &size, &err))
        return cli_error(c, &err);
    const char *p = f->text, *end = f->text + size, *newline;
    size_t most = 1;
    for (const char *at = p; at < end && (newline = memchr(at, '\n', (size_t)(end - at))); at = newline + 1)
        most++;
    f->line = calloc(most, sizeof *f->line);
    if (!f->line)
        return cli_fail(c, EXIT_OTHER, "%s: no memory for %zu lines", f->name, most);
    for (; p < end; p = newline + 1) {
        newline = memchr(p, '\n', (size_t)(end - p));
        newline = newline ? newline : end;
        f->line[f->num_lines] = trimmed(p, newline);
        f->num_prompts += f->line[f->num_lines++].size > 0;
    }
    return f->num_prompts ? EXIT_DONE : cli_fail(c, EXIT_OTHER, "%s: there is no prompt in it", f->name);
}

void prompt_file_close(struct prompt_file *f)
{
    free(f->line);
    vb_free(NULL, f->text);
}

void prompt_key(const struct prompt_line *line, const char settings[SETTINGS_SIZE], char key[KEY_SIZE])
{
    SHA2_CTX h;
    char digest[SHA256_DIGEST_STRING_LENGTH];
    SHA256Init(&h);
    SHA256Update(&h, (const uint8_t *)settings, SETTINGS_SIZE - 1);
    SHA256Update(&h, (const uint8_t *)line->text, line->size);
    if (line->routes)
        SHA256Update(&h, (const uint8_t *)&line->routes, sizeof line->routes);
    SHA256End(&h, digest);
    memcpy(key, digest, KEY_SIZE - 1);
    key[KEY_SIZE - 1] = '\0';
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static void mix(SHA2_CTX *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void mix(SHA2_CTX *h, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    SHA256Update(h, (const uint8_t *)text, size < (int)sizeof text ? (size_t)size + 1 : sizeof text);
}

/* Adds a string of any length to the hash. NULL and "" give different hashes. */
static void mix_text(SHA2_CTX *h, const char *name, const char *text)
{
    mix(h, "%s %zu", name, text ? strlen(text) + 1 : 0);
    if (text)
        SHA256Update(h, (const uint8_t *)text, strlen(text));
}

/* Adds bytes [at, at + size) of the file to the hash. Returns 0 or an errno. */
static int read_part(int fd, uint8_t *bytes, size_t size, off_t at)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = pread(fd, bytes + done, size - done, at + (off_t)done);
        if (n <= 0 && (n == 0 || errno != EINTR))
            return n ? errno : EIO; /* EIO: the file became shorter while it was read */
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* Adds the name and the size of a file, and 64 KiB from its beginning, its middle and its end. Small files are read
 * completely. */
static int mix_file(const struct cli *c, SHA2_CTX *h, const char *dir, const char *name)
{
    static uint8_t bytes[1 << 16];
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s%s%s", dir, *dir ? "/" : "", name);
    /* without O_NONBLOCK, opening a pipe would wait for a writer */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), error = 0;
    if (fd < 0 || fstat(fd, &st))
        error = errno;
    else if (!S_ISREG(st.st_mode))
        error = EINVAL;
    long long part = (long long)sizeof bytes, size = error ? 0 : (long long)st.st_size,
              last = size > part ? size - part : 0;
    const long long at[] = {0, last / 2, last};
    mix(h, "%s %lld", *dir ? name : "", size);
    for (size_t i = 0; i < sizeof at / sizeof *at && !error; i++) {
        size_t n = (size_t)(size - at[i] < part ? size - at[i] : part);
        error = read_part(fd, bytes, n, (off_t)at[i]);
        SHA256Update(h, bytes, n);
    }
    if (fd >= 0)
        close(fd);
    return error ? cli_fail(c, EXIT_OTHER, "%s: %s", path, error == EINVAL ? "not a regular file" : strerror(error))
                 : EXIT_DONE;
}

/* Returns whether this entry of a directory is a file that the model is read from. */
static int is_of_model(const struct dirent *e)
{
    static const char *const names[] = {"config.json", "params.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "tiktoken.model", "tekken.json",
                                        "chat_template.jinja"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(e->d_name, names[i]))
            return 1;
    return cli_ends_with(e->d_name, ".safetensors") && e->d_name[0] != '.';
}

/* Adds the model: a directory or a GGUF file. If the model consists of several GGUF files, only the first one is
 * read. */
static int mix_model(const struct cli *c, SHA2_CTX *h, const char *model)
{
    struct dirent **entries;
    struct stat st;
    int code = EXIT_DONE;
    if (stat(model, &st) || !S_ISDIR(st.st_mode))
        return mix_file(c, h, "", model);
    int count = scandir(model, &entries, is_of_model, alphasort);
    if (count < 0)
        return cli_fail(c, EXIT_OTHER, "%s: %s", model, strerror(errno));
    for (int i = 0; i < count; i++) {
        if (code == EXIT_DONE)
            code = mix_file(c, h, model, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return code;
}

static void mix_sampling(const struct cli *c, SHA2_CTX *h)
{
    const vb_sampling *s = &c->session.sampling;
    mix(h, "temperature %a top-k %d top-p %a min-p %a seed %llu", (double)s->temperature, s->top_k, (double)s->top_p,
        (double)s->min_p, (unsigned long long)s->seed);
    mix(h, "penalties %a %a %a", (double)s->repetition_penalty, (double)s->presence_penalty,
        (double)s->frequency_penalty);
    mix_text(h, "logit-bias", c->sampling.logit_bias);
    for (int i = 0; i < c->sampling.num_stops; i++)
        mix_text(h, "stop", c->sampling.stop[i]);
}

/* With strict acceptance, drafts do not influence the text. */
static int mix_drafting(const struct cli *c, SHA2_CTX *h)
{
    const vb_session_options *o = &c->session;
    if (!cli_is_rejection(c) && !cli_is_relaxed(c))
        return EXIT_DONE;
    mix(h, "draft %s %d p-min %a %s", cli_draft_name(c), cli_draft_tokens(c), (double)o->drafting.p_min,
        o->drafting.settings ? o->drafting.settings : "");
    mix_text(h, "acceptance", o->sampling.acceptance);
    mix_text(h, "draft-sample-method", o->sampling.draft_sample_method);
    mix_text(h, "draft-precision", c->drafting.precision);
    mix(h, "relaxed %d %a %d %d", o->sampling.relaxed_topk, (double)o->sampling.relaxed_delta,
        o->sampling.thinking_begin, o->sampling.thinking_end);
    return c->drafting.model_dir ? mix_model(c, h, c->drafting.model_dir) : EXIT_DONE;
}

int prompt_settings(const struct cli *c, char settings[SETTINGS_SIZE])
{
    SHA2_CTX h;
    char split[256];
    SHA256Init(&h);
    mix(&h, "%s n %lld context %lld ignore-eos %d bos %d %d chat %d", vb_version(), c->n < 0 ? 128 : c->n, c->context,
        c->ignore_eos, c->bos, c->no_bos, c->chat);
    if (c->command->takes & TAKES_SCORE)
        mix(&h, "score logprobs %lld routes %d", c->logprobs, c->with_routes);
    if (c->session.prefill && strcmp(c->session.prefill, "contract"))
        mix(&h, "prefill %s", c->session.prefill);
    mix_text(&h, "system", c->system);
    mix_text(&h, "chat-template-kwargs", c->template_kwargs);
    mix_text(&h, "precision", c->precision ? c->precision : "f32");
    cli_tensor_split(c, split, sizeof split);
    if (*split)
        mix_text(&h, "tensor cores", split);
    if (c->cache_type && strcmp(c->cache_type, "f32"))
        mix_text(&h, "cache-type", c->cache_type);
    mix_text(&h, "conventions", c->conventions);
    mix_sampling(c, &h);
    int code = mix_drafting(c, &h);
    if (code == EXIT_DONE)
        code = mix_model(c, &h, c->model_dir);
    SHA256End(&h, settings);
    return code;
}
