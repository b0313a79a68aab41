/* engine/model/numa.c -- carries out the plan with calls of the kernel. Only this file uses libnuma. */
#include "engine/base/options.h"
#include "engine/model/model_internal.h"
#include "engine/base/seconds.h"
#include "numbers/numbers.h"
#include "engine/model/numa.h"
#include "ops/weights.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const mode_names[] = {"off", "interleave", "bind"};

int numa_mode(enum placement_mode *mode, const char *name, vb_error *err)
{
    for (int i = 0; i < 3; i++)
        if (!strcmp(name ? name : "off", mode_names[i])) {
            *mode = (enum placement_mode)i;
            return VB_OK;
        }
    return vb_fail(err, VB_BAD_ARGUMENT, "unknown numa mode %s; known are off, interleave, bind", name);
}

const struct placement *numa_placement(const struct vb_model *m)
{
    return m->numa && m->numa->placement.parts ? &m->numa->placement : NULL;
}

struct numa_visit numa_enter(const struct vb_model *m)
{
    struct numa_visit v = {0};
    v.moved = numa_placement(m) && !sched_getaffinity(0, sizeof v.before, &v.before);
    return v;
}

void numa_leave(const struct numa_visit *v)
{
    if (v->moved)
        sched_setaffinity(0, sizeof v->before, &v->before);
}

int vb_model_placement_sized(const vb_model *m, vb_placement *out, size_t size)
{
    vb_placement placement = m->numa ? m->numa->report : (vb_placement){0};
    struct_fill(out, size, &placement, sizeof placement);
    return m->numa != NULL;
}

#ifdef HAVE_NUMA
#include <numa.h>
#include <numaif.h>

#define READ_AHEAD (128u << 10) /* size of one MADV_WILLNEED request; the kernel shortens larger requests to its
                                   read-ahead window, which is 128 KB by default */
#define ASK_AT_ONCE 1024

struct placing {
    struct numa *numa;
    size_t page;
    int stopped; /* nonzero: the kernel refused a call, so the remaining weights are not placed */
};

static void refused(struct placing *p, const char *call)
{
    vb_placement *r = &p->numa->report;
    p->stopped = r->failed = 1;
    snprintf(r->why_not, sizeof r->why_not, "%s: %s", call, strerror(errno));
}

static int prefer(int node)
{
    unsigned long mask[2] = {0, 0};
    mask[node / 64] = 1ul << node % 64;
    return (int)set_mempolicy(MPOL_PREFERRED, mask, 128);
}

/* Reads the range into the page cache and maps it. The memory policy decides the node of a page only now, when the page
 * is read. */
static void read_in(uintptr_t begin, uintptr_t end, size_t page)
{
    volatile unsigned char seen;
    for (uintptr_t at = begin; at < end; at += READ_AHEAD)
        madvise((void *)at, end - at < READ_AHEAD ? end - at : READ_AHEAD, MADV_WILLNEED);
#ifdef MADV_POPULATE_READ
    if (!madvise((void *)begin, end - begin, MADV_POPULATE_READ))
        return;
#endif
    for (uintptr_t at = begin; at < end; at += page) /* kernels before 5.14 have no MADV_POPULATE_READ */
        seen = *(const volatile unsigned char *)at;
    (void)seen;
}

/* Asks the kernel on which nodes `count` pages are, and moves pages to `node` that are on another node. `count` is at
 * most ASK_AT_ONCE. The report counts pages that were already on `node` and pages that were moved. */
static void bring_home(struct placing *p, uintptr_t begin, size_t count, int node)
{
    vb_placement *r = &p->numa->report;
    void *pages[ASK_AT_ONCE], *away[ASK_AT_ONCE];
    int status[ASK_AT_ONCE], nodes[ASK_AT_ONCE], after[ASK_AT_ONCE];
    size_t far = 0;
    for (size_t i = 0; i < count; i++)
        pages[i] = (void *)(begin + i * p->page);
    r->pages += count;
    if (move_pages(0, count, pages, NULL, status, 0) < 0) {
        refused(p, "move_pages");
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (status[i] == node) {
            r->in_place++;
            continue;
        }
        away[far] = pages[i];
        nodes[far] = node;
        after[far++] = -EAGAIN;
    }
    if (!far || move_pages(0, far, away, nodes, after, MPOL_MF_MOVE) < 0) /* if this call fails, no page counts as
                                                                             moved */
        return;
    if (move_pages(0, far, away, NULL, after, 0) < 0)
        return;
    for (size_t i = 0; i < far; i++)
        r->moved += after[i] == node;
}

static void place_pages(void *context, uintptr_t begin, uintptr_t end, int node)
{
    struct placing *p = context;
    if (p->stopped)
        return;
    if (prefer(node)) {
        refused(p, "set_mempolicy");
        return;
    }
    read_in(begin, end, p->page);
    for (uintptr_t at = begin; at < end && !p->stopped; at += ASK_AT_ONCE * p->page) {
        size_t left = (end - at) / p->page;
        bring_home(p, at, min_size(left, ASK_AT_ONCE), node);
    }
}

/* Places a matrix by its rows. An embedding is different: only one row per token is read, and the calling thread reads
 * it. */
static void place_tensor(struct placing *p, const struct vb_model *m, const struct tensor *t)
{
    int looked_up = vb_ends_with(t->name, "embed_tokens.weight") && t->data != m->lm_head.data;
    if (!t->taken || t->copied || !t->data || t->ndim != 2 || !t->shape[0])
        return;
    if (looked_up)
        placement_of_bytes(&p->numa->placement, (uintptr_t)t->data, t->bytes, p->page, place_pages, p);
    else
        placement_of_rows(&p->numa->placement, (uintptr_t)t->data, (size_t)t->shape[0], t->bytes / (size_t)t->shape[0],
                          p->page, place_pages, p);
}

/* Places a copy by its rows. In a copy in panels, the plan never divides a panel, because it keeps groups of rows
 * together, and such a group consists of whole panels. */
static void place_copy(struct placing *p, const struct weight_view *w)
{
    size_t rows = w->panels ? (w->rows + PANEL_ROWS - 1) / PANEL_ROWS * PANEL_ROWS : w->rows;
    placement_of_rows(&p->numa->placement, (uintptr_t)w->data, rows, weight_bytes(w) / rows, p->page, place_pages, p);
}

static uint64_t bytes_read(const struct vb_model *m)
{
    uint64_t bytes = m->copied_bytes;
    for (size_t i = 0; i < checkpoint_count(m->checkpoint); i++) {
        const struct tensor *t = checkpoint_at(m->checkpoint, i);
        bytes += t->taken && !t->copied ? t->bytes : 0;
    }
    return bytes;
}

static void place_weights(struct vb_model *m)
{
    struct placing p = {m->numa, (size_t)sysconf(_SC_PAGESIZE), 0};
    unsigned long mask[16];
    int mode;
    if (get_mempolicy(&mode, mask, 8 * sizeof mask, NULL, 0)) {
        refused(&p, "get_mempolicy");
        return;
    }
    for (size_t i = 0; i < checkpoint_count(m->checkpoint) && !p.stopped; i++)
        place_tensor(&p, m, checkpoint_at(m->checkpoint, i));
    for (size_t i = 0; i < m->num_copies && !p.stopped; i++)
        place_copy(&p, &m->copies[i].result);
    set_mempolicy(mode, mode == MPOL_DEFAULT ? NULL : mask, 8 * sizeof mask);
}

void numa_place_on(struct vb_model *m, enum placement_mode mode, const struct topology *t)
{
    double start = monotonic_seconds();
    vb_placement *r = &m->numa->report;
    uint64_t bytes = bytes_read(m), room = 0;
    placement_plan(&m->numa->placement, t, mode, bytes);
    r->nodes = m->numa->placement.nodes;
    for (int n = 0; n < PLACEMENT_NODES; n++)
        room += t->memory[n];
    if (!m->numa->placement.parts)
        snprintf(r->why_not, sizeof r->why_not, "there is one node, and nothing to place");
    else if (room < bytes)
        snprintf(r->why_not, sizeof r->why_not,
                 "the weights' %llu bytes are more than the %llu of memory to be had: their "
                 "pages stay where the first thread to touch them "
                 "runs",
                 (unsigned long long)bytes, (unsigned long long)room);
    else
        place_weights(m);
    r->seconds = monotonic_seconds() - start;
}

void numa_place(struct vb_model *m, enum placement_mode mode)
{
    struct topology t;
    cpu_set_t cpus;
    unsigned long memories[16] = {0};
    if (numa_available() < 0) { /* the kernel has no NUMA calls, or forbids them */
        m->numa->report.failed = 1;
        snprintf(m->numa->report.why_not, sizeof m->numa->report.why_not,
                 "the kernel has no NUMA calls, or forbids them");
        return;
    }
    topology_read(&t, "/sys/devices/system");
    if (!sched_getaffinity(0, sizeof cpus, &cpus) &&
        !get_mempolicy(NULL, memories, 8 * sizeof memories, NULL, MPOL_F_MEMS_ALLOWED))
        topology_allow(&t, &cpus, memories[0]);
    numa_place_on(m, mode, &t);
}

#else

void numa_place_on(struct vb_model *m, enum placement_mode mode, const struct topology *t)
{
    (void)mode, (void)t;
    m->numa->report.failed = 1;
    snprintf(m->numa->report.why_not, sizeof m->numa->report.why_not, "this build has no libnuma");
}

void numa_place(struct vb_model *m, enum placement_mode mode) { numa_place_on(m, mode, NULL); }

#endif
