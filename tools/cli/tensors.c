/* tools/cli/tensors.c -- collects the tensors of a safetensors file, and writes the file. */
#include "tools/cli/tensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int tensors_begin(struct tensors *t, const char *path)
{
    *t = (struct tensors){.data.fd = -1, .names = cli_must(json_object())};
    int fd = new_file_without_name(path, NULL);
    if (fd < 0)
        return errno;
    cli_must(cli_stream_open(&t->data, fd));
    return 0;
}

void tensors_add(struct tensors *t, const char *name, const char *dtype, const size_t *shape, size_t rank,
                 const void *data, size_t size)
{
    fwrite(data, 1, size, t->data.f);
    if ((t->count & (t->count - 1)) == 0) /* the count is 0 or a power of two: the list is full */
        t->list = cli_must(realloc(t->list, (2 * t->count + 1) * sizeof *t->list));
    vb_tensor *to = &t->list[t->count++];
    *to = (vb_tensor){.name = cli_must(strdup(name)), .dtype = dtype, .ndim = (int32_t)rank, .bytes = size};
    for (size_t i = 0; i < rank; i++)
        to->shape[i] = (int64_t)shape[i];
    json_object_set_new(t->names, name, json_true());
    t->size += size;
}

static int show_progress(void *unused, size_t done, size_t total)
{
    (void)unused;
    cli_progress("writing", done, total);
    return cli_stopped();
}

int tensors_write(struct tensors *t, int fd, const char *path, vb_error *err)
{
    fflush(t->data.f);
    char *data = t->size && !t->data.error ? mmap(NULL, t->size, PROT_READ, MAP_PRIVATE, t->data.fd, 0) : NULL,
         *at = data;
    if (t->data.error || data == MAP_FAILED)
        return vb_fail(err, VB_IO, "%s: %s", path, strerror(t->data.error ? t->data.error : errno));
    for (size_t i = 0; i < t->count; i++) {
        t->list[i].data = at;
        at = at ? at + t->list[i].bytes : NULL; /* `at` is NULL if all tensors are empty */
    }
    int code = vb_tensors_write(fd, path, t->list, t->count, show_progress, NULL, err);
    if (data)
        munmap(data, t->size);
    return code;
}

void tensors_close(struct tensors *t)
{
    cli_stream_close(&t->data);
    if (t->data.fd >= 0)
        close(t->data.fd);
    for (size_t i = 0; i < t->count; i++)
        free((char *)(uintptr_t)t->list[i].name);
    free(t->list);
    json_decref(t->names);
    *t = (struct tensors){.data.fd = -1};
}
