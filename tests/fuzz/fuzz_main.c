/* tests/fuzz/fuzz_main.c -- runs a fuzz target without libFuzzer: on the files given, or on mutations of them.
 *
 *     fuzz_x FILE...                     each file once
 *     fuzz_x -random N SEED FILE...      N inputs, each a file with a few bytes, lines or stretches changed
 *
 * A smoke test for machines without clang; it knows nothing about coverage. The input of a crash is written to
 * crash-SEED-INDEX in the current directory before the target sees it, and removed after. An input that takes more than
 * MOST_SECONDS of processor time or MOST_MEMORY counts as a crash. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include "numbers/numbers.h"

#define MOST_SECONDS 120 /* the longest input seen took 2, and 20 with sanitizers */
#define MOST_MEMORY_MB 2048

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    uint8_t *data;
    size_t size;
};

static uint64_t state;

static size_t below(size_t n) /* splitmix64 */
{
    uint64_t z = splitmix64_next(&state);
    return n ? (size_t)(z % n) : 0;
}

static void *get(size_t size)
{
    void *block = malloc(size + !size);
    if (!block)
        abort();
    return block;
}

static struct input read_input(const char *path)
{
    struct input in = {NULL, 0};
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) {
        perror(path);
        exit(1);
    }
    in.size = (size_t)ftell(f);
    in.data = get(in.size);
    rewind(f);
    if (fread(in.data, 1, in.size, f) != in.size) {
        perror(path);
        exit(1);
    }
    fclose(f);
    return in;
}

/* Replaces data[at, at + gone) by n bytes. */
static void splice(struct input *in, size_t at, size_t gone, const void *bytes, size_t n)
{
    struct input out = {get(in->size - gone + n), in->size - gone + n};
    memcpy(out.data, in->data, at);
    memcpy(out.data + at, bytes, n);
    memcpy(out.data + at + n, in->data + at + gone, in->size - at - gone);
    free(in->data);
    *in = out;
}

static void mutate(struct input *in)
{
    static const char *const words[] = {"0", "-1", "null", "true", "\"\"", "[]", "{}", "[[", "{\"",
                                        "9223372036854775807", "1e999", "4294967296", "16777215", "\\u0000", "\xff",
                                        "\xf0\x9f", "\\", "(", "*", ","};
    size_t at = below(in->size + 1), rest = in->size - at, n = below(1 + (rest < 64 ? rest : 64));
    size_t from = below(in->size + 1), room = in->size - from, m = below(1 + (room < 64 ? room : 64));
    const char *word = words[below(sizeof words / sizeof *words)];
    uint8_t byte = (uint8_t)below(256);
    switch (below(7)) {
    case 0:
        if (rest)
            in->data[at] ^= (uint8_t)(1u << below(8));
        break;
    case 1:
        splice(in, at, rest > 0, &byte, 1);
        break;
    case 2:
        splice(in, at, n, "", 0);
        break;
    case 3:
        splice(in, at, 0, word, strlen(word));
        break;
    case 4:
        splice(in, at, n, word, strlen(word));
        break;
    case 5: /* a stretch of its own elsewhere */
        splice(in, at, n, in->data + from, m);
        break;
    default:
        if (!below(8))
            splice(in, at, rest, "", 0);
    }
}

/* The default action of SIGPROF ends the program too, without a word. */
static void took_too_long(int signal)
{
    static const char message[] = "this input takes too much processor time\n";
    (void)signal;
    if (write(STDERR_FILENO, message, sizeof message - 1) < 0)
        _exit(1);
    abort();
}

static void run_one(const uint8_t *data, size_t size)
{
    struct itimerval limit = {.it_value.tv_sec = MOST_SECONDS}, none = {.it_value.tv_sec = 0};
    struct rusage used;
    signal(SIGPROF, took_too_long);
    setitimer(ITIMER_PROF, &limit, NULL);
    LLVMFuzzerTestOneInput(data, size);
    setitimer(ITIMER_PROF, &none, NULL);
    getrusage(RUSAGE_SELF, &used);
    if (used.ru_maxrss >> 10 > MOST_MEMORY_MB) {
        fprintf(stderr, "this input takes %ld MB of memory\n", used.ru_maxrss >> 10);
        abort();
    }
}

static void run_mutations(long n, const char *seed, const struct input *inputs, size_t n_inputs)
{
    state = strtoull(seed, NULL, 10);
    for (long i = 0; i < n; i++) {
        const struct input *origin = &inputs[below(n_inputs)];
        struct input in = {get(origin->size), origin->size};
        char path[64];
        memcpy(in.data, origin->data, in.size);
        for (size_t k = 1 + below(6); k; k--)
            mutate(&in);
        snprintf(path, sizeof path, "crash-%.20s-%ld", seed, i);
        FILE *f = fopen(path, "wb");
        if (f) {
            fwrite(in.data, 1, in.size, f);
            fclose(f);
        }
        run_one(in.data, in.size);
        remove(path);
        free(in.data);
    }
    printf("%ld inputs from seed %s\n", n, seed);
}

int main(int argc, char **argv)
{
    int random = argc > 3 && !strcmp(argv[1], "-random"), first = random ? 4 : 1;
    if (argc <= first) {
        fprintf(stderr, "usage: %s [-random N SEED] FILE...\n", argv[0]);
        return 2;
    }
    size_t n = (size_t)(argc - first);
    struct input *inputs = get(n * sizeof *inputs);
    for (size_t i = 0; i < n; i++)
        inputs[i] = read_input(argv[first + (int)i]);
    if (random)
        run_mutations(strtol(argv[2], NULL, 10), argv[3], inputs, n);
    for (size_t i = 0; i < n; i++) {
        if (!random)
            run_one(inputs[i].data, inputs[i].size);
        free(inputs[i].data);
    }
    free(inputs);
    return 0;
}
