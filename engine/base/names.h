/* engine/base/names.h -- a hash table from strings to numbers: open addressing, linear probing, at most half full.
 *
 * The strings come from files, so each table hashes with a secret of its own: nobody can write a file whose names all fall into
 * one place. No result may depend on the order in the table, and nothing here goes through it in order. */
#ifndef VB_NAMES_H
#define VB_NAMES_H

#include "engine/base/support.h"

struct name_entry {
    const char *s; /* NULL: free. The table points to the strings, it does not own them */
    uint32_t size, hash;
    int32_t id;
};
struct name_table {
    struct name_entry *entries; /* the caller frees them */
    size_t mask;
    uint64_t secret[2];
};

/* Room for n strings. 0: no memory. */
int names_make(struct name_table *table, size_t n, const vb_allocator *a);
int names_add(struct name_table *table, const char *s, size_t size, int32_t id); /* 0: it is there already */
int32_t names_find(const struct name_table *table, const char *s, size_t size);  /* -1: none. A table of zeros has none */

/* A number that nobody can guess. */
uint64_t names_secret(void);

#endif
