/* engine/model/topology.c -- reads from sysfs which processors and NUMA nodes the machine has. libnuma could do the
 * same, but it writes to stderr if a file is missing in sysfs. */
#include "engine/model/numa.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads a file of sysfs, at most room - 1 bytes, and adds a 0 byte. Returns 0 if the file cannot be opened. */
static int read_text(char *text, size_t room, const char *root, const char *format, int number)
{
    char path[4096], name[128];
    size_t used = 0;
    ssize_t n;
    snprintf(name, sizeof name, format, number);
    if (snprintf(path, sizeof path, "%s/%s", root, name) >= (int)sizeof path)
        return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    while (used + 1 < room && (n = read(fd, text + used, room - 1 - used)) > 0)
        used += (size_t)n;
    close(fd);
    text[used] = '\0';
    return 1;
}

/* Parses a list such as "0-3,8,10-11". Sets has[i] to 1 for each number i < count in the list, and to 0 for all
 * others. */
static void read_list(unsigned char *has, int count, const char *text)
{
    memset(has, 0, (size_t)count);
    while (*text >= '0' && *text <= '9') {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long i = first; i <= last && i < count; i++)
            has[i] = 1;
        text = *end == ',' ? end + 1 : "";
    }
}

/* Finds the line "Node 0 NAME: 123 kB" and returns its number in bytes. */
static uint64_t meminfo(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

/* Returns how many processors with a lower number belong to the same core. */
static int sibling_of(const char *root, int cpu)
{
    char text[4096];
    unsigned char core[PLACEMENT_CPUS];
    int before = 0;
    if (!read_text(text, sizeof text, root, "cpu/cpu%d/topology/thread_siblings_list", cpu))
        return 0;
    read_list(core, PLACEMENT_CPUS, text);
    for (int c = 0; c < cpu; c++)
        before += core[c];
    return before;
}

static void read_node(struct topology *t, const char *root, int node, const unsigned char *nodes,
                      const unsigned char *cpus)
{
    char text[8192];
    unsigned char mine[PLACEMENT_CPUS];
    if (read_text(text, sizeof text, root, "node/node%d/cpulist", node)) {
        read_list(mine, PLACEMENT_CPUS, text);
        for (int c = 0; c < PLACEMENT_CPUS; c++)
            if (mine[c] && cpus[c])
                t->node_of_cpu[c] = node;
    }
    if (read_text(text, sizeof text, root, "node/node%d/meminfo", node))
        t->memory[node] = meminfo(text, "MemFree:") + meminfo(text, "Active(file):") + meminfo(text, "Inactive(file):");
    if (!read_text(text, sizeof text, root, "node/node%d/distance", node))
        return;
    char *at = text, *end;
    for (int n = 0; n < PLACEMENT_NODES; n++) { /* the file has one number for each online node */
        if (!nodes[n])
            continue;
        long d = strtol(at, &end, 10);
        if (end == at)
            return;
        t->distance[node][n] = (unsigned char)(d > 0 && d < 256 ? d : 0);
        at = end;
    }
}

int topology_read(struct topology *t, const char *root)
{
    char text[8192];
    unsigned char nodes[PLACEMENT_NODES], cpus[PLACEMENT_CPUS];
    int count = 0;
    memset(t, 0, sizeof *t);
    memset(cpus, 1, sizeof cpus);
    for (int c = 0; c < PLACEMENT_CPUS; c++)
        t->node_of_cpu[c] = -1;
    if (read_text(text, sizeof text, root, "cpu/online", 0))
        read_list(cpus, PLACEMENT_CPUS, text);
    if (!read_text(text, sizeof text, root, "node/online", 0))
        return 1;
    read_list(nodes, PLACEMENT_NODES, text);
    for (int n = 0; n < PLACEMENT_NODES; n++)
        if (nodes[n]) {
            read_node(t, root, n, nodes, cpus);
            count++;
        }
    for (int c = 0; c < PLACEMENT_CPUS; c++)
        if (t->node_of_cpu[c] >= 0)
            t->sibling[c] = sibling_of(root, c);
    return count;
}

void topology_allow(struct topology *t, const cpu_set_t *cpus, uint64_t memories)
{
    for (int c = 0; c < PLACEMENT_CPUS; c++)
        if (!CPU_ISSET((size_t)c, cpus))
            t->node_of_cpu[c] = -1;
    for (int n = 0; n < PLACEMENT_NODES; n++)
        if (!(memories >> n & 1))
            t->memory[n] = 0;
}
