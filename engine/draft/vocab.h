/* engine/draft/vocab.h -- a list of tokens. If a session has such a list, its MTP modules draft only these tokens.
 *
 * The output head is the largest matrix that an MTP module reads. With a list of N tokens, only N of its V rows are
 * read. FR-Spec (arXiv 2502.14856) and EAGLE-3 heads use such lists. */
#ifndef VB_DRAFT_VOCAB_H
#define VB_DRAFT_VOCAB_H

#include "engine/model/model.h"

struct vb_draft_vocab {
    const struct model *model;
    size_t count;
    int32_t *tokens;           /* [count], ascending */
    struct weight_view *heads; /* [model->num_mtp]: the rows of `tokens` of each module's head */
    unsigned char *magnitudes; /* [model->num_mtp]; see struct weight_view */
    void *copies;              /* the weights of `heads`; NULL if they are views of the model's own weights */
    size_t bytes;              /* size of `copies` */
};

#endif
