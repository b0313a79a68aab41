/* engine/verbatim_ranks.h -- one model in several processes, on one machine or on many; a part of the public interface.
 * verbatim.h includes this file. Programs include only verbatim.h.
 *
 * The processes are called ranks, and have the numbers 0 to count - 1. Each rank has a share of the rows of all large
 * matrices, and computes the outputs of these rows. The ranks exchange their outputs, and never add them, so results
 * have the bits that one process computes, for any number of ranks, any shares and any instruction sets.
 *
 * Rank 0 runs the program: it opens models, sessions and batches as always, with vb_model_options.ranks, and decides
 * everything. The other ranks call vb_ranks_follow, which computes their share of each pass until rank 0 calls
 * vb_ranks_close. On rank 0, only one thread at a time may use models, sessions and batches of the group.
 *
 * Refused on ranks with VB_BAD_ARGUMENT: the option `numa`, vb_model_lock, prefill "onednn", vb_quantize_open, and taps
 * of scores with prefill "expanded". */
#ifndef VERBATIM_RANKS_H
#define VERBATIM_RANKS_H

/* How the ranks reach each other. The library has no transport of its own: tools/mpi/mpi.c uses MPI. */
typedef struct vb_ranks_options {
    size_t size;             /* sizeof(vb_ranks_options), or 0 */
    vb_allocator allocator;
    int32_t rank, count;     /* number of this rank, and of all ranks; the same count on all ranks */
    const uint32_t *weights; /* [count]: a rank's share of the rows is proportional to its weight; NULL: equal shares.
                                Only the weights that rank 0 gives are used */
    /* Exchanges bytes between all ranks. Rank r has bytes [offset[r], offset[r + 1]) of `buffer`; on return, each rank
     * has all offset[count] bytes. All ranks call it in the same order with the same offsets. If a rank cannot be
     * reached, the callback does not return; it ends the process. */
    void (*all_gather)(void *context, void *buffer, const size_t *offset);
    void *context;
    const char *host;        /* name of this rank's machine, for messages; NULL: none */
    int32_t threads;         /* how many threads a session of this rank has if its options have 0; 0: the number of
                                processors in the affinity mask */
    const char *isa;         /* instruction set of a rank other than 0, as in vb_session_options; NULL: the best one */
} vb_ranks_options;

typedef struct vb_ranks vb_ranks;
/* Opens the group of ranks. All ranks call it. *options and its strings and arrays are copied. It is an error, on all
 * ranks, if the ranks were built from different versions of the library, or if one of them has no memory. */
int vb_ranks_open(vb_ranks **out, const vb_ranks_options *options, vb_error *err);
/* Computes this rank's share of the passes of rank 0. Only ranks other than 0 call it. Returns VB_OK after rank 0 has
 * called vb_ranks_close. Errors of opening something are reported to rank 0. If there is no memory in a pass,
 * vb_ranks_follow returns VB_NO_MEMORY while the other ranks wait for this one: then the program has to end all of
 * them. */
int vb_ranks_follow(vb_ranks *ranks, vb_error *err);
/* On rank 0, ends vb_ranks_follow of the other ranks. Close all models of the group first. */
void vb_ranks_close(vb_ranks *ranks);

/* Statistics of one rank. */
typedef struct vb_rank_facts {
    char host[64];
    size_t weight_bytes;      /* size of this rank's weights: its share, and what every rank has */
    size_t resident_bytes;    /* memory of the process that is in use now */
    uint64_t passes;          /* passes of models since the group was opened, without passes of MTP modules */
    uint64_t gathers, bytes;  /* exchanges of operators since the group was opened, and the bytes of all ranks in them.
                                 A rank receives the bytes of the others */
    double seconds;           /* time in these exchanges, which includes waiting for slower ranks */
} vb_rank_facts;
/* Fills out [count], in the order of the ranks. Only rank 0 calls it. */
void vb_ranks_facts_sized(vb_ranks *ranks, vb_rank_facts *out, size_t size);
static inline void vb_ranks_facts(vb_ranks *ranks, vb_rank_facts *out)
{
    vb_ranks_facts_sized(ranks, out, sizeof *out);
}

#endif
