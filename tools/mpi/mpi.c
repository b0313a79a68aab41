/* tools/mpi/mpi.c -- the `verbatim` command in several processes that MPI has started: verbatim-mpi (Open MPI) and
 * verbatim-mpich (MPICH).
 *
 * Rank 0 runs the command. The other ranks have the same command line, in which only --isa and --threads may differ;
 * they read these two options, and follow rank 0. This is the only file that includes mpi.h.
 *
 * If one process ends without MPI_Finalize, the launcher ends all others. So a rank never waits for one that is
 * gone. */
#include <mpi.h>

#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli/cli.h"
#include "tools/mpi/measure.h"
#include "numbers/numbers.h"

#define MOST_RANKS 1024
#define POLLING 2e-3          /* for transport.polling */
#define CROWDED_POLLING 20e-6 /* the same, if the machine has more ranks than processors */
#define LONGEST_SLEEP 5e-3    /* seconds */
#define GRACE 5               /* after a signal to another rank: the seconds in which rank 0 must end the run */

struct transport {
    int count;
    double polling; /* seconds of waiting after which this rank sleeps between two polls */
    int size[MOST_RANKS], offset[MOST_RANKS];
};

/* ---- exchanges --------------------------------------------------------------------------------------------------- */

/* Waits for an exchange. After `polling` seconds (rank 0 may be idle), the rank sleeps between two polls, each time for
 * a sixteenth of the time that it has waited. */
static void wait_for(MPI_Request *request, double polling)
{
    double begun = cli_seconds(), waited = 0;
    for (int done = 0, polls = 1;; polls++) {
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done)
            return;
        if (waited > polling)
            nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * (waited / 16 < LONGEST_SLEEP ? waited / 16
                                                                                              : LONGEST_SLEEP))},
                      NULL);
        else if (polls % 8 == 0) /* with more ranks than processors, the ranks that this one waits for may need its
                                    processor */
            sched_yield();
        if (waited > polling || polls % 64 == 0)
            waited = cli_seconds() - begun;
    }
}

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
    wait_for(&request, t->polling);
}

/* ---- the command line -------------------------------------------------------------------------------------------- */

/* Returns how many arguments the option `name` has at argv[i] (1 or 2), or 0 if argv[i] is not this option. Sets *value
 * to its value. */
static int own_option(int argc, char **argv, int i, const char *name, const char **value)
{
    size_t size = strlen(name);
    if (strncmp(argv[i], name, size))
        return 0;
    if (argv[i][size] == '=') {
        *value = argv[i] + size + 1;
        return 1;
    }
    if (argv[i][size] || i + 1 == argc)
        return 0;
    *value = argv[i + 1];
    return 2;
}

/* The command line of a rank. Rank 0 receives those of all ranks. */
struct words {
    uint64_t hash;                  /* of the arguments that must be equal on all ranks */
    char isa[16], threads[16];      /* texts, empty if not given */
    char host[MPI_MAX_PROCESSOR_NAME];
};

static void copy(char *to, size_t room, const char *text) { snprintf(to, room, "%s", text ? text : ""); }

static struct words read_words(int argc, char **argv)
{
    const char *isa = NULL, *threads = NULL;
    int length;
    struct words w = {.hash = FNV1A_START};
    for (int i = 1, used; i < argc; i += used) {
        used = own_option(argc, argv, i, "--isa", &isa);
        if (!used)
            used = own_option(argc, argv, i, "--threads", &threads);
        if (!used)
            used = own_option(argc, argv, i, "-t", &threads);
        for (const char *c = argv[i]; !used; c++) {
            w.hash = fnv1a_word(w.hash, (unsigned char)*c);
            if (!*c)
                used = 1;
        }
    }
    copy(w.isa, sizeof w.isa, isa);
    copy(w.threads, sizeof w.threads, threads);
    MPI_Get_processor_name(w.host, &length);
    return w;
}

/* Returns 0 if the text is not a number of threads. No text is the number 0. */
static int read_threads(const char *text, int *threads)
{
    char *end;
    long number = strtol(text, &end, 10);
    *threads = (int)number;
    return !*text || (*end == 0 && number >= 1 && number <= 4096);
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

/* Rank 0 compares the command lines with its own. Errors in its own are reported later, by cli_main. Returns an exit
 * code. */
static int check_words(const struct words *all, int count)
{
    for (int i = 1; i < count; i++) {
        int threads;
        if (all[i].hash != all[0].hash)
            fprintf(stderr,
                    "verbatim: rank %d (%s) has another command line than rank 0 (%s); only --isa and --threads may "
                    "differ\n",
                    i, all[i].host, all[0].host);
        else if (!read_threads(all[i].threads, &threads) && strcmp(all[i].threads, all[0].threads))
            fprintf(stderr, "verbatim: rank %d (%s): --threads is %s, wanted an integer from 1 to 4096\n", i,
                    all[i].host, all[i].threads);
        else
            continue;
        return EXIT_USAGE;
    }
    return EXIT_DONE;
}

/* All ranks return the same exit code. */
static int agree_on_words(const struct words *own, int rank, int count)
{
    struct words *all = rank ? NULL : cli_must(calloc((size_t)count, sizeof *all));
    MPI_Gather(own, sizeof *own, MPI_BYTE, all, sizeof *own, MPI_BYTE, 0, MPI_COMM_WORLD);
    int code = rank ? EXIT_DONE : check_words(all, count);
    MPI_Bcast(&code, 1, MPI_INT, 0, MPI_COMM_WORLD);
    free(all);
    return code;
}

static const char *weights_of(int argc, char **argv)
{
    const char *value = NULL;
    for (int i = 1; i < argc; i++)
        own_option(argc, argv, i, "--ranks-weights", &value);
    return value;
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

/* Counts the processors that this rank may use, and the ranks of its machine, itself included, that may use one of
 * them, too. */
static void count_processors(int *processors, int *sharing)
{
    MPI_Comm machine;
    cpu_set_t own, *all, common;
    int ranks;
    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof own, &own)) /* more than 1024 processors */
        CPU_SET(0, &own);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_size(machine, &ranks);
    all = cli_must(calloc((size_t)ranks, sizeof *all));
    MPI_Allgather(&own, sizeof own, MPI_BYTE, all, sizeof own, MPI_BYTE, machine);
    MPI_Comm_free(&machine);
    *processors = CPU_COUNT(&own);
    *sharing = 0;
    for (int i = 0; i < ranks; i++) {
        CPU_AND(&common, &own, &all[i]);
        *sharing += CPU_COUNT(&common) > 0;
    }
    free(all);
}

/* ---- signals and exits ------------------------------------------------------------------------------------------- */

/* Launchers send SIGINT and SIGTERM to all ranks. Rank 0 handles a signal as a single process does, and other ranks
 * continue until it ends. If rank 0 does not end, for example because it did not receive the signal, this rank ends,
 * and the launcher then ends all. */
static void leave_it_to_rank_0(int number)
{
    signal(number, SIG_DFL);
    alarm(GRACE);
}

static int is_over;

static int end_code; /* rank 0's exit code */

static void end_now(int number)
{
    (void)number;
    _exit(end_code);
}

/* MPICH 4.0 with UCX over TCP sometimes never returns from MPI_Finalize: one rank waits for an answer of another rank,
 * which already waits in the launcher's barrier. All work is done by then, so an alarm ends the process. */
static void finish(int code)
{
    fflush(NULL);
    end_code = code;
    signal(SIGALRM, end_now);
    alarm(GRACE);
    MPI_Finalize();
    is_over = 1;
    alarm(0);
}

/* Some errors end the process at once. The other ranks would wait for ever. */
static void abort_others(void)
{
    if (!is_over)
        MPI_Abort(MPI_COMM_WORLD, EXIT_OTHER);
}

static int follow(vb_ranks *ranks, const char *name, int is_server)
{
    vb_error err = {0};
    cli_begin();
    signal(SIGINT, leave_it_to_rank_0);
    if (is_server)
        signal(SIGTERM, leave_it_to_rank_0);
    if (!vb_ranks_follow(ranks, &err))
        return EXIT_DONE;
    fprintf(stderr, "verbatim: %s%s\n", name, err.message);
    exit(EXIT_OTHER); /* abort_others */
}

/* Measures the memory bandwidth of each rank while all ranks read. Returns 0 if a rank has no memory for the
 * measurement. */
static int measure_weights(uint32_t *weights, int rank, int count, int threads, const char *host)
{
    int all = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    uint32_t own = measure_read_speed(threads);
    MPI_Allgather(&own, 1, MPI_UINT32_T, weights, 1, MPI_UINT32_T, MPI_COMM_WORLD);
    if (!own)
        fprintf(stderr, "verbatim: rank %d (%s): no memory to measure how fast it reads\n", rank, host);
    for (int i = 0; i < count; i++)
        all &= weights[i] > 0;
    return all;
}

static int start(vb_ranks **ranks, struct transport *t, int rank, const struct words *own, int argc, char **argv)
{
    static uint32_t weights[MOST_RANKS];
    const char *shares = weights_of(argc, argv);
    vb_error err = {0};
    int threads, processors, sharing;
    count_processors(&processors, &sharing);
    t->polling = sharing > processors ? CROWDED_POLLING : POLLING;
    if (!read_threads(own->threads, &threads) || !threads) /* cli_main reports an error in --threads of rank 0 */
        threads = processors > sharing ? processors / sharing : 1;
    vb_ranks_options o = {.rank = rank, .count = t->count, .weights = weights, .all_gather = all_gather, .context = t,
                          .host = own->host, .threads = threads, .isa = *own->isa ? own->isa : NULL};
    if (!shares)
        o.weights = NULL;
    else if (!strcmp(shares, "measured") && !measure_weights(weights, rank, t->count, threads, own->host))
        return EXIT_OTHER;
    else if (strcmp(shares, "measured") && !read_weights(shares, weights, t->count)) {
        if (!rank)
            fprintf(stderr,
                    "verbatim: --ranks-weights is %.64s, wanted \"measured\", or %d numbers above 0 with commas "
                    "between them\n",
                    shares, t->count);
        return EXIT_USAGE;
    }
    if (!vb_ranks_open(ranks, &o, &err))
        return EXIT_DONE;
    if (!rank)
        fprintf(stderr, "verbatim: %s\n", err.message);
    return EXIT_OTHER;
}

int main(int argc, char **argv)
{
    static struct transport transport;
    char name[MPI_MAX_PROCESSOR_NAME + 32];
    int given, rank, code = EXIT_OTHER;
    vb_ranks *ranks = NULL;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &given);
    atexit(abort_others);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &transport.count);
    struct words own = read_words(argc, argv);
    snprintf(name, sizeof name, "rank %d (%s): ", rank, own.host);
    cli_name_rank(transport.count > 1 ? name : NULL);
    if (transport.count > MOST_RANKS || given < MPI_THREAD_SERIALIZED) {
        if (!rank)
            fprintf(stderr,
                    "verbatim: %d ranks of an MPI with thread support %d, wanted at most %d ranks and %d or more\n",
                    transport.count, given, MOST_RANKS, MPI_THREAD_SERIALIZED);
    } else {
        code = agree_on_words(&own, rank, transport.count);
        if (code == EXIT_DONE)
            code = start(&ranks, &transport, rank, &own, argc, argv);
    }
    if (code == EXIT_DONE)
        code = rank ? follow(ranks, name, argc > 1 && !strcmp(argv[1], "serve"))
                    : cli_main(argc, argv, ranks, transport.count);
    vb_ranks_close(ranks);
    code = rank ? EXIT_DONE : code; /* launchers combine the codes of all ranks */
    finish(code);
    return code;
}
