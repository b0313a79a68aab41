/* tools/training/kept.c -- rows of the frozen model that a run keeps on disk (tools/training/hidden.h). */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/base/hash64.h"
#include "tools/training/training.h"

enum { HASHES, HIDDEN, FINAL, KINDS };

/* The rows of the documents to train on, or of those held out. */
struct kept_part {
    const struct order *order;
    const int32_t *ids;
    size_t tokens, at[KINDS];  /* where the tensors begin in the file */
    unsigned char *known;      /* [pieces]: the rows are there, and their hash was compared */
};

struct kept_states {
    int fd;
    char path[4096];
    unsigned char *map; /* NULL: not mapped */
    size_t size, width, final; /* of the file, in bytes; lengths of the rows, in numbers; final 0: there are none */
    uint64_t seed; /* of hashes */
    struct kept_part part[2];
};

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static int failed(const struct training *r, const struct kept_states *k)
{
    return cli_fail(r->c, EXIT_OTHER, "%s: %s", k->path, strerror(errno));
}

/* Adds a tensor to the header. *end: the bytes of the tensors so far. Tensors follow each other without gaps. */
static size_t place(json_t *header, const char *prefix, const char *name, size_t rows, size_t cols, size_t size,
                    size_t *end)
{
    char full[64];
    size_t first = *end;
    *end += rows * (cols ? cols : 1) * size;
    json_t *shape = cols ? json_pack("[I,I]", (json_int_t)rows, (json_int_t)cols) : json_pack("[I]", (json_int_t)rows);
    snprintf(full, sizeof full, "%s%s", prefix, name);
    json_object_set_new(header, full,
                        json_pack("{s:s,s:o,s:[I,I]}", "dtype", cols ? "F32" : "I64", "shape", shape, "data_offsets",
                                  (json_int_t)first, (json_int_t)*end));
    return first;
}

/* Lays the file out. Returns the bytes before the tensors: their number, JSON, and spaces, so that the tensors are
 * aligned. */
static char *header_of(struct kept_states *k, size_t d, size_t *size)
{
    static const char *const prefix[] = {"", "held_out."};
    json_t *header = json_object();
    size_t end = 0;
    for (int i = 0; i < 2; i++)
        k->part[i].at[HASHES] = place(header, prefix[i], "hashes", k->part[i].order->pieces, 0, 8, &end);
    for (int i = 0; i < 2; i++) {
        k->part[i].at[HIDDEN] = place(header, prefix[i], "hidden_states", k->part[i].tokens, k->width, 4, &end);
        if (k->final)
            k->part[i].at[FINAL] = place(header, prefix[i], "final", k->part[i].tokens, d, 4, &end);
    }
    char seed[17];
    snprintf(seed, sizeof seed, "%016llx", (unsigned long long)k->seed);
    json_object_set_new(header, "__metadata__",
                        json_pack("{s:s,s:s}", "format", "verbatim.hidden_states.1", "of", seed));
    char *text = cli_must(json_dumps(header, JSON_COMPACT));
    json_decref(header);
    uint64_t length = strlen(text), padded = (8 + length + 63) / 64 * 64 - 8;
    char *all = cli_must(malloc(8 + padded));
    memcpy(all, &padded, 8);
    memcpy(all + 8, text, length);
    memset(all + 8 + length, ' ', padded - length);
    free(text);
    *size = 8 + padded;
    k->size = *size + end;
    for (int i = 0; i < 2; i++)
        for (int kind = 0; kind < KINDS; kind++)
            k->part[i].at[kind] += *size;
    return all;
}

static int write_at(const struct training *r, const struct kept_states *k, const void *data, size_t bytes, size_t at)
{
    const char *from = data;
    for (ssize_t done; bytes; from += done, at += (size_t)done, bytes -= (size_t)done)
        if ((done = pwrite(k->fd, from, bytes, (off_t)at)) <= 0) {
            errno = done ? errno : EIO;
            return failed(r, k);
        }
    return EXIT_DONE;
}

/* Whether the file has this header and its size. */
static int is_ours(const struct kept_states *k, const char *header, size_t size, size_t bytes)
{
    char *found = cli_must(malloc(size));
    int same = bytes == k->size && pread(k->fd, found, size, 0) == (ssize_t)size && !memcmp(found, header, size);
    free(found);
    return same;
}

/* Refuses a file for which the disk has no room. `has`: the bytes that the file already takes. */
static int check_room(const struct training *r, const struct kept_states *k, size_t has)
{
    struct statvfs disk;
    if (fstatvfs(k->fd, &disk))
        return EXIT_DONE; /* not every file system says it; writing fails later */
    double left = (double)disk.f_bavail * (double)disk.f_frsize, wanted = (double)k->size - (double)has;
    return wanted <= left
               ? EXIT_DONE
               : cli_fail(r->c, EXIT_OTHER, "%s: the hidden states need %.1f GB, and the disk has %.1f GB left",
                          k->path, wanted / 1e9, left / 1e9);
}

static int open_file(struct training *r, struct kept_states *k, const char *header, size_t size)
{
    struct stat st;
    k->fd = open(k->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (k->fd < 0 || fstat(k->fd, &st))
        return failed(r, k);
    int ours = is_ours(k, header, size, (size_t)st.st_size);
    int code = check_room(r, k, ours ? (size_t)st.st_blocks * 512 : 0);
    if (code == EXIT_DONE && !ours) {
        if (ftruncate(k->fd, 0) || ftruncate(k->fd, (off_t)k->size)) /* with zeros, which need no room yet */
            return failed(r, k);
        code = write_at(r, k, header, size, 0);
    }
    if (code != EXIT_DONE)
        return code;
    k->map = mmap(NULL, k->size, PROT_READ, MAP_SHARED, k->fd, 0);
    if (k->map == MAP_FAILED) {
        k->map = NULL;
        return failed(r, k);
    }
    if (!r->c->json)
        printf("hidden states are kept in %s, up to %.1f MB\n", k->path, (double)k->size / 1e6);
    return EXIT_DONE;
}

int kept_open(struct training *r)
{
    const struct documents *documents[] = {&r->data, &r->held};
    const struct order *orders[] = {&r->order, &r->held_order};
    struct kept_states *k = r->kept = cli_must(calloc(1, sizeof *k));
    size_t d = (size_t)vb_hidden_size(r->c->model), size;
    int final;
    trainer_takes(r->trainer, &k->width, &final);
    k->final = final ? d : 0;
    k->fd = -1;
    k->seed = hash64(r->model_hash, &r->data_hash, sizeof r->data_hash);
    snprintf(k->path, sizeof k->path, "%s/hidden_states.safetensors", r->dir);
    for (int i = 0; i < 2; i++)
        k->part[i] = (struct kept_part){.order = orders[i], .ids = documents[i]->ids, .tokens = documents[i]->tokens,
                                        .known = cli_must(calloc(orders[i]->pieces + 1, 1))};
    char *header = header_of(k, d, &size);
    int code = open_file(r, k, header, size);
    free(header);
    return code;
}

void kept_close(struct training *r)
{
    struct kept_states *k = r->kept;
    if (!k)
        return;
    if (k->map)
        munmap(k->map, k->size);
    if (k->fd >= 0)
        close(k->fd);
    for (int i = 0; i < 2; i++)
        free(k->part[i].known);
    free(k);
    r->kept = NULL;
}

/* ---- sequences --------------------------------------------------------------------------------------------------- */

static size_t width_of(const struct kept_states *k, int kind) { return kind == HIDDEN ? k->width : k->final; }

/* Where the rows of a piece are in the file. */
static size_t rows_at(const struct kept_states *k, const struct kept_part *p, int kind, size_t number)
{
    return p->at[kind] + p->order->piece[number].first * width_of(k, kind) * 4;
}

/* Never 0. */
static uint64_t hash_of(const struct kept_states *k, const struct order_piece *piece, const void *hidden,
                        const void *final)
{
    uint64_t hash = hash64(hash64(k->seed, piece, sizeof *piece), hidden, piece->count * k->width * 4);
    hash = k->final ? hash64(hash, final, piece->count * k->final * 4) : hash;
    return hash ? hash : 1;
}

static int is_there(const struct kept_states *k, struct kept_part *p, size_t number)
{
    uint64_t hash;
    if (!p->known[number]) {
        memcpy(&hash, k->map + p->at[HASHES] + 8 * number, sizeof hash);
        p->known[number] = hash && hash == hash_of(k, &p->order->piece[number], k->map + rows_at(k, p, HIDDEN, number),
                                                   k->map + rows_at(k, p, FINAL, number));
    }
    return p->known[number];
}

/* Computes and writes the rows of some pieces. */
static int compute(struct training *r, struct kept_states *k, struct kept_part *p, const size_t *numbers, size_t count)
{
    struct training_sequence *list = cli_must(calloc(count, sizeof *list));
    float **rows[KINDS] = {NULL};
    vb_error err;
    int code = EXIT_DONE;
    for (int kind = HIDDEN; kind < KINDS; kind++)
        rows[kind] = cli_must(calloc(count, sizeof **rows));
    for (size_t i = 0; i < count; i++) {
        const struct order_piece *piece = &p->order->piece[numbers[i]];
        list[i] = (struct training_sequence){.tokens = p->ids + piece->first, .count = piece->count};
        for (int kind = HIDDEN; kind < KINDS; kind++)
            rows[kind][i] = cli_must(malloc(piece->count * width_of(k, kind) * 4 + 1));
    }
    if (trainer_rows(r->trainer, list, count, rows[HIDDEN], k->final ? rows[FINAL] : NULL, &err))
        code = cli_error(r->c, &err);
    for (size_t i = 0; i < count && code == EXIT_DONE; i++) {
        const struct order_piece *piece = &p->order->piece[numbers[i]];
        uint64_t hash = hash_of(k, piece, rows[HIDDEN][i], rows[FINAL][i]);
        for (int kind = HIDDEN; kind < KINDS && code == EXIT_DONE; kind++)
            code = write_at(r, k, rows[kind][i], piece->count * width_of(k, kind) * 4, rows_at(k, p, kind, numbers[i]));
        if (code == EXIT_DONE)
            code = write_at(r, k, &hash, sizeof hash, p->at[HASHES] + 8 * numbers[i]);
        p->known[numbers[i]] = code == EXIT_DONE;
    }
    for (int kind = HIDDEN; kind < KINDS; kind++) {
        for (size_t i = 0; i < count; i++)
            free(rows[kind][i]);
        free(rows[kind]);
    }
    free(list);
    return code;
}

int kept_give(struct training *r, int held, const size_t *numbers, struct training_sequence *list, size_t count)
{
    struct kept_states *k = r->kept;
    struct kept_part *p = &k->part[held];
    size_t *missing = cli_must(calloc(count + 1, sizeof *missing)), n = 0, tokens = 0;
    int code = EXIT_DONE;
    for (size_t i = 0; i < count && code == EXIT_DONE; i++) {
        if (!is_there(k, p, numbers[i])) {
            missing[n++] = numbers[i];
            tokens += list[i].count;
        }
        if (n && (i + 1 == count || tokens >= (size_t)r->c->train.micro_tokens)) {
            code = compute(r, k, p, missing, n);
            n = tokens = 0;
        }
    }
    free(missing);
    for (size_t i = 0; i < count && code == EXIT_DONE; i++) {
        list[i].hidden = (const float *)(const void *)(k->map + rows_at(k, p, HIDDEN, numbers[i]));
        list[i].final = k->final ? (const float *)(const void *)(k->map + rows_at(k, p, FINAL, numbers[i])) : NULL;
    }
    return code;
}
