/* tools/cli/tensors.c -- a safetensors file: 8 bytes of length, a JSON header padded with spaces to 8, the data. */
#include "tools/cli/tensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail(struct tensors *t)
{
    if (!t->error[0])
        snprintf(t->error, sizeof t->error, "%s: cannot write: %s", t->path, strerror(errno));
    return -1;
}

static char *with_suffix(const char *path, const char *suffix)
{
    size_t room = strlen(path) + strlen(suffix) + 32;
    char *name = malloc(room);
    if (!name)
        abort();
    snprintf(name, room, "%s.%ld%s", path, (long)getpid(), suffix);
    return name;
}

int tensors_begin(struct tensors *t, const char *path)
{
    *t = (struct tensors){.path = strdup(path), .header = json_object()};
    if (!t->path || !t->header)
        abort();
    t->part = with_suffix(path, ".part");
    t->whole = with_suffix(path, ".whole");
    t->data = fopen(t->part, "w+b");
    return t->data ? 0 : fail(t);
}

int tensors_add(struct tensors *t, const char *name, const char *dtype, const size_t *shape, size_t rank, const void *data,
                size_t size)
{
    if (t->error[0])
        return -1;
    if (fwrite(data, 1, size, t->data) != size)
        return fail(t);
    json_t *dimensions = json_array();
    for (size_t i = 0; i < rank; i++)
        json_array_append_new(dimensions, json_integer((json_int_t)shape[i]));
    json_t *entry = json_pack("{s:s,s:o,s:[I,I]}", "dtype", dtype, "shape", dimensions, "data_offsets", (json_int_t)t->size,
                              (json_int_t)(t->size + size));
    if (!entry || json_object_set_new(t->header, name, entry))
        abort();
    t->size += size;
    return 0;
}

static int copy(struct tensors *t, FILE *to, void (*progress)(const char *, size_t, size_t))
{
    static char block[1 << 20];
    rewind(t->data);
    for (size_t done = 0, n; done < t->size; done += n) {
        n = fread(block, 1, sizeof block, t->data);
        if (!n || fwrite(block, 1, n, to) != n)
            return -1;
        if (progress)
            progress("writing", done + n, t->size);
    }
    return 0;
}

int tensors_finish(struct tensors *t, void (*progress)(const char *, size_t, size_t))
{
    char *header = json_dumps(t->header, JSON_COMPACT), spaces[8] = "       ";
    if (!header)
        abort();
    FILE *f = t->error[0] || fflush(t->data) ? NULL : fopen(t->whole, "wb");
    if (f) {
        size_t length = strlen(header), padded = (length + 7) / 8 * 8;
        unsigned char bytes[8];
        for (int i = 0; i < 8; i++)
            bytes[i] = (unsigned char)(padded >> 8 * i);
        int bad = fwrite(bytes, 1, 8, f) != 8 || fwrite(header, 1, length, f) != length ||
                  fwrite(spaces, 1, padded - length, f) != padded - length || copy(t, f, progress);
        if ((fclose(f) != 0) | bad)
            fail(t);
    } else {
        fail(t);
    }
    free(header);
    return t->error[0] ? -1 : 0;
}

int tensors_rename(struct tensors *t) { return t->error[0] || rename(t->whole, t->path) ? fail(t) : 0; }

void tensors_close(struct tensors *t)
{
    if (t->data) {
        fclose(t->data);
        unlink(t->part);
        unlink(t->whole);
    }
    json_decref(t->header);
    free(t->path);
    free(t->part);
    free(t->whole);
    *t = (struct tensors){0};
}
