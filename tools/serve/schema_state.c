/* tools/serve/schema_state.c -- what was read so far: a set of threads whose frames are numbered in the order in which
 * the threads use them, so that equal states are equal bytes. */
#include "tools/serve/schema_internal.h"
#include "numbers/numbers.h"

#include <stdlib.h>
#include <string.h>

int schema_begin(struct schema_state **out, const struct schema *s)
{
    struct schema_state *state = calloc(1, sizeof *state);
    *out = NULL;
    if (!state || schema_grow(&state->w.thread, 0, &state->w.thread_room, sizeof *state->w.thread)) {
        free(state);
        return VB_NO_MEMORY;
    }
    state->w.schema = s;
    state->w.thread[state->w.threads++] = (struct thread){.top = -1, .node = s->root, .at = AT_VALUE,
                                                          .count = s->is_text ? NO_LIMIT : 0};
    *out = state;
    return VB_OK;
}

void schema_state_close(struct schema_state *state)
{
    if (state) {
        free(state->w.frame);
        free(state->w.thread);
        free(state);
    }
}

int schema_reserve(void *array, uint32_t *room, uint32_t wanted, size_t size)
{
    int rc = VB_OK;
    while (!rc && *room < wanted)
        rc = schema_grow(array, *room, room, size);
    return rc;
}

int schema_state_copy(struct schema_state *to, const struct schema_state *from)
{
    if (to == from)
        return VB_OK;
    if (schema_reserve(&to->w.thread, &to->w.thread_room, from->w.threads, sizeof *to->w.thread) ||
        schema_reserve(&to->w.frame, &to->w.frame_room, from->w.frames, sizeof *to->w.frame))
        return VB_NO_MEMORY;
    memcpy(to->w.thread, from->w.thread, from->w.threads * sizeof *to->w.thread);
    if (from->w.frames)
        memcpy(to->w.frame, from->w.frame, from->w.frames * sizeof *to->w.frame);
    to->w.threads = from->w.threads;
    to->w.frames = from->w.frames;
    to->w.schema = from->w.schema;
    return VB_OK;
}

/* Frame `old` and those below it, as frames of `w`; `moved` [frames] says where a frame went, from 1. */
static int32_t keep_frame(struct walk *w, const struct frame *frame, uint32_t *moved, int32_t old)
{
    int32_t stack[SCHEMA_DEPTH + 1 + MOST_SEQUENCES];
    int n = 0, below = -1;
    for (; old >= 0 && !moved[old]; old = frame[old].parent)
        stack[n++] = old;
    below = old >= 0 ? (int)moved[old] - 1 : -1;
    while (n--) {
        w->frame[w->frames] = frame[stack[n]];
        w->frame[w->frames].parent = below;
        below = (int)w->frames++;
        moved[stack[n]] = (uint32_t)below + 1;
    }
    return below;
}

/* Threads [from, ...) become the whole set. */
static int keep_threads(struct walk *w, uint32_t from)
{
    uint32_t frames = w->frames;
    size_t bytes = frames * (sizeof *w->frame + sizeof(uint32_t));
    _Alignas(struct frame) char small[2048];
    char *block = bytes <= sizeof small ? small : malloc(bytes);
    if (!block)
        return VB_NO_MEMORY;
    struct frame *frame = (struct frame *)(void *)block;
    uint32_t *moved = (uint32_t *)(void *)(block + frames * sizeof *frame);
    if (frames) {
        memcpy(frame, w->frame, frames * sizeof *frame);
        memset(moved, 0, frames * sizeof *moved);
    }
    w->frames = 0;
    memmove(w->thread, w->thread + from, (w->threads - from) * sizeof *w->thread);
    w->threads -= from;
    for (uint32_t i = 0; i < w->threads; i++)
        w->thread[i].top = keep_frame(w, frame, moved, w->thread[i].top);
    if (block != small)
        free(block);
    return VB_OK;
}

int schema_byte(struct schema_state *state, unsigned char byte)
{
    struct walk *w = &state->w;
    uint32_t threads = w->threads, frames = w->frames;
    int rc = walk_step(w, 0, threads, byte);
    int accepted = !rc && w->threads > threads;
    if (accepted)
        rc = keep_threads(w, threads);
    if (rc || !accepted) {
        w->threads = threads;
        w->frames = frames;
    }
    return rc ? rc : accepted;
}

int schema_may_end(const struct schema_state *state)
{
    for (uint32_t i = 0; i < state->w.threads; i++)
        if (state->w.thread[i].at == AT_END)
            return 1;
    return 0;
}

int schema_state_equal(const struct schema_state *a, const struct schema_state *b)
{
    return a->w.threads == b->w.threads && a->w.frames == b->w.frames &&
           !memcmp(a->w.thread, b->w.thread, a->w.threads * sizeof *a->w.thread) &&
           (!a->w.frames || !memcmp(a->w.frame, b->w.frame, a->w.frames * sizeof *a->w.frame));
}

uint64_t schema_state_hash(const struct schema_state *state)
{
    uint64_t h = fnv1a_bytes(FNV1A_START, state->w.thread, state->w.threads * sizeof *state->w.thread);
    return fnv1a_bytes(h, state->w.frame, state->w.frames * sizeof *state->w.frame);
}
