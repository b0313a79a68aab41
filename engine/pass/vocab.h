/* engine/pass/vocab.h -- a list of tokens. If a session has such a list, its MTP modules draft only these tokens.
 *
 * The output head is the largest matrix that an MTP module reads. With a list of N tokens, only N of its V rows are
 * read. FR-Spec (arXiv 2502.14856) and EAGLE-3 heads use such lists.
 *
 * On several ranks, each rank has those of the rows that belong to its share of the head (engine/model/ranks.h). The
 * list is ascending, so these rows follow each other in the list. */
#ifndef VB_VOCAB_H
#define VB_VOCAB_H

#include "engine/model/model.h"

struct vb_draft_vocab {
    const struct vb_model *model;
    size_t count;
    int32_t *tokens;           /* [count], ascending */
    struct weight_view *heads; /* [model->num_mtp]: the rows of `tokens` of each module's head; of several ranks, this
                                  rank's */
    size_t *cuts;              /* [ranks + 1]: rank r has the rows of tokens cuts[r] .. cuts[r + 1] - 1 of the list */
    uint32_t number;           /* the number by which rank 0 names the list; 0: the other ranks have no such list */
    unsigned char *magnitudes; /* [model->num_mtp]; see struct weight_view */
    void *copies;              /* the weights of `heads`; NULL if they are views of the model's own weights */
    size_t bytes;              /* size of `copies` */
};

#endif
