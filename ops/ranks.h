/* ops/ranks.h -- several processes, called ranks, that compute each pass together.
 *
 * A matrix is divided among the ranks by rows: each rank has some of its rows, and computes the outputs of these rows.
 * It computes each output from all inputs, in the order of docs/ARITHMETIC.md. Then all ranks exchange their outputs
 * (op_gather). An exchange only moves bytes. So the bits of a result depend neither on the number of ranks nor on their
 * shares.
 *
 * All ranks call the same operators in the same order, with the same sizes. */
#ifndef VB_RANKS_H
#define VB_RANKS_H

#include <stddef.h>
#include <stdint.h>

struct op_ctx;

#define OP_GATHER_BYTES ((size_t)4 << 20) /* most bytes in one exchange, unless one row of all ranks has more */

struct op_ranks {
    int rank, count;        /* number of this rank, and of all ranks */
    const uint64_t *before; /* [count + 1]: before[r] is the sum of the weights of the ranks before r. A rank's share of
                               the rows is proportional to its weight */
    /* Exchanges bytes. Rank r has bytes [offset[r], offset[r + 1]) of `buffer`; on return each rank has all of them. It
     * does not return if the exchange fails. */
    void (*all_gather)(void *context, void *buffer, const size_t *offset);
    void *context;
    char *buffer;           /* [room]: room is at least OP_GATHER_BYTES and the longest row that is gathered */
    size_t room;
    size_t *offset;         /* [count + 1] */
    int taps_all;               /* nonzero: a tap or a probe on one of the ranks wants intermediate values. Then each
                               rank also gets values that only other ranks need, and rows are exchanged as f32 */
    int scores;              /* nonzero: the probe of one of the ranks wants attention scores */
    uint64_t gathers, bytes; /* calls of all_gather by op_gather, and the bytes of all ranks in them */
    double seconds;          /* time in these calls, which includes waiting for slower ranks */
};

/* A rank's share of what is divided: indices [begin, end). */
struct op_share {
    size_t begin, end;
};

/* Returns which of `count` rows rank `rank` has. Shares consist of whole units of `unit` rows; the last unit may be
 * incomplete. A share may be empty. */
struct op_share op_share_of(const struct op_ranks *r, int rank, size_t count, size_t unit);
/* Returns this rank's share, or all of it if there is only one process. */
struct op_share op_own(const struct op_ctx *cx, size_t count, size_t unit);

/* The form in which numbers are exchanged: as they are stored; as BF16, for f32 numbers in packed order that have been
 * rounded to BF16; or as groups of quantized numbers (struct quantized_group) without their sums, which the receiver
 * computes again. */
enum op_travel { OP_AS_STORED, OP_AS_BF16, OP_AS_GROUPS };
#define OP_GROUP_BYTES 36 /* bytes of an exchanged group: its scale, and 32 integers */

/* Rows that are divided by columns. Each row has `units` units of unit_bytes bytes. The last unit may be shorter,
 * because the row has row_bytes bytes. Rows follow each other without a gap. */
struct op_piece {
    void *data;
    size_t rows, row_bytes, units, unit_bytes;
    enum op_travel travel;
    const size_t *cuts; /* [ranks + 1]: rank r has units [cuts[r], cuts[r + 1]); NULL: each rank has its share of the
                           units */
};
/* Before, each rank has its own units of each row; on return, it has all of them. Several pieces share one exchange if
 * the buffer has room. Does nothing if there is only one process. */
void op_gather(const struct op_ctx *cx, const struct op_piece *pieces, size_t count);
/* The same for rows y [S,N] of floats, divided in units of `unit` numbers. */
void op_gather_floats(const struct op_ctx *cx, float *y, size_t S, size_t N, size_t unit);

/* Broadcasts the bytes of rank `from` to all ranks. */
void op_spread(const struct op_ctx *cx, int from, void *data, size_t bytes);
/* Returns the rank that has row `row`. */
int op_owner(const struct op_ranks *r, size_t row, size_t count, size_t unit);

#endif
