/* engine/base/names.c -- a hash table that a hostile file cannot slow down. */
#include "engine/base/names.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>

uint64_t names_secret(void)
{
    uint64_t secret;
    if (getrandom(&secret, sizeof secret, GRND_NONBLOCK) == (ssize_t)sizeof secret)
        return secret;
    struct timespec now; /* getrandom fails in an old kernel, and in a kernel that has just started */
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)(uintptr_t)&now ^ (uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec;
}

/* ---- SipHash-1-3 (Aumasson and Bernstein, 2012), as Rust and Python hash their strings ---- */

static uint64_t rotate(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1], v[1] = rotate(v[1], 13) ^ v[0], v[0] = rotate(v[0], 32);
    v[2] += v[3], v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotate(v[1], 17) ^ v[2], v[2] = rotate(v[2], 32);
}

static void sip_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
}

static uint32_t hash_of(const uint64_t secret[2], const char *s, size_t size)
{
    uint64_t v[4] = {secret[0] ^ 0x736f6d6570736575u, secret[1] ^ 0x646f72616e646f6du, secret[0] ^ 0x6c7967656e657261u,
                     secret[1] ^ 0x7465646279746573u};
    uint64_t word, last = (uint64_t)size << 56;
    for (; size >= 8; s += 8, size -= 8) {
        memcpy(&word, s, 8);
        sip_word(v, word);
    }
    for (size_t i = 0; i < size; i++)
        last |= (uint64_t)(unsigned char)s[i] << 8 * i;
    sip_word(v, last);
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(v);
    return (uint32_t)(v[0] ^ v[1] ^ v[2] ^ v[3]);
}

/* ---- the table ---- */

int names_make(struct name_table *table, size_t n, const vb_allocator *a)
{
    size_t slots = 16;
    while (slots / 2 < n)
        slots *= 2;
    table->mask = slots - 1;
    table->secret[0] = names_secret();
    table->secret[1] = names_secret();
    table->entries = vb_alloc(a, slots, sizeof *table->entries);
    return table->entries != NULL;
}

static struct name_entry *slot_for(const struct name_table *table, uint32_t hash, const char *s, size_t size)
{
    size_t i = hash & table->mask;
    for (struct name_entry *e; (e = &table->entries[i])->s; i = (i + 1) & table->mask)
        if (e->hash == hash && e->size == size && !memcmp(e->s, s, size))
            break;
    return &table->entries[i];
}

int names_add(struct name_table *table, const char *s, size_t size, int32_t id)
{
    uint32_t hash = hash_of(table->secret, s, size);
    struct name_entry *e = slot_for(table, hash, s, size);
    if (e->s)
        return 0;
    *e = (struct name_entry){s, (uint32_t)size, hash, id};
    return 1;
}

int32_t names_find(const struct name_table *table, const char *s, size_t size)
{
    const struct name_entry *e = table->entries ? slot_for(table, hash_of(table->secret, s, size), s, size) : NULL;
    return e && e->s ? e->id : -1;
}
