/* tools/mpi/mpi.c -- the `verbatim` command in several processes that MPI has started: verbatim-mpi (Open MPI) and verbatim-mpich (MPICH).
 *
 * Rank 0 runs the command. The other ranks read only --isa and --threads from their command line, so that they may differ, and follow
 * rank 0. This is the only file that includes mpi.h. */
#include <mpi.h>

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli/cli.h"

#define MOST_RANKS 1024
#define PATIENCE 2e-3 /* seconds of waiting after which a rank sleeps between two looks */

struct transport {
    int count;
    int size[MOST_RANKS], offset[MOST_RANKS];
};

/* Exchanges bytes. A rank that waits long, because rank 0 is idle, sleeps. */
static void all_gather(void *context, void *buffer, const size_t *offset)
{
    struct transport *t = context;
    MPI_Request request;
    for (int i = 0; i < t->count; i++) {
        if (offset[i + 1] > INT_MAX) {
            fputs("verbatim: an exchange of more than 2 GiB\n", stderr);
            MPI_Abort(MPI_COMM_WORLD, EXIT_OTHER);
        }
        t->offset[i] = (int)offset[i];
        t->size[i] = (int)(offset[i + 1] - offset[i]);
    }
    MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer, t->size, t->offset, MPI_BYTE, MPI_COMM_WORLD, &request);
    double begun = cli_seconds();
    for (int done = 0, looks = 0; !done; looks++) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done && looks % 64 == 63)
            sched_yield();
        if (!done && looks % 1024 == 1023 && cli_seconds() - begun > PATIENCE)
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

/* Returns the value of an option, "--NAME VALUE" or "--NAME=VALUE", or NULL. */
static const char *value_of(int argc, char **argv, const char *name)
{
    size_t size = strlen(name);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], name) && i + 1 < argc)
            return argv[i + 1];
        if (!strncmp(argv[i], name, size) && argv[i][size] == '=')
            return argv[i] + size + 1;
    }
    return NULL;
}

/* Returns this rank's part of the processors that it may use: of those of its machine, if the launcher did not bind it. */
static int own_threads(void)
{
    MPI_Comm machine;
    cpu_set_t set;
    int ranks = 1;
    CPU_ZERO(&set);
    int processors = sched_getaffinity(0, sizeof set, &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_size(machine, &ranks);
    MPI_Comm_free(&machine);
    if (processors < (int)sysconf(_SC_NPROCESSORS_ONLN)) /* bound: these processors are this rank's alone */
        return processors;
    return processors / ranks ? processors / ranks : 1;
}

/* Reads "2,1,1" into `weights`. Returns 0 if it does not have `count` numbers above 0. */
static int read_weights(const char *text, uint32_t *weights, int count)
{
    for (int i = 0; i < count; i++) {
        char *end;
        unsigned long weight = strtoul(text, &end, 10);
        if (end == text || *text == '-' || !weight || weight > UINT32_MAX || *end != (i + 1 < count ? ',' : 0))
            return 0;
        weights[i] = (uint32_t)weight;
        text = end + 1;
    }
    return 1;
}

static int is_over;

/* Some errors end the process at once. The other ranks would wait for ever. */
static void abort_others(void)
{
    if (!is_over)
        MPI_Abort(MPI_COMM_WORLD, EXIT_OTHER);
}

static int start(vb_ranks **ranks, struct transport *t, int rank, int argc, char **argv)
{
    static uint32_t weights[MOST_RANKS];
    const char *shares = value_of(argc, argv, "--ranks-weights"), *threads = value_of(argc, argv, "--threads");
    char host[MPI_MAX_PROCESSOR_NAME] = "";
    int length, own = own_threads();
    threads = threads ? threads : value_of(argc, argv, "-t");
    vb_error err = {0};
    MPI_Get_processor_name(host, &length);
    vb_ranks_options o = {.rank = rank, .count = t->count, .all_gather = all_gather, .context = t, .host = host,
                          .threads = threads ? atoi(threads) : own, .isa = value_of(argc, argv, "--isa")};
    if (shares && !read_weights(shares, weights, t->count)) {
        if (!rank)
            fprintf(stderr, "verbatim: --ranks-weights is %.64s, wanted %d numbers above 0 with commas between them\n", shares, t->count);
        return EXIT_USAGE;
    }
    o.weights = shares ? weights : NULL;
    if (!vb_ranks_open(ranks, &o, &err))
        return EXIT_DONE;
    if (!rank)
        fprintf(stderr, "verbatim: %s\n", err.message);
    return EXIT_OTHER;
}

int main(int argc, char **argv)
{
    static struct transport transport;
    int given, rank;
    vb_ranks *ranks = NULL;
    vb_error err = {0};
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &given);
    atexit(abort_others);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &transport.count);
    int code = transport.count > MOST_RANKS || given < MPI_THREAD_SERIALIZED ? EXIT_OTHER : start(&ranks, &transport, rank, argc, argv);
    if (code == EXIT_DONE && rank) {
        if (vb_ranks_follow(ranks, &err)) {
            fprintf(stderr, "verbatim: rank %d: %s\n", rank, err.message);
            return EXIT_OTHER; /* abort_others */
        }
    } else if (code == EXIT_DONE) {
        code = cli_main(argc, argv, ranks);
    }
    vb_ranks_close(ranks);
    MPI_Finalize();
    is_over = 1;
    return code;
}
