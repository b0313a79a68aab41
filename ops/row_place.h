/* ops/row_place.h -- where the cache rows are that belong to a row of a pass. */
#ifndef VB_ROW_PLACE_H
#define VB_ROW_PLACE_H

#include <stddef.h>
#include <stdint.h>

/* The place of a row's cache row, and the tokens to which its query attends. Operators of a device (ops/cuda) read it
 * from the device's memory; then all addresses are the device's. */
struct row_place {
    char *rows;               /* the cache rows of layer 0 of the row's sequence */
    size_t layer_bytes;       /* from the rows of a layer to those of the next layer */
    const int32_t *slots;     /* [length]: cache row j of the sequence is number slots[j] of a layer's rows */
    uint32_t length;          /* >= 1 */
    int32_t slot;             /* the cache row that this row of the pass writes */
    float query_scale;        /* the query is multiplied by it; 1: it is not */
    /* with an indexer, on a device only: */
    char *index_rows;         /* the index cache of the first layer that has one */
    size_t index_layer_bytes;
    int given;                /* nonzero: the row attends to tokens that were chosen in another pass, or by another row;
                                 no indexer chooses */
};

#endif
