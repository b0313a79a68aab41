/* tests/fuzz/fuzz_manifest.c -- any bytes as the manifest of a dump that `diff` reads; what is behind the first 0 byte
 * is the dump itself, in the format of safetensors. All rows that come out must lie inside the file. If the bytes begin
 * with "names", they are a file of --names instead, and translate the names of a fixed dump; if they begin with
 * "stats", they are statistics, which are compared with themselves. */
#include "tests/support/fuzz.h"
#include "tools/cli/naming_file.h"
#include "tools/diff/diff.h"

static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]},\"b\":{\"dtype\":"
                             "\"BF16\",\"shape\":[3,4],\"data_offsets\":[24,48]},"
                             "\"tokens\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[48,72]}}";
static char dir[] = "/tmp/verbatim-fuzz-XXXXXX", dump[64], manifest[64], names[64];

static void leave(void)
{
    remove(dump);
    remove(manifest);
    remove(names);
    rmdir(dir);
}

static void write_to(const char *path, const void *begin, size_t size, const void *rest, size_t rest_size)
{
    FILE *f = fopen(path, "wb");
    demand(f && fwrite(begin, 1, size, f) == size && fwrite(rest, 1, rest_size, f) == rest_size && !fclose(f));
}

static void write_fixed(void)
{
    char bytes[8 + sizeof header - 1 + 72] = {(char)(sizeof header - 1)};
    bytes[1] = (char)((sizeof header - 1) >> 8);
    memcpy(bytes + 8, header, sizeof header - 1);
    write_to(dump, bytes, sizeof bytes, "", 0);
}

static void check_side(const struct diff_side *side)
{
    double *x;
    for (size_t i = 0; i < side->count; i++) {
        const struct diff_series *s = &side->series[i];
        demand((x = malloc((s->width + 1) * sizeof *x)) != NULL);
        for (size_t k = 0; k < s->count; k++)
            diff_numbers(s, &s->rows[k], x);
        free(x);
    }
    for (size_t i = 0; i < side->token_count; i++)
        demand(side->tokens[i] >= 0);
}

static void try_stats(struct cli *c, const uint8_t *data, size_t size)
{
    struct diff_side side;
    struct comparison r;
    write_to(manifest, data, size, "", 0);
    if (diff_is_stats(manifest)) {
        if (diff_read(c, &side, manifest, NULL, -1) == EXIT_DONE) {
            check_side(&side);
            diff_note_finite(&side, &side, DIFF_F16);
            diff_compare(&r, &side, &side, NULL);
            comparison_close(&r);
        }
        diff_close(&side);
    }
}

/* Reads a dump without manifest, whose names the file translates. */
static void try_names(struct cli *c, const uint8_t *data, size_t size)
{
    struct diff_side side;
    write_fixed();
    remove(manifest);
    write_to(names, data, size, "", 0);
    c->names = names;
    if (naming_file_read(c, names, &c->naming) == EXIT_DONE) {
        if (diff_read(c, &side, dump, NULL, -1) == EXIT_DONE)
            check_side(&side);
        diff_close(&side);
    }
    naming_file_close(c->naming);
    c->naming = NULL;
    c->names = NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct cli c = {.n = -1};
    struct diff_side side;
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t first = zero ? (size_t)(zero - data) : size;
    if (!*dump) {
        be_silent();
        demand(mkdtemp(dir) != NULL && !atexit(leave));
        snprintf(dump, sizeof dump, "%s/d.safetensors", dir);
        snprintf(manifest, sizeof manifest, "%s/d.jsonl", dir);
        snprintf(names, sizeof names, "%s/names", dir);
    }
    if (size > 5 && !memcmp(data, "names", 5)) {
        try_names(&c, data + 5, size - 5);
        return 0;
    }
    if (size > 5 && !memcmp(data, "stats", 5)) {
        try_stats(&c, data + 5, size - 5);
        return 0;
    }
    if (zero)
        write_to(dump, zero + 1, size - first - 1, "", 0);
    else
        write_fixed();
    write_to(manifest, data, first, "", 0);
    if (diff_read(&c, &side, dump, NULL, -1) == EXIT_DONE)
        check_side(&side);
    diff_close(&side);
    return 0;
}
