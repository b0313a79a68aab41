/* engine/model/ranks.h -- a group of processes that compute one model (engine/verbatim_ranks.h), and the messages of
 * rank 0.
 *
 * Rank 0 tells the other ranks what to do: which model to open, which passes to compute. A message begins with an
 * enum ranks_message. All ranks then do the same and, if it can fail, exchange error codes (ranks_agree). Between
 * messages, operators exchange their outputs (ops/ranks.h). */
#ifndef VB_MODEL_RANKS_H
#define VB_MODEL_RANKS_H

#include "engine/model/config.h"
#include "ops/ranks.h"

enum ranks_message {
    RANKS_END,       /* vb_ranks_close */
    RANKS_MODEL,     /* open a model */
    RANKS_NO_MODEL,  /* close a model */
    RANKS_WORK,      /* open a workspace */
    RANKS_NO_WORK,   /* close a workspace */
    RANKS_POOL,      /* open a pool of cache rows */
    RANKS_NO_POOL,   /* close a pool */
    RANKS_ROWS,      /* take over cache rows */
    RANKS_VOCAB,     /* open a draft vocabulary */
    RANKS_NO_VOCAB,  /* close a draft vocabulary */
    RANKS_TARGET,    /* passes */
    RANKS_MTP,
    RANKS_HEAD,
    RANKS_FACTS      /* send statistics (vb_ranks_facts) */
};

/* A message is sent in parts of 1, 4 and 16 KB, and then parts of 64 KB, so receivers know the size of each part. */
#define RANKS_PART ((size_t)64 << 10)

struct vb_ranks {
    struct op_ranks op;
    vb_allocator allocator;
    char host[64];
    int32_t threads;
    char isa[16];
    uint64_t *before;    /* [count + 1]; see op_ranks */
    char *part;          /* [RANKS_PART]: a part of the message that is being sent or read */
    size_t part_size, at; /* size of this part, and how much of it has been written or read */
    uint32_t numbered;   /* the last number that rank 0 gave to a model, a workspace or a pool */
    size_t weight_bytes; /* of the open models */
    uint64_t passes;     /* number of messages RANKS_TARGET */
};

/* Rank 0 writes a message with ranks_put, and ends it with ranks_send. The other ranks read the same bytes with
 * ranks_get, and end with ranks_done. */
void ranks_put(struct vb_ranks *r, const void *data, size_t bytes);
void ranks_put_number(struct vb_ranks *r, uint64_t number);
void ranks_put_text(struct vb_ranks *r, const char *text); /* text may be NULL */
void ranks_send(struct vb_ranks *r);
void ranks_get(struct vb_ranks *r, void *data, size_t bytes);
uint64_t ranks_get_number(struct vb_ranks *r);
/* Returns a text in memory of the group's allocator. Returns NULL if rank 0 put NULL, or if there is no memory; then
 * *code is VB_NO_MEMORY. */
char *ranks_get_text(struct vb_ranks *r, int *code);
void ranks_done(struct vb_ranks *r);

/* All ranks exchange their error codes: `code`, with a message in *err. Returns VB_OK if all codes are VB_OK. Otherwise
 * returns the code of the first rank that failed, and copies its message, which names the rank, to *err. err may be
 * NULL. */
int ranks_agree(struct vb_ranks *r, int code, vb_error *err);
/* All ranks exchange their statistics. Returns an array [count], which is valid until the next exchange. */
const vb_rank_facts *ranks_account(struct vb_ranks *r);
/* Returns the most numbers in a row that the ranks exchange. */
size_t ranks_longest_row(const struct config *c);
/* Makes room in op.buffer for rows of `bytes` bytes. */
int ranks_room(struct vb_ranks *r, size_t bytes, vb_error *err);
/* Compares a number that must be equal on all ranks. Returns the first rank whose number is not that of rank 0; 0 if
 * there is none. */
int ranks_differ(struct vb_ranks *r, uint64_t number);

#endif
