/* engine/base/names.h -- a hash table that maps strings to numbers: open addressing, linear probing, at most half full.
 *
 * The strings come from untrusted files. Each table therefore hashes with its own random key, so that nobody can write
 * a file whose names all collide. The order of the entries depends on this key. So no result may depend on the order,
 * and no function here iterates over a table. */
#ifndef VB_NAMES_H
#define VB_NAMES_H

#include "engine/base/support.h"

struct name_entry {
    const char *s; /* NULL: this entry is free. The caller owns the string and keeps it while the table is used */
    uint32_t size, hash;
    int32_t id;
};
struct name_table {
    struct name_entry *entries; /* the caller frees them with vb_free */
    size_t mask;                /* number of entries - 1; the number of entries is a power of two */
    uint64_t secret[2];         /* the random key of the hash */
};

/* Allocates an empty table with room for n strings. Returns 1, or 0 if there is no memory. */
int names_make(struct name_table *table, size_t n, const vb_allocator *a);
int names_add(struct name_table *table, const char *s, size_t size, int32_t id); /* returns 0 if the table has this
                                                                                    string already, else 1 */
/* Returns the id of a string, or -1 if it is not in the table. A table that is all zeros counts as empty. */
int32_t names_find(const struct name_table *table, const char *s, size_t size);

/* Returns a number that nobody can guess, for use as a hash key. */
uint64_t names_secret(void);

#endif
