/* tests/ops/test_placement.c -- ops/placement.h on machines of 1, 2, 4 and 8 nodes that do not exist, and op_parallel
 * on them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "ops/crew.h"
#include "ops/op.h"
#include "tests/support/machines.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define PAGE ((size_t)4096)

/* ---- what holds of every plan ------------------------------------------------------------------------------------ */

static void check_threads(const char *what, const struct placement *p, const struct topology *t, int threads)
{
    int cpus = p->cut[p->parts], used[PLACEMENT_CPUS] = {0}, of_part[PLACEMENT_NODES] = {0}, last = 0;
    for (int i = 0; i < threads; i++) {
        struct place at = placement_of_thread(p, i, threads);
        if (at.cpu < 0 || at.cpu >= PLACEMENT_CPUS || t->node_of_cpu[at.cpu] < 0)
            fail_msg("%s: thread %d of %d runs on processor %d, which is not there", what, i, threads, at.cpu);
        if (at.part < last || at.part >= p->parts ||
            (p->node[at.part] >= 0 && t->node_of_cpu[at.cpu] != p->node[at.part]))
            fail_msg("%s: thread %d of %d is of part %d, on processor %d of node %d", what, i, threads, at.part, at.cpu,
                     t->node_of_cpu[at.cpu]);
        last = at.part;
        used[at.cpu]++;
        of_part[at.part]++;
    }
    for (int part = 0; part < p->parts; part++) {
        int count = p->cut[part + 1] - p->cut[part];
        double fair = (double)threads * count / cpus;
        if (of_part[part] <= fair - 1.0 || of_part[part] >= fair + 1.0)
            fail_msg("%s: part %d has %d of %d threads, and %d of %d processors", what, part, of_part[part], threads,
                     count, cpus);
        for (int i = p->cut[part]; i < p->cut[part + 1]; i++)
            if (used[p->cpu[i]] > (of_part[part] + count - 1) / count || used[p->cpu[i]] < of_part[part] / count)
                fail_msg("%s: processor %d has %d threads, its part %d for %d processors", what, p->cpu[i],
                         used[p->cpu[i]], of_part[part], count);
    }
}

static void check_shares(const char *what, const struct placement *p, size_t count)
{
    size_t at = 0, begin, end;
    for (int part = 0; part < p->parts; part++, at = end) {
        placement_share(p, part, count, &begin, &end);
        if (begin != at || end < begin)
            fail_msg("%s: part %d of %zu tasks is [%zu, %zu), the one before ended at %zu", what, part, count, begin,
                     end, at);
    }
    if (at != count)
        fail_msg("%s: the parts end at task %zu of %zu", what, at, count);
}

static void check_order(const char *what, const struct placement *p, const struct topology *t)
{
    for (int i = 0; i < p->parts; i++) {
        int seen[PLACEMENT_NODES] = {0}, last = 0;
        if (p->order[i][0] != i)
            fail_msg("%s: part %d begins with part %d", what, i, p->order[i][0]);
        for (int k = 0; k < p->parts; k++) {
            int j = p->order[i][k], d = p->node[i] < 0 ? 0 : t->distance[p->node[i]][p->home[j]];
            d = d || p->node[i] < 0 ? d : 256;
            if (seen[j]++ || (k && d < last))
                fail_msg("%s: part %d helps part %d as its %dth: twice, or after a farther one", what, i, j, k);
            last = k ? d : 0;
        }
    }
}

/* Which node each page was given, page by page. */
struct pages {
    uintptr_t first;
    int node[4096];
    size_t count;
    uintptr_t last;
};

static void note(void *context, uintptr_t begin, uintptr_t end, int node)
{
    struct pages *m = context;
    assert_true(begin % PAGE == 0 && end % PAGE == 0 && begin < end && begin >= m->last);
    m->last = end;
    for (uintptr_t at = begin; at < end; at += PAGE) {
        size_t i = (at - m->first) / PAGE;
        assert_true(i < COUNT(m->node) && m->node[i] == -1); /* nobody before was given this page */
        m->node[i] = node;
        m->count++;
    }
}

/* Matrices one behind the other at odd addresses, as in a file: every page whose first byte is one of theirs has one
 * node, and it is the home of the part that computes the row of that byte. */
static void check_pages(const char *what, const struct placement *p, const struct topology *t)
{
    static const size_t shapes[][2] = {{48, 300}, {1, 7}, {2000, 513}, {16, 40000}, {17, 8192}, {300, 4096}, {129, 2}};
    struct pages m = {.first = 0x7f0000000000u};
    uintptr_t data = m.first + 1234, start = data;
    for (size_t i = 0; i < COUNT(m.node); i++)
        m.node[i] = -1;
    for (size_t k = 0; k < COUNT(shapes); data += shapes[k][0] * shapes[k][1], k++)
        placement_of_rows(p, data, shapes[k][0], shapes[k][1], PAGE, note, &m);
    data = start;
    for (size_t k = 0; k < COUNT(shapes); data += shapes[k][0] * shapes[k][1], k++)
        for (uintptr_t at = (data + PAGE - 1) / PAGE * PAGE; at < data + shapes[k][0] * shapes[k][1];
             at += PAGE, m.count--) {
            int node = m.node[(at - m.first) / PAGE], right = p->home[0] < 0 && p->memories > 0;
            size_t row = (at - data) / shapes[k][1], begin, end;
            if (node < 0 || !t->memory[node])
                fail_msg("%s: page %zu is to lie on node %d, which has no memory", what, (size_t)(at - m.first) / PAGE,
                         node);
            for (int part = 0; part < p->parts && p->home[0] >= 0; part++) {
                placement_share(p, part, (shapes[k][0] + OP_ROW_GROUP - 1) / OP_ROW_GROUP, &begin, &end);
                right |= row >= begin * OP_ROW_GROUP && row < end * OP_ROW_GROUP && node == p->home[part];
            }
            if (!right)
                fail_msg("%s: row %zu of %zu lies on node %d, which is not its part's home", what, row, shapes[k][0],
                         node);
        }
    if (m.count)
        fail_msg("%s: %zu pages too many were given away", what, m.count);
}

static void check_plan(const char *what, const struct topology *t, int parts)
{
    static const int threads[] = {1, 2, 3, 5, 7, 8, 16, 31, 64, 100, 512, 4096};
    struct placement p;
    for (enum placement_mode mode = PLACEMENT_INTERLEAVE; mode <= PLACEMENT_BIND; mode++) {
        int found = placement_plan(&p, t, mode, 3 * GB);
        assert_int_equal(found, p.parts);
        if (found != (mode == PLACEMENT_BIND ? parts : 1))
            fail_msg("%s, mode %d: %d parts, wanted %d", what, mode, found, parts);
        for (size_t i = 0; i < COUNT(threads); i++)
            check_threads(what, &p, t, threads[i]);
        for (size_t count = 0; count < 300; count++)
            check_shares(what, &p, count);
        check_order(what, &p, t);
        check_pages(what, &p, t);
    }
    assert_int_equal(placement_plan(&p, t, PLACEMENT_OFF, 3 * GB), 0);
}

/* ---- machines ---------------------------------------------------------------------------------------------------- */

TEST(one_node_has_nothing_to_place)
{
    struct topology t = machine(1, 8, 64);
    struct placement p;
    for (enum placement_mode mode = PLACEMENT_OFF; mode <= PLACEMENT_BIND; mode++)
        assert_int_equal(placement_plan(&p, &t, mode, GB), 0);
    assert_int_equal(p.nodes, 1);
    t = machine(0, 0, 0); /* sysfs told nothing */
    assert_int_equal(placement_plan(&p, &t, PLACEMENT_BIND, GB), 0);
}

TEST(every_plan_covers_threads_tasks_and_pages_once)
{
    static const int nodes[] = {2, 4, 8}, cpus[] = {1, 2, 3, 16};
    for (size_t i = 0; i < COUNT(nodes); i++)
        for (size_t j = 0; j < COUNT(cpus); j++) {
            struct topology t = machine(nodes[i], cpus[j], 8);
            check_plan("even machine", &t, nodes[i]);
        }
    struct topology t = machine(4, 8, 8); /* as it was booted with half of node 1, a third of node 2 */
    for (int c = 0; c < 4; c++)
        t.node_of_cpu[8 + c] = -1;
    for (int c = 16; c < 24; c += 3)
        t.node_of_cpu[c] = -1;
    check_plan("offline processors", &t, 4);
    t = machine(8, 4, 8); /* nodes 1, 4 and 5 are not online */
    for (int c = 0; c < 32; c++)
        if (c / 4 == 1 || c / 4 == 4 || c / 4 == 5)
            t.node_of_cpu[c] = -1;
    t.memory[1] = t.memory[4] = t.memory[5] = 0;
    check_plan("nodes with holes between", &t, 5);
    t.memory[0] = t.memory[2] = t.memory[3] = t.memory[6] = 0;
    check_plan("memory in one node only", &t, 5);
    t = machine(2, 512, 8);
    check_plan("as many processors as there may be", &t, 2);
    memset(t.distance, 0, sizeof t.distance);
    check_plan("unknown distances", &t, 2);
}

TEST(bind_gives_threads_and_rows_to_the_same_node)
{
    struct topology t = machine(2, 4, 64);
    struct placement p;
    assert_int_equal(placement_plan(&p, &t, PLACEMENT_BIND, GB), 2);
    for (int i = 0; i < 8; i++) {
        struct place at = placement_of_thread(&p, i, 8);
        assert_int_equal(at.cpu, i);
        assert_int_equal(at.part, i / 4);
    }
    assert_int_equal(placement_of_thread(&p, 1, 3).part, 0); /* three threads: two and one */
    assert_int_equal(placement_of_thread(&p, 2, 3).cpu, 4);
    assert_int_equal(placement_of_thread(&p, 0, 1).part, 0);
    assert_int_equal(placement_of_thread(&p, 15, 16).cpu, 7); /* two threads on each */
    assert_int_equal(p.home[0], 0);
    assert_int_equal(p.home[1], 1);
}

TEST(tasks_of_a_session_on_all_processors_meet_their_pages)
{
    struct topology t = machine(4, 6, 64);
    struct placement p;
    struct op_ctx cx = {.threads = 24, .placement = &p};
    placement_plan(&p, &t, PLACEMENT_BIND, GB);
    for (size_t rows = 1; rows < 5000; rows += 7) {
        size_t tasks = op_row_tasks(&cx, rows, 0);
        for (int part = 0; part < p.parts && tasks == 96; part++) {
            size_t begin, end, first, last, n0, n1, other;
            placement_share(&p, part, tasks, &begin, &end);
            placement_share(&p, part, (rows + OP_ROW_GROUP - 1) / OP_ROW_GROUP, &first, &last);
            op_row_range(&cx, rows, 0, begin, &n0, &other);
            op_row_range(&cx, rows, 0, end - 1, &other, &n1);
            assert_int_equal(n0, first * OP_ROW_GROUP);
            assert_int_equal(n1, last * OP_ROW_GROUP < rows ? last * OP_ROW_GROUP : rows);
        }
    }
}

TEST(whole_cores_come_first)
{
    struct topology t = machine(2, 8, 64); /* processors 4..7 of each node are second threads of 0..3 */
    struct placement p;
    for (int c = 0; c < 16; c++)
        t.sibling[c] = c % 8 >= 4;
    t.sibling[1] = 1; /* and 1 comes after 5 */
    t.sibling[5] = 0;
    placement_plan(&p, &t, PLACEMENT_BIND, GB);
    static const int wanted[] = {0, 2, 3, 5, 8, 9, 10, 11};
    for (int i = 0; i < 8; i++)
        assert_int_equal(placement_of_thread(&p, i, 8).cpu, wanted[i]);
}

TEST(a_node_without_memory_takes_the_nearest_with_room)
{
    struct topology t = machine(4, 4, 64);
    struct placement p;
    t.memory[1] = 0;
    t.distance[1][0] = 32; /* one way only: distances need not be symmetric */
    t.distance[1][2] = 31;
    t.distance[1][3] = 12;
    t.distance[3][1] = 99;
    placement_plan(&p, &t, PLACEMENT_BIND, 8 * GB);
    assert_int_equal(p.home[1], 3);
    assert_int_equal(p.home[0], 0);
    assert_int_equal(p.order[1][0], 1);
    assert_int_equal(p.order[1][1], 3);
    assert_int_equal(p.order[1][2], 2);
    assert_int_equal(p.order[1][3], 0);
    assert_int_equal(p.order[3][1], 1); /* its rows lie in node 3 itself */
    t.memory[3] = 3 * GB;               /* room for its own 2 GB, and not for 2 more */
    placement_plan(&p, &t, PLACEMENT_BIND, 8 * GB);
    assert_int_equal(p.home[3], 3);
    assert_int_equal(p.home[1], 2);
    t.memory[2] = t.memory[3] = 3 * GB; /* only node 0 has room */
    placement_plan(&p, &t, PLACEMENT_BIND, 8 * GB);
    assert_int_equal(p.home[1], 0);
    t.memory[0] = 3 * GB; /* nobody: the nearest */
    placement_plan(&p, &t, PLACEMENT_BIND, 8 * GB);
    assert_int_equal(p.home[1], 3);
}

TEST(a_node_with_room_keeps_its_own_rows)
{
    struct topology t = machine(2, 4, 64); /* node 0 has no memory and comes first */
    struct placement p;
    t.memory[0] = 0;
    t.memory[1] = 5 * GB; /* room for one share of 4 GB */
    t.distance[0][2] = 40;
    t.memory[2] = 64 * GB;
    placement_plan(&p, &t, PLACEMENT_BIND, 8 * GB);
    assert_int_equal(p.home[1], 1);
    assert_int_equal(p.home[0], 2);
}

TEST(memory_without_processors_is_for_interleave)
{
    struct topology t = machine(4, 4, 64);
    struct placement p;
    for (int c = 4; c < 8; c++)
        t.node_of_cpu[c] = -1;
    assert_int_equal(placement_plan(&p, &t, PLACEMENT_BIND, GB), 3);
    assert_int_equal(p.node[1], 2);
    assert_int_equal(p.home[1], 2);
    assert_int_equal(placement_plan(&p, &t, PLACEMENT_INTERLEAVE, GB), 1);
    assert_int_equal(p.memories, 4);
    struct pages m = {.first = 0};
    for (size_t i = 0; i < COUNT(m.node); i++)
        m.node[i] = -1;
    placement_of_rows(&p, 5 * PAGE + 1, 3000, 4096, PAGE, note, &m); /* the first whole page is the first of its turn */
    for (size_t i = 0; i < 3000; i++)
        assert_int_equal(m.node[i + 6], i / PLACEMENT_SPREAD % 4);
}

TEST(processors_of_one_node_bind_to_its_memory)
{
    struct topology t = machine(2, 4, 64); /* as under taskset -c 4-7 */
    struct placement p;
    for (int c = 0; c < 4; c++)
        t.node_of_cpu[c] = -1;
    assert_int_equal(placement_plan(&p, &t, PLACEMENT_BIND, GB), 1);
    assert_int_equal(p.home[0], 1);
    assert_int_equal(placement_of_thread(&p, 0, 4).cpu, 4);
}

/* ---- op_parallel ------------------------------------------------------------------------------------------------- */

#define MOST_TASKS 4096
struct work {
    const struct op_ctx *cx;
    const struct placement *p;
    int threads;              /* of the session */
    size_t matrices, first[16], total;
    int waiting, first_of[64], times[MOST_TASKS], cpu_of[64], may_use[64]; /* may_use: how many processors the thread
                                                                              may run on */
    int together;             /* how many threads wait for each other at their first task */
    int stuck;                /* the part whose threads stay in their first task until all others are done; -1: none */
    size_t done;
};

static void once(void *arg, size_t task, int thread)
{
    struct work *w = arg;
    __atomic_fetch_add(&w->times[task], 1, __ATOMIC_SEQ_CST);
    int first = w->first_of[thread] < 0;
    if (first) {
        w->first_of[thread] = (int)task;
        w->cpu_of[thread] = sched_getcpu();
        cpu_set_t set;
        w->may_use[thread] = sched_getaffinity(0, sizeof set, &set) ? -1 : CPU_COUNT(&set);
    }
    if (first && w->together) {
        __atomic_fetch_add(&w->waiting, 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&w->waiting, __ATOMIC_SEQ_CST) < w->together)
            usleep(100);
    }
    int part = placement_of_thread(w->p, thread, w->threads).part, stuck = 0;
    for (int i = 0; i < w->threads; i++)
        stuck += placement_of_thread(w->p, i, w->threads).part == w->stuck;
    while (first && part == w->stuck && __atomic_load_n(&w->done, __ATOMIC_SEQ_CST) + (size_t)stuck < w->total)
        usleep(100);
    __atomic_fetch_add(&w->done, 1, __ATOMIC_SEQ_CST);
}

/* Every other matrix has half as many tasks. */
static void run_work(struct work *w, const struct placement *p, int threads, size_t matrices, size_t tasks)
{
    struct op_ctx cx = {.threads = threads, .thread_cost = 1, .placement = p};
    static _Alignas(64) char memory[1 << 14];
    cpu_set_t before;
    assert_in_range(crew_bytes(threads), 1, sizeof memory);
    sched_getaffinity(0, sizeof before, &before);
    w->p = p;
    w->threads = threads;
    w->matrices = matrices;
    for (size_t m = 0; m < matrices; m++)
        w->first[m + 1] = w->first[m] + (m % 2 ? tasks / 2 : tasks);
    w->total = w->first[matrices];
    for (int i = 0; i < 64; i++)
        w->first_of[i] = -1;
    w->cx = &cx;
    if (threads > 1) {
        cx.crew = crew_open(memory, threads, p, 0);
        crew_use(cx.crew, threads);
    }
    op_parallel_matrices(&cx, w->first, matrices, 1e9, once, w);
    crew_close(cx.crew);
    sched_setaffinity(0, sizeof before, &before);
    for (size_t i = 0; i < w->total; i++)
        if (w->times[i] != 1)
            fail_msg("%d threads, %d parts, %zu matrices of %zu tasks: task %zu ran %d times", threads, p->parts,
                     matrices, tasks, i, w->times[i]);
}

/* Parts without a task, tasks without a thread, more threads than tasks: every task runs once. */
TEST(every_task_runs_once)
{
    static const int nodes[] = {2, 3, 8}, threads[] = {1, 2, 3, 5, 16};
    static const size_t tasks[] = {1, 2, 3, 7, 8, 20, 65}, matrices[] = {1, 2, 9};
    for (size_t n = 0; n < COUNT(nodes); n++)
        for (size_t t = 0; t < COUNT(threads); t++)
            for (size_t k = 0; k < COUNT(tasks); k++)
                for (size_t m = 0; m < COUNT(matrices); m++)
                    for (enum placement_mode mode = PLACEMENT_INTERLEAVE; mode <= PLACEMENT_BIND; mode++) {
                        struct topology machine_of = machine(nodes[n], 2, 8);
                        struct placement p;
                        struct work w = {.stuck = -1};
                        placement_plan(&p, &machine_of, mode, GB);
                        run_work(&w, &p, threads[t], matrices[m], tasks[k]);
                    }
}

/* All threads wait for each other at their first task: each must have found one of its own part. */
TEST(a_thread_takes_its_own_tasks_first)
{
    for (int nodes = 2; nodes <= 8; nodes *= 2)
        for (size_t matrices = 1; matrices <= 5; matrices += 2) {
            struct topology t = machine(nodes, 2, 8);
            struct placement p;
            struct work w = {.together = 2 * nodes, .stuck = -1};
            placement_plan(&p, &t, PLACEMENT_BIND, GB);
            run_work(&w, &p, 2 * nodes, matrices, 8 * (size_t)nodes);
            for (int i = 0; i < 2 * nodes; i++) {
                size_t m = 0, begin, end, piece = (size_t)w.first_of[i];
                while (piece >= w.first[m + 1])
                    m++;
                piece -= w.first[m];
                placement_share(&p, placement_of_thread(&p, i, 2 * nodes).part, w.first[m + 1] - w.first[m], &begin,
                                &end);
                if (piece < begin || piece >= end)
                    fail_msg("%d nodes: thread %d begins with piece %zu of matrix %zu of %zu, its part is [%zu, %zu)",
                             nodes, i, piece, m, matrices, begin, end);
            }
        }
}

/* The threads of one part do not come back before all else is done: the others do its tasks. */
TEST(tasks_of_a_part_that_is_held_up_are_done_by_others)
{
    struct topology t = machine(4, 2, 8);
    struct placement p;
    placement_plan(&p, &t, PLACEMENT_BIND, GB);
    for (int stuck = 0; stuck < 4; stuck++) {
        struct work w = {.together = 8, .stuck = stuck};
        run_work(&w, &p, 8, 3, 32);
    }
}

/* On the processors that are here, in an order that the kernel would not choose by itself. */
TEST(threads_run_on_their_processors)
{
    cpu_set_t here;
    struct topology t = machine(0, 0, 0);
    struct placement p;
    int cpus[2], count = 0;
    assert_int_equal(sched_getaffinity(0, sizeof here, &here), 0);
    for (int c = 0; c < PLACEMENT_CPUS && count < 2; c++)
        if (CPU_ISSET((size_t)c, &here))
            cpus[count++] = c;
    if (count < 2)
        skip();
    t.node_of_cpu[cpus[0]] = 1;
    t.node_of_cpu[cpus[1]] = 0;
    t.memory[0] = t.memory[1] = GB;
    placement_plan(&p, &t, PLACEMENT_BIND, GB);
    for (int round = 0; round < 20; round++) {
        struct work w = {.together = 2, .stuck = -1};
        run_work(&w, &p, 2, 1, 8);
        assert_int_equal(w.cpu_of[0], cpus[1]);
        assert_int_equal(w.cpu_of[1], cpus[0]);
        assert_true(w.may_use[0] == 1 && w.may_use[1] == 1); /* they stay there */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_node_has_nothing_to_place),
        cmocka_unit_test(every_plan_covers_threads_tasks_and_pages_once),
        cmocka_unit_test(bind_gives_threads_and_rows_to_the_same_node),
        cmocka_unit_test(tasks_of_a_session_on_all_processors_meet_their_pages),
        cmocka_unit_test(whole_cores_come_first),
        cmocka_unit_test(a_node_without_memory_takes_the_nearest_with_room),
        cmocka_unit_test(a_node_with_room_keeps_its_own_rows),
        cmocka_unit_test(memory_without_processors_is_for_interleave),
        cmocka_unit_test(processors_of_one_node_bind_to_its_memory),
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(a_thread_takes_its_own_tasks_first),
        cmocka_unit_test(tasks_of_a_part_that_is_held_up_are_done_by_others),
        cmocka_unit_test(threads_run_on_their_processors),
    };
    alarm(600); /* a task that nobody takes is waited for */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
