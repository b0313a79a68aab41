/* tests/support/files.c -- temporary directories, files in them, safetensors files and a counting allocator. */
#include "tests/support/files.h"

void make_dir(char path[64])
{
    strcpy(path, "/tmp/verbatim-test-XXXXXX");
    assert_non_null(mkdtemp(path));
}

void remove_dir(const char *path)
{
    DIR *d = opendir(path);
    char file[512];
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            assert_int_equal(unlink(file), 0);
    }
    closedir(d);
    assert_int_equal(rmdir(path), 0);
}

void write_file(const char *dir, const char *name, const void *data, size_t size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

void write_text(const char *dir, const char *name, const char *text)
{
    write_file(dir, name, text, strlen(text));
}

char *safetensors_bytes(const char *header, const void *data, size_t size, size_t *total)
{
    uint64_t n = strlen(header);
    char *bytes = malloc(8 + n + size + 1);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(n >> 8 * i);
    memcpy(bytes + 8, header, n);
    if (size)
        memcpy(bytes + 8 + n, data, size);
    *total = 8 + n + size;
    return bytes;
}

void write_safetensors(const char *dir, const char *name, const char *header, const void *data, size_t size)
{
    size_t total;
    char *bytes = safetensors_bytes(header, data, size, &total);
    write_file(dir, name, bytes, total);
    free(bytes);
}

void forget_place(char *message)
{
    char *line = strstr(message, "line "), *end = line ? strstr(line, ": ") : NULL;
    if (end && strstr(line, ", column ") && strstr(line, ", column ") < end)
        memmove(line, end + 2, strlen(end + 2) + 1);
}

void *counted_alloc(void *context, size_t size)
{
    struct counted *c = context;
    if (c->requests++ == c->fail)
        return NULL;
    c->alive++;
    return malloc(size);
}

void counted_free(void *context, void *block)
{
    if (block)
        ((struct counted *)context)->alive--;
    free(block);
}
