/* engine/draft/tree.h -- drafts that branch, and which of them EAGLE-2 makes (Li et al. 2024; SafeAILab/EAGLE,
 * eagle/model/cnets.py, topK_genrate).
 *
 * The confidence of a node is the product of the drafter's probabilities, at temperature 1, on the way to it. Level by level
 * the topk most confident nodes of the newest level are expanded: each gets the topk best tokens of its row as children. Of all
 * nodes the most confident stay. Among equals the shallower comes first, then the one whose parent does, then the better
 * token, then the lower id. A child is never more confident than its parent, so whoever stays has its parents. With topk 1
 * the tree is the chain. */
#ifndef VB_DRAFT_TREE_H
#define VB_DRAFT_TREE_H

#include "engine/base/support.h"

/* In an order in which parents come before their children: the most confident first. */
struct draft_tree {
    int count;
    int32_t token[VB_MAX_NODES];
    int32_t parent[VB_MAX_NODES]; /* the node that it follows; -1: the last committed token */
    int32_t depth[VB_MAX_NODES];  /* 1..: of its index beyond the last committed token */
    double confidence[VB_MAX_NODES];
};

/* The first child of `node` (-1: of the last committed token) after `after`, -1 at first; -1: there is none. */
int tree_child(const struct draft_tree *t, int node, int after);

/* A node that was looked at; in order of creation, so level by level. */
struct tree_node {
    int32_t token, parent, depth;
    double confidence;
    int32_t slot, row; /* of an expanded one, its drafter's: where its cache row is, and which row of the pass it was */
};

struct tree_builder {
    int topk, most;             /* children of a node; nodes that stay */
    struct tree_node *node;     /* [room] */
    int count, room, level;     /* level: the first node of the newest level */
    int frontier[VB_MAX_TOPK];  /* the nodes that are being expanded, the most confident first */
    int frontier_count;
};

/* For trees of up to `depth` levels. */
int tree_open(struct tree_builder *b, int topk, int most, int depth, const vb_allocator *a, vb_error *err);
void tree_close(struct tree_builder *b, const vb_allocator *a);

void tree_begin(struct tree_builder *b);
/* Children of a node of the frontier (-1: of the last committed token): n tokens, the best first, with their probabilities. */
void tree_grow(struct tree_builder *b, int parent, const int32_t *tokens, const double *p, int n);
/* The frontier is now of what has grown since the last call; its size. */
int tree_advance(struct tree_builder *b);
void tree_prune(const struct tree_builder *b, struct draft_tree *t);

#endif
