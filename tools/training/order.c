/* tools/training/order.c -- cuts documents into pieces, and shuffles the pieces. */
#include "tools/training/order.h"

#include <stdlib.h>
#include <string.h>

#include "engine/choose/random.h"

/* The random numbers for shuffling have streams of their own (engine/choose/random.h has streams 0 to 3). */
enum { STREAM_EPOCH = 16, STREAM_HELD_OUT };

/* A random number below `n`. */
static size_t below(size_t n, uint64_t seed, uint64_t epoch, uint32_t stream, size_t i)
{
    uint32_t counter[4] = {(uint32_t)i, (uint32_t)((uint64_t)i >> 32), stream, (uint32_t)epoch}, word[4];
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    philox4x32(word, counter, key);
    return (size_t)(((unsigned __int128)((uint64_t)word[1] << 32 | word[0]) * n) >> 64);
}

/* Fisher and Yates: each of the n! orders is equally likely. */
static void shuffle(size_t *list, size_t n, uint64_t seed, uint64_t epoch, uint32_t stream)
{
    for (size_t i = 0; i < n; i++)
        list[i] = i;
    for (size_t i = n; i > 1; i--) {
        size_t k = below(i, seed, epoch, stream, i), last = list[i - 1];
        list[i - 1] = list[k];
        list[k] = last;
    }
}

static int has_labels(const unsigned char *mask, size_t first, size_t count, size_t shortest)
{
    return count >= shortest && (!mask || memchr(mask + first + shortest - 1, 1, count - shortest + 1));
}

int order_open(struct order *o, const size_t *end, size_t documents, const unsigned char *mask, size_t longest,
               size_t shortest, uint64_t seed)
{
    size_t most = 1;
    for (size_t i = 0; i < documents; i++)
        most += (end[i] - (i ? end[i - 1] : 0) + longest - 1) / longest;
    *o = (struct order){.seed = seed, .epoch = UINT64_MAX};
    o->piece = calloc(most, sizeof *o->piece);
    o->shuffled = calloc(most, sizeof *o->shuffled);
    if (!o->piece || !o->shuffled) {
        order_close(o);
        return 0;
    }
    for (size_t i = 0, at = 0; i < documents; at = end[i++])
        for (; at < end[i]; at += longest) {
            size_t count = end[i] - at < longest ? end[i] - at : longest;
            if (!has_labels(mask, at, count, shortest)) {
                o->left_out += count;
                continue;
            }
            o->piece[o->pieces++] = (struct order_piece){at, count};
            o->tokens += count;
        }
    return 1;
}

void order_close(struct order *o)
{
    free(o->piece);
    free(o->shuffled);
    *o = (struct order){0};
}

size_t order_next(struct order *o, struct order_place *place, size_t tokens, size_t *numbers)
{
    size_t chosen = 0, sum = 0;
    if (!o->pieces)
        return 0;
    if (place->next >= o->pieces)
        *place = (struct order_place){place->epoch + 1, 0};
    if (o->epoch != place->epoch) {
        shuffle(o->shuffled, o->pieces, o->seed, place->epoch, STREAM_EPOCH);
        o->epoch = place->epoch;
    }
    for (; place->next < o->pieces; place->next++) {
        size_t number = o->shuffled[place->next];
        if (chosen && sum + o->piece[number].count > tokens)
            break;
        sum += o->piece[number].count;
        numbers[chosen++] = number;
    }
    return chosen;
}

size_t order_hold_out(unsigned char *held_out, size_t documents, double share, uint64_t seed)
{
    size_t count = (size_t)(share * (double)documents + 0.5);
    size_t *list = documents > 1 ? calloc(documents, sizeof *list) : NULL;
    memset(held_out, 0, documents);
    if (!list)
        return 0;
    count = count < 1 ? 1 : count >= documents ? documents - 1 : count;
    shuffle(list, documents, seed, 0, STREAM_HELD_OUT);
    for (size_t i = 0; i < count; i++)
        held_out[list[i]] = 1;
    free(list);
    return count;
}
