/* tests/support/runs.c -- see runs.h. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>

#include "tests/support/runs.h"

char runs_dir[64];

int runs_begin(void **unused)
{
    (void)unused;
    make_dir(runs_dir);
    return 0;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *place)
{
    (void)st, (void)kind, (void)place;
    return remove(path);
}

void remove_tree(const char *path) { nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

int runs_end(void **unused)
{
    (void)unused;
    remove_tree(runs_dir);
    return 0;
}

const char *run_file(const char *name)
{
    static char path[8][400];
    static int i;
    snprintf(path[i = (i + 1) % 8], sizeof *path, "%s/%s", runs_dir, name);
    return path[i];
}

static void write_documents(const char *name, int documents, uint32_t seed, int masked)
{
    char text[65536] = "";
    for (int i = 0; i < documents; i++) {
        int count = 16 + (int)((seed = seed * 1664525u + 1013904223u) >> 27);
        strcat(text, "{\"tokens\": [");
        for (int k = 0; k < count; k++) {
            seed = seed * 1664525u + 1013904223u;
            snprintf(text + strlen(text), 8, "%s%u", k ? "," : "", 3 + (seed >> 26));
        }
        strcat(text, masked ? "], \"loss_mask\": [" : "]}\n");
        for (int k = 0; k < count && masked; k++)
            snprintf(text + strlen(text), 8, "%s%d%s", k ? "," : "", (k + documents * i) % 3 > 0,
                     k + 1 < count ? "" : "]}\n");
    }
    write_text(runs_dir, name, text);
}

void write_data(const char *name, int documents, uint32_t seed) { write_documents(name, documents, seed, 0); }
void write_masked_data(const char *name, int documents, uint32_t seed) { write_documents(name, documents, seed, 1); }

int same_file(const char *a, const char *b)
{
    size_t n, m;
    char *x = bytes_of(a, &n), *y = bytes_of(b, &m);
    int same = n == m && !memcmp(x, y, n);
    free(x);
    free(y);
    return same;
}

void expect_same_file(const char *a, const char *b)
{
    if (!same_file(a, b))
        fail_msg("%s and %s differ", a, b);
}
