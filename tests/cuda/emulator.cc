#include "tests/cuda/emulator.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "tests/cuda/lanes.h"
#include "tests/cuda/watch.h"

struct lanes_index threadIdx, blockIdx, gridDim;

extern "C" {
#define X(name, threads) void kernel_##name(const void *args);
DEVICE_KERNELS(X)
#undef X
extern char __start_lanes_shared[] __attribute__((weak)), __stop_lanes_shared[] __attribute__((weak));
}

static const struct {
    const char *name;
    unsigned threads;
    void (*call)(const void *args);
} kernels[] = {
#define X(name, threads) {#name, threads, kernel_##name},
    DEVICE_KERNELS(X)
#undef X
};

/* ---- fibers ---- */

enum { MOST_THREADS = 1024, STACK = 128 << 10 };

/* A place where a fiber, or the scheduler, goes on: its stack pointer, under which its registers are. switch_place
 * keeps the present place in *from. A shuffle of a warp switches 64 times, and swapcontext makes a system call each
 * time; it is used on other machines only. */
#ifdef __x86_64__
struct place {
    void *stack;
};
extern "C" void lanes_switch(void **from, void *to);
__asm__(".text\n"
        ".type lanes_switch, @function\n"
        "lanes_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n");
static void switch_place(struct place *from, struct place *to) { lanes_switch(&from->stack, to->stack); }

static void begin_at(struct place *p, char *stack, void (*run)(void))
{
    void **top = (void **)(void *)(stack + STACK);
    *--top = NULL; /* `run` finds its stack as after a call */
    *--top = (void *)run;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    p->stack = top;
}
#else
struct place {
    ucontext_t at;
};
static void switch_place(struct place *from, struct place *to) { swapcontext(&from->at, &to->at); }

static void begin_at(struct place *p, char *stack, void (*run)(void))
{
    getcontext(&p->at);
    p->at.uc_stack.ss_sp = stack;
    p->at.uc_stack.ss_size = STACK;
    p->at.uc_link = NULL;
    makecontext(&p->at, run, 0);
}
#endif

enum fiber_state { READY, AT_BLOCK, AT_WARP, DONE };

struct fiber {
    struct place at;   /* where it goes on */
    enum fiber_state state;
    unsigned mask;     /* AT_WARP: who meets */
    int orders_memory; /* AT_WARP: at __syncwarp, which a shuffle is not */
    uint64_t exchange, given; /* what this lane gives to others; the same when the barrier was complete: others may read
                                 it until the next one is */
};

static struct {
    struct fiber fiber[MOST_THREADS];
    char *stacks;
    unsigned made;    /* fibers that have a stack */
    unsigned threads; /* of the present block */
    unsigned now;     /* the fiber that runs */
    struct place scheduler;
    const char *kernel;
    void (*call)(const void *args);
    const void *args;
} block;

/* A fiber lives as long as the process: it computes one thread of a block, and then waits for the next block. */
static void fiber_main(void)
{
    for (;;) {
        struct fiber *f = &block.fiber[block.now];
        block.call(block.args);
        f->state = DONE;
        switch_place(&f->at, &block.scheduler);
    }
}

static void make_fibers(unsigned threads)
{
    if (!block.stacks) {
        block.stacks = (char *)mmap(NULL, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert(block.stacks != MAP_FAILED);
    }
    for (; block.made < threads; block.made++)
        begin_at(&block.fiber[block.made].at, block.stacks + (size_t)block.made * STACK, fiber_main);
}

static void wait_as(enum fiber_state state)
{
    struct fiber *f = &block.fiber[block.now];
    f->state = state;
    switch_place(&f->at, &block.scheduler);
}

void lanes_block_barrier(void) { wait_as(AT_BLOCK); }

static void meet_warp(unsigned mask, int orders_memory)
{
    if (!(mask >> threadIdx.x % 32 & 1)) {
        fprintf(stderr, "a thread is not in the mask %08x of its own barrier\n", mask);
        abort();
    }
    block.fiber[block.now].mask = mask;
    block.fiber[block.now].orders_memory = orders_memory;
    wait_as(AT_WARP);
}

void lanes_warp_barrier(unsigned mask) { meet_warp(mask, 1); }

void lanes_check_read_once(const void *p, size_t bytes)
{
    if ((uintptr_t)p % bytes) {
        fprintf(stderr, "%zu bytes are read from an address that is not aligned\n", bytes);
        abort();
    }
    if (watch_read_once)
        watch_read_once(p, bytes);
}

uint64_t lanes_exchange(unsigned mask, uint64_t bits, unsigned from)
{
    unsigned first = block.now / 32 * 32;
    block.fiber[block.now].exchange = bits;
    meet_warp(mask, 0);
    return mask >> from & 1 ? block.fiber[first + from].given : 0xdeaddeaddeaddeadu; /* undefined on a device */
}

const uint64_t *lanes_gather(uint64_t bits)
{
    static uint64_t all[MOST_THREADS / 32][32];
    unsigned warp = block.now / 32;
    block.fiber[block.now].exchange = bits;
    meet_warp(0xffffffffu, 0);
    for (unsigned lane = 0; lane < 32; lane++)
        all[warp][lane] = block.fiber[warp * 32 + lane].given;
    return all[warp];
}

/* ---- one block ---- */

static uint64_t random_state;
static unsigned random_below(unsigned n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((random_state >> 33) % n);
}

static void put_in_order(unsigned *order, unsigned n, enum emulator_order how)
{
    for (unsigned i = 0; i < n; i++)
        order[i] = how == EMULATOR_DESCENDING ? n - 1 - i : i;
    for (unsigned i = n; how == EMULATOR_RANDOM && i > 1; i--) {
        unsigned j = random_below(i), kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

static unsigned count(unsigned first, unsigned last, enum fiber_state state)
{
    unsigned n = 0;
    for (unsigned i = first; i < last; i++)
        n += block.fiber[i].state == state;
    return n;
}

/* Lets the threads of a warp continue whose barrier is complete. */
static void release_warp(unsigned first)
{
    for (unsigned lane = 0; lane < 32; lane++) {
        unsigned mask = block.fiber[first + lane].mask, complete = block.fiber[first + lane].state == AT_WARP;
        for (unsigned other = 0; other < 32 && complete; other++)
            if (mask >> other & 1)
                complete = block.fiber[first + other].state == AT_WARP && block.fiber[first + other].mask == mask;
        if (complete && mask == 0xffffffffu && block.fiber[first].orders_memory && watch_warp_barrier)
            watch_warp_barrier(first / 32);
        for (unsigned other = 0; other < 32 && complete; other++)
            if (mask >> other & 1) {
                block.fiber[first + other].state = READY;
                block.fiber[first + other].given = block.fiber[first + other].exchange;
            }
        if (complete && mask == 0xffffffffu)
            return;
    }
}

/* Runs each thread of a warp that is ready, until it ends or waits. */
static void run_warp(unsigned first, enum emulator_order how)
{
    unsigned order[32];
    put_in_order(order, 32, how);
    for (unsigned i = 0; i < 32; i++)
        if (block.fiber[first + order[i]].state == READY) {
            block.now = first + order[i];
            threadIdx = (struct lanes_index){block.now, 0, 0};
            if (watch_thread)
                watch_thread(block.now);
            switch_place(&block.scheduler, &block.fiber[block.now].at);
        }
    release_warp(first);
}

/* Runs one block. In ascending and descending order, each warp runs as far as it can before the next one runs. In
 * random order it runs for a few steps. */
static void run_block(enum emulator_order how)
{
    static unsigned runs;
    unsigned order[MOST_THREADS / 32], warps = block.threads / 32;
    if (++runs % 16 == 1) /* the arrays of all kernels together are large; other blocks find what earlier ones left */
        memset(__start_lanes_shared, 0xa5, (size_t)(__stop_lanes_shared - __start_lanes_shared));
    for (unsigned i = 0; i < block.threads; i++)
        block.fiber[i].state = READY;
    if (watch_block)
        watch_block();
    while (count(0, block.threads, READY)) {
        put_in_order(order, warps, how);
        for (unsigned i = 0; i < warps; i++) {
            unsigned first = order[i] * 32, steps = how == EMULATOR_RANDOM ? 1 + random_below(4) : ~0u;
            while (steps-- && count(first, first + 32, READY))
                run_warp(first, how);
        }
        /* a thread that has ended does not count */
        if (count(0, block.threads, AT_BLOCK) + count(0, block.threads, DONE) == block.threads) {
            for (unsigned i = 0; i < block.threads; i++)
                if (block.fiber[i].state == AT_BLOCK)
                    block.fiber[i].state = READY;
            if (watch_block_barrier)
                watch_block_barrier();
        }
    }
    for (unsigned i = 0; i < block.threads; i++)
        if (block.fiber[i].state != DONE) {
            block.now = i;
            fprintf(stderr, "a thread waits for others that do not come\n");
            abort();
        }
}

/* ---- crashes ---- */

/* A test framework may catch signals and go on with its next test. That is wrong after a crash inside a kernel, which
 * leaves a block half done and `one_launch` locked. So these signals end the program while a kernel runs. */
static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
enum { CRASHES = sizeof crashes / sizeof *crashes };

static void end_program(int signal_number)
{
    char text[256];
    int length = snprintf(text, sizeof text, "kernel %s, block %u, %u, %u, thread %u: %s\n", block.kernel, blockIdx.x,
                          blockIdx.y, blockIdx.z, block.now, strsignal(signal_number));
    ssize_t written = write(STDERR_FILENO, text, (size_t)length);
    (void)written;
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void catch_crashes(struct sigaction before[CRASHES])
{
    struct sigaction ours = {};
    ours.sa_handler = end_program;
    ours.sa_flags = SA_NODEFER;
    for (int i = 0; i < CRASHES; i++)
        sigaction(crashes[i], &ours, &before[i]);
}

static void leave_crashes_to(const struct sigaction before[CRASHES])
{
    for (int i = 0; i < CRASHES; i++)
        sigaction(crashes[i], &before[i], NULL);
}

/* ---- the device ---- */

struct emulated {
    struct device device; /* first */
    enum emulator_order order;
    size_t launches, replays;
    struct recording *recording; /* NULL: nothing is recorded now */
};

/* Work that was given during a recording: a kernel, or a copy if `bytes` is not 0. */
struct step {
    enum device_kernel kernel;
    unsigned grid[3];
    char args[4096];
    size_t size; /* of args */
    void *to;
    const void *from;
    size_t bytes;
};

struct recording {
    struct step *steps;
    size_t count;
};

static struct step *next_step(struct emulated *e);

static pthread_mutex_t one_launch = PTHREAD_MUTEX_INITIALIZER;

static size_t page(void) { return (size_t)sysconf(_SC_PAGESIZE); }
/* An allocation ends where a page ends that may not be touched, up to the alignment of 16 bytes. Its size is kept in
 * the page before it. */
static int allocate(struct device *, void **address, size_t bytes)
{
    size_t pages = (bytes + page() - 1) / page() * page(), all = page() + pages + page(),
           padded = (bytes + 15) & ~(size_t)15;
    char *at = (char *)mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return -1;
    mprotect(at + page() + pages, page(), PROT_NONE);
    *(size_t *)(void *)at = all;
    *address = at + page() + pages - padded;
    memset(*address, 0xa5, padded);
    if (watch_allocated) {
        pthread_mutex_lock(&one_launch);
        watch_allocated(*address, bytes);
        pthread_mutex_unlock(&one_launch);
    }
    return 0;
}

static void release_memory(struct device *, void *address)
{
    char *at = (char *)((uintptr_t)address / page() * page()) - page();
    if (watch_released) {
        pthread_mutex_lock(&one_launch);
        watch_released(address);
        pthread_mutex_unlock(&one_launch);
    }
    munmap(at, *(size_t *)(void *)at);
}

static int copy_bytes(struct device *, void *to, const void *from, size_t bytes)
{
    memmove(to, from, bytes);
    return 0;
}

static int copy_between(struct device *d, void *to, const void *from, size_t bytes)
{
    struct emulated *e = (struct emulated *)d;
    if (!e->recording)
        return copy_bytes(d, to, from, bytes);
    struct step *s = next_step(e);
    s->to = to;
    s->from = from;
    s->bytes = bytes;
    return 0;
}

static int launch(struct device *d, enum device_kernel kernel, const unsigned grid[3], const void *args, size_t size)
{
    struct emulated *e = (struct emulated *)d;
    if (e->recording) {
        struct step *s = next_step(e);
        s->kernel = kernel;
        memcpy(s->grid, grid, sizeof s->grid);
        memcpy(s->args, args, size), s->size = size;
        return 0;
    }
    static unsigned order[1 << 16];
    char copied[4096];
    assert(size <= sizeof copied);
    memcpy(copied, args, size);
    struct sigaction before[CRASHES];
    pthread_mutex_lock(&one_launch);
    catch_crashes(before);
    block.kernel = kernels[kernel].name;
    block.threads = kernels[kernel].threads;
    block.call = kernels[kernel].call;
    block.args = copied;
    make_fibers(block.threads);
    if (watch_launch)
        watch_launch(copied, size, block.stacks, (size_t)MOST_THREADS * STACK);
    gridDim = (struct lanes_index){grid[0], grid[1], grid[2]};
    assert(grid[0] <= sizeof order / sizeof *order);
    put_in_order(order, grid[0], e->order);
    for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
            for (unsigned i = 0; i < grid[0]; i++) {
                blockIdx.x = order[i];
                run_block(e->order);
            }
    e->launches++;
    leave_crashes_to(before);
    pthread_mutex_unlock(&one_launch);
    return 0;
}

static int nothing_to_wait_for(struct device *) { return 0; }

static struct step *next_step(struct emulated *e)
{
    struct recording *r = e->recording;
    r->steps = (struct step *)realloc(r->steps, (r->count + 1) * sizeof *r->steps);
    assert(r->steps);
    memset(&r->steps[r->count], 0, sizeof *r->steps);
    return &r->steps[r->count++];
}

static int record(struct device *d)
{
    ((struct emulated *)d)->recording = (struct recording *)calloc(1, sizeof(struct recording));
    return 0;
}

static void *recorded(struct device *d)
{
    struct recording *r = ((struct emulated *)d)->recording;
    ((struct emulated *)d)->recording = NULL;
    return r;
}

static int replay(struct device *d, void *recording)
{
    struct recording *r = (struct recording *)recording;
    for (size_t i = 0; i < r->count; i++) {
        struct step *s = &r->steps[i];
        if (s->bytes)
            copy_bytes(d, s->to, s->from, s->bytes);
        else
            launch(d, s->kernel, s->grid, s->args, s->size);
    }
    ((struct emulated *)d)->replays++;
    return 0;
}

static void forget(struct device *, void *recording)
{
    struct recording *r = (struct recording *)recording;
    free(r->steps);
    free(r);
}

static void close_emulated(struct device *d)
{
    device_end(d);
    free(d);
}

static const struct device_type type = {allocate, release_memory, copy_bytes, copy_bytes, copy_between, launch,
                                        nothing_to_wait_for, record, recorded, replay, forget, close_emulated, NULL,
                                        NULL};

struct device *emulator_open(size_t bytes)
{
    struct emulated *e = (struct emulated *)calloc(1, sizeof *e);
    if (e && device_begin(&e->device, &type, bytes)) {
        free(e);
        return NULL;
    }
    if (e)
        snprintf(e->device.name, sizeof e->device.name, "an emulated device"), e->device.tensor_cores = 1;
    return e ? &e->device : NULL;
}

void emulator_order(struct device *d, enum emulator_order order, uint64_t seed)
{
    ((struct emulated *)d)->order = order;
    random_state = seed;
}

size_t emulator_replays(const struct device *d) { return ((const struct emulated *)d)->replays; }

size_t emulator_launches(const struct device *d) { return ((const struct emulated *)d)->launches; }
