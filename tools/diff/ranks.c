/* tools/diff/ranks.c -- reads a dump that has a file for each rank. Each rank is read as a dump of its own, with its
 * manifest if it has one. gather.c joins the values. */
#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/cli/filter.h"
#include "tools/diff/diff.h"

#define MOST_RANKS 1024

/* --- the files of the ranks --- */

struct rank_file {
    char *path;
    long rank;
};

/* Returns the number after the last `word` in `name`, or -1: "TP1_PP0_Rank3_pid77" has the rank 3. */
static long number_after(const char *name, const char *word)
{
    size_t n = strlen(word);
    long found = -1;
    for (const char *p = name; *p; p++) {
        if (strncasecmp(p, word, n) || (p > name && isalpha((unsigned char)p[-1])))
            continue;
        const char *digits = p + n + (p[n] && strchr("_-=.", p[n]) != NULL);
        if (isdigit((unsigned char)*digits) && strspn(digits, "0123456789") < 7)
            found = strtol(digits, NULL, 10);
    }
    return found;
}

static long rank_in(const char *name)
{
    long rank = number_after(name, "rank");
    return rank >= 0 ? rank : number_after(name, "tp");
}

static int is_tensors(const char *name)
{
    size_t n = strlen(name);
    return n > 12 && !strcmp(name + n - 12, ".safetensors");
}

static char *path_in(const char *directory, const char *name)
{
    char *path;
    cli_must(asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path);
    return path;
}

/* The only .safetensors file in a directory, which the caller frees; NULL if there is none, or more than one. */
static char *only_file(const char *path)
{
    DIR *directory = opendir(path);
    char *found = NULL;
    size_t count = 0;
    for (struct dirent *e; directory && (e = readdir(directory));)
        if (is_tensors(e->d_name) && !count++)
            found = path_in(path, e->d_name);
    if (directory)
        closedir(directory);
    if (count == 1)
        return found;
    free(found);
    return NULL;
}

static int by_rank(const void *p, const void *q)
{
    const struct rank_file *a = p, *b = q;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

static void add_file(struct rank_file **files, size_t *count, char *path, long rank)
{
    *files = cli_must(realloc(*files, (*count + 1) * sizeof **files));
    (*files)[(*count)++] = (struct rank_file){path, rank};
}

/* Lists the files of a directory whose names have the numbers of ranks, and the files in directories with such
 * names. */
static void list_directory(const char *path, struct rank_file **files, size_t *count)
{
    DIR *directory = opendir(path);
    for (struct dirent *e; directory && (e = readdir(directory)) && *count < MOST_RANKS;) {
        long rank = rank_in(e->d_name);
        struct stat st;
        if (rank < 0)
            continue;
        char *inside = path_in(path, e->d_name), *file = NULL;
        if (!stat(inside, &st) && S_ISDIR(st.st_mode))
            file = only_file(inside);
        else if (is_tensors(e->d_name))
            file = path_in(path, e->d_name);
        free(inside);
        if (file)
            add_file(files, count, file, rank);
    }
    if (directory)
        closedir(directory);
    if (*count)
        qsort(*files, *count, sizeof **files, by_rank);
}

/* Splits "a.safetensors,b.safetensors": the first file is rank 0. */
static void list_words(const char *path, struct rank_file **files, size_t *count)
{
    size_t length;
    for (const char *item; *count < MOST_RANKS && (item = filter_next(&path, &length));)
        add_file(files, count, cli_must(strndup(item, length)), (long)*count);
}

static int list_files(struct cli *c, const char *path, struct rank_file **files, size_t *count)
{
    struct stat st;
    int found = !stat(path, &st);
    char *whole = path_in(path, "dump.safetensors");
    if (found && S_ISDIR(st.st_mode) && !vb_file_exists(whole))
        list_directory(path, files, count);
    else if (!found && strchr(path, ','))
        list_words(path, files, count);
    free(whole);
    for (size_t i = 1; i < *count; i++)
        if ((*files)[i].rank == (*files)[i - 1].rank)
            return cli_fail(c, EXIT_OTHER, "%s: two dumps are of rank %ld: %s and %s", path, (*files)[i].rank,
                            (*files)[i - 1].path, (*files)[i].path);
    return EXIT_DONE;
}

/* --- reading --- */

/* Adds the rows of another rank. Without a manifest, they come after the rows of the ranks before. */
static int add_rows(struct cli *c, struct diff_side *side, struct diff_series *to, const struct diff_series *from,
                    const char *path)
{
    if (from->width != to->width || from->item != to->item || from->dtype != to->dtype)
        return cli_fail(c, EXIT_OTHER, "%s: %s is %s, in rank %d %s: concat:0 cannot join them", path, to->name,
                        from->shape, side->ranks[0].rank, to->shape);
    to->rows = cli_must(realloc(to->rows, (to->room = to->count + from->count + 1) * sizeof *to->rows));
    for (size_t k = 0; k < from->count; k++) {
        struct diff_row row = from->rows[k];
        row.index = to->known_rows ? row.index : (int32_t)to->count;
        to->rows[to->count++] = row;
    }
    snprintf(to->shape, sizeof to->shape, "[%zu,%zu]", to->count, to->width);
    return EXIT_DONE;
}

/* Makes a side of all values that some rank has. A value has the rows of the first rank that has it, or those of all
 * ranks (concat:0). */
static int unite(struct cli *c, struct diff_side *side)
{
    for (size_t i = 0; i < side->rank_count; i++)
        for (size_t k = 0; k < side->ranks[i].count; k++) {
            const struct diff_series *from = &side->ranks[i].series[k];
            size_t before = side->count;
            struct diff_series *to = diff_series_of(side, from->name, from->depth);
            int rows = diff_joins_rows(c, from->name);
            if (side->count > before)
                diff_copy_series(to, from);
            else if (rows && add_rows(c, side, to, from, side->ranks[i].path) != EXIT_DONE)
                return EXIT_OTHER;
        }
    diff_sort(side);
    return EXIT_DONE;
}

/* The tokens that the ranks have read: those of rank 0, or, if the ranks have different rows of a text, all of them. */
static void unite_tokens(struct diff_side *side)
{
    const struct diff_side *first = &side->ranks[0];
    if (first->has_manifest) {
        diff_find_tokens(side);
    } else if (first->token_count) {
        side->tokens = cli_must(malloc(first->token_count * sizeof *side->tokens));
        memcpy(side->tokens, first->tokens, first->token_count * sizeof *side->tokens);
        side->token_count = first->token_count;
    }
}

static int read_ranks(struct cli *c, struct diff_side *side, const struct rank_file *files, size_t count,
                      const struct naming *names, int layers)
{
    int code = EXIT_DONE;
    side->ranks = cli_must(calloc(count, sizeof *side->ranks));
    side->layers = layers;
    for (size_t i = 0; i < count && code == EXIT_DONE; i++) {
        code = diff_read(c, &side->ranks[i], files[i].path, names, layers);
        side->ranks[i].rank = (int)files[i].rank;
        side->rank_count = i + 1;
        side->layers = side->layers < 0 ? side->ranks[i].layers : side->layers;
        side->has_manifest |= side->ranks[i].has_manifest;
        side->has_steps |= side->ranks[i].has_steps;
        if (code == EXIT_DONE && side->ranks[i].has_manifest != side->ranks[0].has_manifest)
            code = cli_fail(c, EXIT_OTHER, "%s and %s: one has a manifest, and one has none", files[0].path,
                            files[i].path);
        if (code == EXIT_DONE && side->ranks[i].is_stats)
            code = cli_fail(c, EXIT_OTHER, "%s: it has statistics, which cannot be joined", files[i].path);
        if (i == 0 && code == EXIT_DONE)
            json_array_extend(side->notes, side->ranks[0].notes);
    }
    if (code == EXIT_DONE)
        code = unite(c, side);
    if (code == EXIT_DONE)
        unite_tokens(side);
    return code;
}

int diff_read_ranks(struct cli *c, struct diff_side *side, const char *path, const struct naming *names, int layers)
{
    struct rank_file *files = NULL;
    size_t count = 0;
    int code = list_files(c, path, &files, &count);
    if (code == EXIT_DONE && !count) {
        code = diff_read(c, side, path, names, layers);
    } else {
        *side = (struct diff_side){.path = path, .kind = "dump", .notes = json_array(), .places = json_object()};
        if (code == EXIT_DONE)
            code = read_ranks(c, side, files, count, names, layers);
        for (size_t i = 0; i < count; i++) /* messages name the files */
            diff_own(side, files[i].path);
    }
    free(files);
    return code;
}
