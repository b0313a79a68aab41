/* tests/engine/test_numa.c -- --numa and --mlock: sysfs as it is read, pages as they are placed, the same bits
 * everywhere, and what the command says. This machine may have one node only: others are invented, with its one memory
 * for all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/model/numa.h"
#include "tests/support/engine_support.h"
#include "tests/support/machines.h"
#include "tests/support/process.h"

#define GENERATE "generate", "golden/tiny/v3", "--tokens", "5,6,7", "-n", "8", "--ignore-eos"

/* ---- sysfs ------------------------------------------------------------------------------------------------------- */

static void put(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(full, 0700);
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void remove_tree(const char *root)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    assert_int_equal(system(command), 0);
}

static const char
    meminfo[] = "Node 0 MemTotal:       16000 kB\nNode 0 MemFree:         1000 kB\nNode 0 Active:          9 kB\n"
                "Node 0 Active(file):    200 kB\nNode 0 Inactive(file):  30 kB\n";

TEST(sysfs_is_read)
{
    char root[64];
    struct topology t;
    make_dir(root);
    put(root, "cpu/online", "0-5,8-11\n");
    put(root, "node/online", "0,2-3\n");
    put(root, "node/node0/cpulist", "0-3,8\n");
    put(root, "node/node2/cpulist", "4-7,9-11\n"); /* 6 and 7 are not online */
    put(root, "node/node3/cpulist", "\n");
    put(root, "node/node0/distance", "10 21 17\n");
    put(root, "node/node2/distance", "31 10 99\n");
    put(root, "node/node3/distance", "17 28 10\n");
    put(root, "node/node0/meminfo", meminfo);
    put(root, "node/node3/meminfo", "Node 3 MemFree:  4 kB\n");
    put(root, "cpu/cpu0/topology/thread_siblings_list", "0,8\n");
    put(root, "cpu/cpu8/topology/thread_siblings_list", "0,8\n");
    put(root, "cpu/cpu10/topology/thread_siblings_list", "9-11\n");
    assert_int_equal(topology_read(&t, root), 3);
    for (int c = 0; c < PLACEMENT_CPUS; c++)
        assert_int_equal(t.node_of_cpu[c], c < 4 || c == 8 ? 0 : c == 4 || c == 5 || (c >= 9 && c < 12) ? 2 : -1);
    assert_int_equal(t.distance[0][2], 21);
    assert_int_equal(t.distance[0][3], 17);
    assert_int_equal(t.distance[2][0], 31);
    assert_int_equal(t.distance[2][3], 99);
    assert_int_equal(t.distance[0][1], 0);
    assert_int_equal(t.memory[0], 1230 * 1024);
    assert_int_equal(t.memory[2], 0);
    assert_int_equal(t.memory[3], 4096);
    assert_int_equal(t.sibling[0], 0);
    assert_int_equal(t.sibling[8], 1);
    assert_int_equal(t.sibling[10], 1);
    assert_int_equal(t.sibling[9], 0);

    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(3, &cpus);
    CPU_SET(9, &cpus);
    topology_allow(&t, &cpus, 1u << 3);
    for (int c = 0; c < PLACEMENT_CPUS; c++)
        assert_int_equal(t.node_of_cpu[c], c == 3 ? 0 : c == 9 ? 2 : -1);
    assert_int_equal(t.memory[0], 0);
    assert_int_equal(t.memory[3], 4096);
    remove_tree(root);
}

TEST(sysfs_that_is_not_there_or_makes_no_sense_is_one_node)
{
    char root[64];
    struct topology t;
    struct placement p;
    assert_int_equal(topology_read(&t, "/nowhere"), 1);
    assert_int_equal(placement_plan(&p, &t, PLACEMENT_BIND, GB), 0);
    make_dir(root);
    put(root, "node/online", "0-63,99999999999999999999,-3\n");
    put(root, "node/node0/cpulist", "3-1,x,5000-6000\n");
    put(root, "node/node1/cpulist", "1023-99999999\n");
    put(root, "node/node0/distance", "10 -4 700 x\n");
    put(root, "node/node0/meminfo", "MemFree:\n");
    assert_int_equal(topology_read(&t, root), 64);
    assert_int_equal(t.distance[0][0], 10);
    for (int n = 1; n < PLACEMENT_NODES; n++)
        assert_int_equal(t.distance[0][n], 0);
    assert_int_equal(t.node_of_cpu[1023], 1);
    assert_int_equal(placement_plan(&p, &t, PLACEMENT_BIND, GB), 0);
    remove_tree(root);
}

/* ---- pages and bits ---------------------------------------------------------------------------------------------- */

static vb_placement place(vb_model *m, enum placement_mode mode, const struct topology *t)
{
    vb_placement p;
    vb_free(m->allocator, m->numa);
    m->numa = vb_alloc(m->allocator, 1, sizeof *m->numa);
    assert_non_null(m->numa);
    numa_place_on(m, mode, t);
    assert_int_equal(vb_model_placement(m, &p), 1);
    return p;
}

/* Nodes without memory find their home in node 0, which is there: the calls are made, and every page lies where it
 * should. */
TEST(pages_are_read_to_their_place)
{
    struct topology t = machine(4, 1, 0);
    t.memory[0] = GB;
    for (enum placement_mode mode = PLACEMENT_INTERLEAVE; mode <= PLACEMENT_BIND; mode++) {
        vb_model *m = open_model(have_tale() ? "golden/tale" : "golden/tiny/v3"); /* the larger: its weights are not
                                                                                     read yet */
        cpu_set_t before, after;
        sched_getaffinity(0, sizeof before, &before);
        vb_placement p = place(m, mode, &t);
        sched_getaffinity(0, sizeof after, &after);
        assert_true(CPU_EQUAL(&before, &after));
#ifdef HAVE_NUMA
        if (p.failed) /* a container may forbid it */
            print_message("skipped: %s\n", p.why_not);
        else if (p.nodes != 4 || p.pages == 0 || p.in_place + p.moved != p.pages || *p.why_not)
            fail_msg("%d nodes, %zu pages, %zu in place, %zu moved: \"%s\"", p.nodes, p.pages, p.in_place, p.moved,
                     p.why_not);
#else
        assert_true(p.failed && strstr(p.why_not, "libnuma"));
#endif
        vb_model_close(m);
    }
}

#ifdef HAVE_NUMA
TEST(a_machine_that_refuses_is_reported)
{
    struct topology t = machine(2, 1, 1);
    vb_model *m = open_tiny("v3");
    memset(t.memory, 0, sizeof t.memory);
    t.memory[62] = t.memory[63] = GB; /* nodes that this machine has not */
    vb_placement p = place(m, PLACEMENT_BIND, &t);
    assert_true(p.failed);
    assert_non_null(strstr(p.why_not, "set_mempolicy: "));
    assert_int_equal(p.in_place, 0);
    t.memory[62] = t.memory[63] = 4096;
    p = place(m, PLACEMENT_BIND, &t); /* larger than memory: left alone */
    assert_true(!p.failed && p.pages == 0);
    assert_non_null(strstr(p.why_not, "more than"));
    assert_non_null(numa_placement(m));
    t = machine(1, 2, 1);
    p = place(m, PLACEMENT_BIND, &t);
    assert_true(!p.failed && p.pages == 0 && p.nodes == 1);
    assert_null(numa_placement(m));
    vb_model_close(m);
}
#endif

/* Every part is somewhere else, threads help each other as they come: no bit moves, and the caller's thread stays
 * free. */
TEST(no_bit_depends_on_places)
{
    static const char *const dirs[] = {"golden/tiny/v3", "golden/tiny/v3-mtp3", "golden/tiny/glm", "golden/tale"};
    static const int nodes[] = {2, 3, 8}, threads[] = {1, 2, 3, 8};
    for (size_t d = 0; d < COUNT(dirs) - !have_tale(); d++) {
        int32_t prompt[40];
        struct record *plain = malloc(sizeof *plain), *placed = malloc(sizeof *placed);
        vb_model *m = open_model(dirs[d]);
        random_tokens(m, 3, prompt, COUNT(prompt));
        run_plain(m, NULL, prompt, COUNT(prompt), 20, plain);
        for (size_t n = 0; n < COUNT(nodes); n++)
            for (size_t i = 0; i < COUNT(threads); i++) {
                struct topology t = machine(nodes[n], 2, 0);
                cpu_set_t before, after;
                vb_session_options o = {.context = 80, .exact_threads = 1, .threads = threads[i],
                                        .drafting.method = m->num_mtp ? "mtp-eagle" : "none"};
                t.memory[0] = GB;
                place(m, i % 2 ? PLACEMENT_BIND : PLACEMENT_INTERLEAVE, &t);
                sched_getaffinity(0, sizeof before, &before);
                vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
                s->pass->cx.thread_cost = 1; /* threads wake for the smallest work */
                generate(s, 20, placed);
                vb_session_close(s);
                sched_getaffinity(0, sizeof after, &after);
                if (!CPU_EQUAL(&before, &after))
                    fail_msg("%s, %d nodes, %d threads: the caller's thread is still pinned", dirs[d], nodes[n],
                             threads[i]);
                check_same(dirs[d], plain, placed);
            }
        vb_model_close(m);
        free(plain);
        free(placed);
    }
}

TEST(an_option_that_is_off_reports_nothing)
{
    vb_model *m;
    vb_placement p = {.nodes = 7};
    vb_model_options o = {.numa = "off"};
    OK(vb_model_open(&m, "golden/tiny/v3", &o, &err));
    assert_int_equal(vb_model_placement(m, &p), 0);
    assert_int_equal(p.nodes, 0);
    vb_model_close(m);
    o.numa = "distribute";
    REFUSED(vb_model_open(&m, "golden/tiny/v3", &o, &err), VB_BAD_ARGUMENT,
            "unknown numa mode distribute; known are off, interleave, bind");
    assert_null(m);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

TEST(the_command_gives_the_same_with_every_mode)
{
    static const char *const modes[] = {"off", "interleave", "bind"};
    json_t *plain = JSON(GENERATE);
    for (size_t i = 0; i < COUNT(modes); i++) {
        struct said said = RUN(GENERATE, "--json", "--numa", modes[i]); /* where it is refused, stderr says so */
        expect_code(&said, 0);
        json_t *j = parsed(&said), *numa = json_object_get(json_object_get(j, "stats"), "numa");
        forget(&said);
        assert_true(json_equal(json_object_get(j, "fingerprint"), json_object_get(plain, "fingerprint")));
        if (i == 0)
            assert_true(json_is_null(numa));
        else
            expect_keys(numa, "nodes:i pages:i in_place:i moved:i seconds:r why_not:s");
        struct said quiet = RUN(GENERATE, "--numa", modes[i]), stats = RUN(GENERATE, "--stats", "--numa", modes[i]);
        expect_code(&quiet, 0);
        expect_code(&stats, 0);
        assert_string_equal(quiet.out, stats.out);
        if (i && (!strstr(stats.err, "--numa ") || strstr(strstr(stats.err, "--numa ") + 1, "--numa ")))
            fail_msg("%s: --stats should have one sentence about --numa: %s", stats.command, stats.err);
        json_t *why = json_object_get(numa, "why_not");
        if (i && integer(numa, "nodes") == 1 &&
            (strstr(quiet.err, "--numa") || !strstr(json_string_value(why), "one node")))
            fail_msg("%s: on one node there is nothing to say: %s", quiet.command, quiet.err);
        forget(&quiet);
        forget(&stats);
        json_decref(j);
    }
    json_decref(plain);
}

TEST(an_unknown_mode_is_refused)
{
    struct said s = RUN(GENERATE, "--numa", "distribute");
    expect_code(&s, 2);
    assert_string_equal(s.err, "verbatim: unknown numa mode distribute; known are off, interleave, bind\n");
    assert_int_equal(s.out_size, 0);
    forget(&s);
}

/* VmLck of this process, in bytes */
static long long locked_bytes(void)
{
    char line[256];
    long long kb = -1;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (kb < 0 && fgets(line, sizeof line, f))
        sscanf(line, "VmLck: %lld", &kb);
    fclose(f);
    return kb * 1024;
}

TEST(locked_weights_are_locked_until_the_model_is_closed)
{
    vb_model *m = open_tiny("v3");
    vb_error err = {0};
    struct stat st;
    long long before = locked_bytes();
    assert_int_equal(stat("golden/tiny/v3/model.safetensors", &st), 0);
    int code = vb_model_lock(m, &err);
    if (code) {
        assert_int_equal(code, VB_NO_MEMORY);
        assert_int_equal(locked_bytes(), before);
        print_message("skipped: %s\n", err.message);
    } else if (locked_bytes() < before + st.st_size)
        fail_msg("%lld bytes are locked, of %lld", locked_bytes() - before, (long long)st.st_size);
    vb_model_close(m);
    assert_int_equal(locked_bytes(), before);
}

/* Without the privilege to lock more than the limit, as most users are. */
TEST(mlock_names_the_limit_and_goes_on)
{
    struct rlimit before, none = {4096, 4096};
    json_t *plain = JSON(GENERATE);
    getrlimit(RLIMIT_MEMLOCK, &before);
    none.rlim_max = before.rlim_max;
    struct said s = RUN(GENERATE, "--mlock", "--json");
    expect_code(&s, 0); /* locked, or too low a limit to begin with */
    forget(&s);
    uid_t uid = geteuid();
    setrlimit(RLIMIT_MEMLOCK, &none);
    if (uid == 0 && setresuid(65534, 65534, 0)) { /* root may lock all it likes */
        setrlimit(RLIMIT_MEMLOCK, &before);
        skip();
    }
    if (access(verbatim, X_OK)) {
        assert_int_equal(setresuid(0, 0, 0), 0);
        skip(); /* nobody may not run it from where it lies */
    }
    s = RUN(GENERATE, "--mlock", "--json");
    if (uid == 0)
        assert_int_equal(setresuid(0, 0, 0), 0);
    setrlimit(RLIMIT_MEMLOCK, &before);
    expect_code(&s, 0);
    json_t *j = parsed(&s);
    assert_true(json_equal(json_object_get(j, "fingerprint"), json_object_get(plain, "fingerprint")));
    char wanted[64], size[64];
    struct stat st;
    snprintf(wanted, sizeof wanted, "is %d bytes", 4096);
    assert_int_equal(stat("golden/tiny/v3/model.safetensors", &st), 0);
    snprintf(size, sizeof size, "its %lld bytes", (long long)st.st_size);
    if (!strstr(s.err, "warning") || !strstr(s.err, "RLIMIT_MEMLOCK") || !strstr(s.err, wanted) ||
        !strstr(s.err, size) || strchr(s.err, '\n') != s.err + s.err_size - 1)
        fail_msg("--mlock should name wish and limit in one sentence: %s", s.err);
    forget(&s);
    json_decref(j);
    json_decref(plain);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sysfs_is_read),
        cmocka_unit_test(sysfs_that_is_not_there_or_makes_no_sense_is_one_node),
        cmocka_unit_test(pages_are_read_to_their_place),
#ifdef HAVE_NUMA
        cmocka_unit_test(a_machine_that_refuses_is_reported),
#endif
        cmocka_unit_test(no_bit_depends_on_places),
        cmocka_unit_test(an_option_that_is_off_reports_nothing),
        cmocka_unit_test(the_command_gives_the_same_with_every_mode),
        cmocka_unit_test(an_unknown_mode_is_refused),
        cmocka_unit_test(locked_weights_are_locked_until_the_model_is_closed),
        cmocka_unit_test(mlock_names_the_limit_and_goes_on),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
