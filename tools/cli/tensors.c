/* tools/cli/tensors.c -- a safetensors file: 8 bytes of length, a JSON header padded with spaces to 8, the data. */
#include "tools/cli/tensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int tensors_begin(struct tensors *t, const char *path)
{
    *t = (struct tensors){.data.fd = -1, .header = cli_must(json_object())};
    int fd = new_file_without_name(path, NULL);
    if (fd < 0)
        return errno;
    cli_must(cli_stream_open(&t->data, fd));
    return 0;
}

void tensors_add(struct tensors *t, const char *name, const char *dtype, const size_t *shape, size_t rank, const void *data,
                 size_t size)
{
    fwrite(data, 1, size, t->data.f);
    json_t *dimensions = json_array();
    for (size_t i = 0; i < rank; i++)
        json_array_append_new(dimensions, json_integer((json_int_t)shape[i]));
    json_t *entry = json_pack("{s:s,s:o,s:[I,I]}", "dtype", dtype, "shape", dimensions, "data_offsets", (json_int_t)t->size,
                              (json_int_t)(t->size + size));
    json_object_set_new(t->header, name, cli_must(entry));
    t->size += size;
}

int tensors_write(struct tensors *t, FILE *to, void (*progress)(const char *, size_t, size_t))
{
    char *header = cli_must(json_dumps(t->header, JSON_COMPACT)), spaces[8] = "       ";
    size_t length = strlen(header), padded = (length + 7) / 8 * 8;
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(padded >> 8 * i);
    fwrite(bytes, 1, 8, to);
    fwrite(header, 1, length, to);
    fwrite(spaces, 1, padded - length, to);
    free(header);
    return cli_stream_copy(&t->data, to, t->size, progress);
}

void tensors_close(struct tensors *t)
{
    cli_stream_close(&t->data);
    if (t->data.fd >= 0)
        close(t->data.fd);
    json_decref(t->header);
    *t = (struct tensors){.data.fd = -1};
}
