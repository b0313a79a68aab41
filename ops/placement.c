/* ops/placement.c -- computes the plan. If two choices are equal, the lower number is chosen, so the same machine
 * always gets the same plan. */
#include "ops/placement.h"

#include <string.h>

/* Unknown distances count as far. */
static int distance(const struct topology *t, int from, int to)
{
    return t->distance[from][to] ? t->distance[from][to] : 256;
}

/* Lists the processors of a node: first one hardware thread of each core, because the second one adds little
 * bandwidth. */
static int list_cpus(int *cpu, const struct topology *t, int node)
{
    int count = 0, most = 0;
    for (int c = 0; c < PLACEMENT_CPUS; c++)
        if (t->node_of_cpu[c] == node && t->sibling[c] > most)
            most = t->sibling[c];
    for (int s = 0; s <= most; s++)
        for (int c = 0; c < PLACEMENT_CPUS; c++)
            if (t->node_of_cpu[c] == node && t->sibling[c] == s)
                cpu[count++] = c;
    return count;
}

static void list_parts(struct placement *p, const struct topology *t)
{
    for (int n = 0; n < PLACEMENT_NODES; n++) {
        int count = list_cpus(p->cpu + p->cut[p->parts], t, n);
        if (t->memory[n])
            p->memory[p->memories++] = n;
        if (count || t->memory[n])
            p->nodes++;
        if (!count)
            continue;
        p->node[p->parts++] = n;
        p->cut[p->parts] = p->cut[p->parts - 1] + count;
    }
}

/* Returns the nearest memory with room for `need` bytes. If no memory has room, returns the nearest; the kernel then
 * also uses others. */
static int nearest(const struct placement *p, const struct topology *t, const uint64_t *left, int from, uint64_t need)
{
    int best = -1;
    for (int i = 0; i < p->memories; i++) {
        int n = p->memory[i];
        int more_room = best < 0 ? 1 : (left[n] >= need) - (left[best] >= need);
        if (more_room > 0 || (more_room == 0 && distance(t, from, n) < distance(t, from, best)))
            best = n;
    }
    return best < 0 ? from : best;
}

/* First, each part whose own memory has room gets this memory. Then the other parts get the nearest memory with
 * room. */
static void find_homes(struct placement *p, const struct topology *t, uint64_t bytes)
{
    uint64_t left[PLACEMENT_NODES];
    memcpy(left, t->memory, sizeof left);
    for (int others = 0; others < 2; others++)
        for (int i = 0; i < p->parts; i++) {
            int n = p->node[i];
            uint64_t need = bytes / (uint64_t)p->cut[p->parts] * (uint64_t)(p->cut[i + 1] - p->cut[i]);
            int own = t->memory[n] && t->memory[n] >= need;
            if (own == others)
                continue;
            p->home[i] = own ? n : nearest(p, t, left, n, need);
            left[p->home[i]] -= left[p->home[i]] < need ? left[p->home[i]] : need;
        }
}

static void find_order(struct placement *p, const struct topology *t)
{
    for (int i = 0; i < p->parts; i++) {
        int count = 0;
        p->order[i][count++] = (unsigned char)i;
        for (int j = 0; j < p->parts; j++) { /* insertion sort is stable, so parts at equal distances stay in ascending
                                                order */
            int k = count;
            if (j == i)
                continue;
            for (; k > 1 && distance(t, p->node[i], p->home[p->order[i][k - 1]]) > distance(t, p->node[i], p->home[j]);
                 k--)
                p->order[i][k] = p->order[i][k - 1];
            p->order[i][k] = (unsigned char)j;
            count++;
        }
    }
}

int placement_plan(struct placement *p, const struct topology *t, enum placement_mode mode, uint64_t bytes)
{
    memset(p, 0, sizeof *p);
    list_parts(p, t);
    if (mode == PLACEMENT_OFF || p->nodes < 2 || !p->parts)
        return p->parts = 0;
    if (mode == PLACEMENT_INTERLEAVE) {
        p->cut[1] = p->cut[p->parts];
        p->parts = 1;
        p->node[0] = p->home[0] = -1;
        return p->parts;
    }
    find_homes(p, t, bytes);
    find_order(p, t);
    return p->parts;
}

/* Returns the first thread of a part. The number is rounded up, so that a single thread belongs to the first part. */
static int first_thread(const struct placement *p, int part, int threads)
{
    return (threads * p->cut[part] + p->cut[p->parts] - 1) / p->cut[p->parts];
}

struct place placement_of_thread(const struct placement *p, int thread, int threads)
{
    int part = 0;
    while (part + 1 < p->parts && first_thread(p, part + 1, threads) <= thread)
        part++;
    int index = thread - first_thread(p, part, threads), count = p->cut[part + 1] - p->cut[part];
    return (struct place){p->cpu[p->cut[part] + index % count], part};
}

void placement_share(const struct placement *p, int part, size_t count, size_t *begin, size_t *end)
{
    size_t all = (size_t)p->cut[p->parts];
    *begin = count * (size_t)p->cut[part] / all;
    *end = count * (size_t)p->cut[part + 1] / all;
}

static uintptr_t page_from(uintptr_t address, size_t page) { return (address + page - 1) / page * page; }

void placement_of_bytes(const struct placement *p, uintptr_t data, size_t bytes, size_t page, placement_pages each,
                        void *context)
{
    uintptr_t at = page_from(data, page), end = page_from(data + bytes, page), chunk = PLACEMENT_SPREAD * page;
    for (int turn = 0; at < end && p->memories; turn++, at += chunk) /* the memory must not depend on the address,
                                                                        because a file is mapped to another address each
                                                                        time */
        each(context, at, end - at < chunk ? end : at + chunk, p->memory[turn % p->memories]);
}

void placement_of_rows(const struct placement *p, uintptr_t data, size_t rows, size_t row_bytes, size_t page,
                       placement_pages each, void *context)
{
    if (p->home[0] < 0) {
        placement_of_bytes(p, data, rows * row_bytes, page, each, context);
        return;
    }
    for (int part = 0; part < p->parts; part++) {
        size_t begin, end;
        placement_share(p, part, (rows + OP_ROW_GROUP - 1) / OP_ROW_GROUP, &begin, &end);
        begin = begin * OP_ROW_GROUP < rows ? begin * OP_ROW_GROUP : rows;
        end = end * OP_ROW_GROUP < rows ? end * OP_ROW_GROUP : rows;
        uintptr_t from = page_from(data + begin * row_bytes, page), to = page_from(data + end * row_bytes, page);
        if (from < to)
            each(context, from, to, p->home[part]);
    }
}
