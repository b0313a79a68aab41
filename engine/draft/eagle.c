/* engine/draft/eagle.c -- EAGLE-1 and EAGLE-3: as mtp-eagle, with a published head in the place of module 0. EAGLE-3
 * takes the target's features through the head's fc as they come; what is kept of them are rows of the head's own
 * width. */
#include "engine/draft/eagle_net.h"
#include "engine/draft/mtp.h"

static int open_version(struct drafter **out, const struct vb_model *m, const struct drafter_options *o, int version,
                        vb_error *err)
{
    struct draft_net *net;
    int code = eagle_net_open(&net, o->asked->drafting.head, version, m, o, err);
    return code ? code : mtp_drafter_open(out, net, m, o, &net_method_one_depth, err);
}

static int open_eagle(struct drafter **out, const struct vb_model *m, const struct drafter_options *o, vb_error *err)
{
    return open_version(out, m, o, 1, err);
}

static int open_eagle3(struct drafter **out, const struct vb_model *m, const struct drafter_options *o, vb_error *err)
{
    return open_version(out, m, o, 3, err);
}

/* A head of another kind is refused here; one that cannot be read, when it is opened. */
static int check_eagle(const struct vb_model *m, const vb_session_options *o, vb_error *err)
{
    return drafter_check_head(o->drafting.head, 1, "eagle", m->allocator, err);
}

static int check_eagle3(const struct vb_model *m, const vb_session_options *o, vb_error *err)
{
    return drafter_check_head(o->drafting.head, 3, "eagle3", m->allocator, err);
}

const struct drafter_type draft_eagle = {
    .name = "eagle",
    .about = "a published EAGLE-1 head",
    .needs_head = 1,
    .takes = ROWS_HIDDEN,
    .check = check_eagle,
    .open = open_eagle,
    .propose_tree = mtp_propose_tree,
    .weight_bytes = mtp_drafter_weight_bytes,
    NET_DRAFTS,
    NET_STATE,
};

const struct drafter_type draft_eagle3 = {
    .name = "eagle3",
    .about = "a published EAGLE-3 head",
    .needs_head = 1,
    .takes = ROWS_EAGLE3,
    .check = check_eagle3,
    .open = open_eagle3,
    .propose_tree = mtp_propose_tree,
    .weight_bytes = mtp_drafter_weight_bytes,
    NET_DRAFTS,
    NET_STATE,
};
