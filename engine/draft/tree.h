/* engine/draft/tree.h -- trees of drafts, built as in EAGLE-2 (Li et al. 2024; SafeAILab/EAGLE, eagle/model/cnets.py,
 * function topK_genrate).
 *
 * Each node is a draft. The confidence of a node is the product of the probabilities that the drafter gives, at
 * temperature 1, to the drafts on the path from the root to this node. The tree grows level by level. The topk most
 * confident nodes of the newest level are expanded: each gets the topk best tokens of its row of logits as children. At
 * the end, the most confident nodes of the whole tree are kept, and the other nodes are removed.
 *
 * If two nodes have equal confidence, the node on the earlier level comes first. On the same level, the two nodes have
 * the same order as their parents. If they have the same parent, the more probable token comes first. If the tokens are
 * equally probable, the token with the lower id comes first. A child is never more confident than its parent, so the
 * parents of all kept nodes are kept too. If topk is 1, the tree is a chain. */
#ifndef VB_DRAFT_TREE_H
#define VB_DRAFT_TREE_H

#include "engine/base/support.h"

/* The finished tree. The most confident nodes come first, so parents come before their children. */
struct draft_tree {
    int count;
    int32_t token[VB_MAX_NODES];
    int32_t parent[VB_MAX_NODES]; /* the node that this node follows, or -1 if it follows the last committed token */
    int32_t depth[VB_MAX_NODES];  /* level of the node; children of the last committed token are on level 1 */
    double confidence[VB_MAX_NODES];
};

/* Returns the child of `node` that follows child `after`, or -1 if `after` is the last child. If `after` is -1, returns
 * the first child, or -1 if there is none. If `node` is -1, its children are the nodes that follow the last committed
 * token. */
int tree_child(const struct draft_tree *t, int node, int after);

/* A node while the tree grows. Nodes are stored in the order in which they were created, that is, level by level. */
struct tree_node {
    int32_t token, parent, depth;
    double confidence;
    int32_t slot, row; /* slot of the node's cache row, and number of the node's row in its pass; the drafter sets both
                          when it expands the node */
};

struct tree_builder {
    int topk, most;             /* children per node, and number of nodes that are kept */
    struct tree_node *node;     /* [room] */
    int count, room, level;     /* number of nodes; largest number of nodes; index of the first node of the newest
                                   level */
    int frontier[VB_MAX_TOPK];  /* the nodes that are expanded now, the most confident first */
    int frontier_count;
};

/* Allocates memory for trees with at most `depth` levels. At most `most` nodes of a finished tree are kept. */
int tree_open(struct tree_builder *b, int topk, int most, int depth, const vb_allocator *a, vb_error *err);
void tree_close(struct tree_builder *b, const vb_allocator *a);

void tree_begin(struct tree_builder *b);
/* Adds n children to a node of the frontier (or to the last committed token, if parent is -1). The most probable token
 * comes first. p [n] are the probabilities of the tokens. */
void tree_grow(struct tree_builder *b, int parent, const int32_t *tokens, const double *p, int n);
/* Ends a level: the new frontier consists of the topk most confident nodes that were added since the last call. Returns
 * the number of nodes in the frontier. */
int tree_advance(struct tree_builder *b);
/* Copies the most confident nodes to *t. */
void tree_prune(const struct tree_builder *b, struct draft_tree *t);

#endif
