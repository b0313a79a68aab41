/* tools/tokenize.c -- `verbatim tokenize`: prints the token ids of a text, or the text of token ids. */
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"

static int decode(struct cli *c)
{
    int32_t *ids;
    size_t count;
    int code = cli_ids(c, c->decode, &ids, &count);
    if (code != EXIT_DONE)
        return code;
    for (size_t i = 0; i < count && code == EXIT_DONE; i++)
        if (ids[i] >= vb_tokenizer_size(c->tokenizer))
            code = cli_fail(c, EXIT_USAGE, "token %zu is %d, outside the vocabulary of %d", i, ids[i],
                            vb_tokenizer_size(c->tokenizer));
    if (code == EXIT_DONE) {
        size_t size;
        char *text = cli_text(c, ids, count, SIZE_MAX, &size);
        if (c->json) {
            code = cli_print_json(json_pack("{s:s%}", "text", text, size));
        } else {
            fwrite(text, 1, size, stdout);
            putchar('\n');
        }
        free(text);
    }
    free(ids);
    return code;
}

struct tally {
    int32_t id;
    size_t count;
};

/* The most frequent id first; among equally frequent ids, the lowest first. */
static int by_frequency(const void *a, const void *b)
{
    const struct tally *x = a, *y = b;
    return x->count != y->count ? (x->count < y->count) - (x->count > y->count) : (x->id > y->id) - (x->id < y->id);
}

/* Replaces ids[0..*count) by at most `most` of the ids that occur in them, the most frequent first. */
static void keep_most_frequent(const struct cli *c, int32_t *ids, size_t *count, size_t most)
{
    size_t size = (size_t)vb_tokenizer_size(c->tokenizer), kept = 0;
    struct tally *tallies = calloc(size, sizeof *tallies);
    cli_must(tallies);
    for (size_t i = 0; i < size; i++)
        tallies[i].id = (int32_t)i;
    for (size_t i = 0; i < *count; i++)
        tallies[ids[i]].count++;
    qsort(tallies, size, sizeof *tallies, by_frequency);
    for (; kept < size && kept < most && tallies[kept].count; kept++)
        ids[kept] = tallies[kept].id;
    *count = kept;
    free(tallies);
}

static int encode(struct cli *c, const char *name, const char *text, size_t size)
{
    int32_t *ids;
    size_t count;
    if (c->bos && vb_bos_token(c->tokenizer) < 0)
        return cli_fail(c, EXIT_USAGE, "--bos: the tokenizer has no BOS token");
    int code = cli_encode(c, name, text, size, !c->no_special, &ids, &count);
    if (code != EXIT_DONE)
        return code;
    if (c->most_frequent)
        keep_most_frequent(c, ids, &count, (size_t)c->most_frequent);
    if (c->json) {
        json_t *list = json_array();
        if (c->bos)
            json_array_append_new(list, json_integer(vb_bos_token(c->tokenizer)));
        for (size_t i = 0; i < count; i++)
            json_array_append_new(list, json_integer(ids[i]));
        code = cli_print_json(list);
    } else {
        if (c->bos)
            printf(count ? "%d," : "%d", vb_bos_token(c->tokenizer));
        for (size_t i = 0; i < count; i++)
            printf(i ? ",%d" : "%d", ids[i]);
        putchar('\n');
    }
    free(ids);
    return code;
}

static int run(struct cli *c)
{
    vb_error err;
    if (!!c->text + !!c->file + !!c->decode != 1)
        return cli_fail(c, EXIT_USAGE, "wanted one of TEXT, --file and --decode, found %d",
                        !!c->text + !!c->file + !!c->decode);
    if (c->most_frequent && (c->decode || c->bos))
        return cli_fail(c, EXIT_USAGE, "--most-frequent counts the tokens of a text; it excludes --decode and --bos");
    if (vb_tokenizer_open(&c->tokenizer, c->model_dir, NULL, &err))
        return cli_error(c, &err);
    if (c->decode)
        return decode(c);
    if (c->text)
        return encode(c, "TEXT", c->text, strlen(c->text));
    char *text;
    size_t size;
    if (vb_read_input(NULL, c->file, &text, &size, &err))
        return cli_error(c, &err);
    int code = encode(c, c->file, text, size);
    vb_free(NULL, text);
    return code;
}

static const struct note notes[] = {
    {"--bos", "Put the BOS token before the text (default: no token is added)."},
    {"--json", "Print a JSON array of ids, or with --decode, {\"text\": ...}."},
    {NULL, NULL}};

const struct command command_tokenize = {
    "tokenize", "turn text into token ids, or ids into text",
    "MODEL (TEXT | --file FILE | --decode IDS) [OPTIONS]",
    "Prints the token ids of exactly this text, separated by commas. MODEL may be a GGUF file. It may also be a "
    "directory that\n"
    "contains only tokenizer.json, or only tiktoken.model and tokenizer_config.json. If TEXT begins with a dash, put "
    "-- before it.\n",
    TAKES_MODEL | TAKES_TEXT, run, notes, 0, NULL};
