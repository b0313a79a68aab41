/* tools/training/order.h -- which tokens each training step reads.
 *
 * Documents are cut into pieces of at most --seq-length tokens. A piece is one sequence: its tokens attend to each
 * other only. In each epoch, every piece is read once, in an order that depends only on the seed, the number of the
 * epoch and the number of pieces. So it is the same on every machine. */
#ifndef VB_TRAINING_ORDER_H
#define VB_TRAINING_ORDER_H

#include <stddef.h>
#include <stdint.h>

struct order_piece {
    size_t first, count; /* tokens [first, first + count) of the data */
};

struct order {
    struct order_piece *piece;   /* [pieces]: in the order of the data */
    size_t pieces, tokens; /* tokens: of all pieces */
    size_t left_out;       /* tokens that are in no piece */
    size_t *shuffled;      /* [pieces]: the order of one epoch */
    uint64_t seed, epoch;  /* epoch: the epoch of `shuffled`; UINT64_MAX: none yet */
};

/* Where the next step begins. It is a part of the state of a run. */
struct order_place {
    uint64_t epoch;
    size_t next; /* number of pieces of this epoch that were read */
};

/* Cuts documents into pieces of `longest` tokens. The last piece of a document is shorter. A piece is left out if it
 * has fewer than `shortest` tokens, or if mask (NULL: 1 for all tokens) is 0 for all tokens after the first shortest -
 * 1 of the piece: then nothing is left to predict. end[i] is where document i ends, and document i + 1 begins. Returns
 * 0 if there is no memory. */
int order_open(struct order *o, const size_t *end, size_t documents, const unsigned char *mask, size_t longest,
               size_t shortest, uint64_t seed);
void order_close(struct order *o);

/* Chooses the pieces of the next step, and moves *place behind them: as many pieces as have at most `tokens` tokens
 * together, but at least one, and only of one epoch. Writes their numbers to `numbers`, which has room for all pieces.
 * Returns how many there are; 0: there are no pieces. */
size_t order_next(struct order *o, struct order_place *place, size_t tokens, size_t *numbers);

/* Chooses which of `documents` documents are held out: writes 1 or 0 for each to `held_out`. round(share * documents)
 * of them are held out, but at least one, and never all. Depends only on the arguments. Returns how many; 0: there are
 * fewer than two, or no memory. */
size_t order_hold_out(unsigned char *held_out, size_t documents, double share, uint64_t seed);

#endif
