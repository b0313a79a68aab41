/* tools/serve/json_memory.h -- memory for jansson: where it is missing, one request fails.
 *
 * jansson does not report every allocation that fails. Its parser drops a character of a string and goes on, or ends
 * the process by an assertion behind a number; copies of objects lose keys. So an allocation that fails is remembered,
 * and makes all later ones of the same thread fail, until json_memory_begin. The text is then refused at its next value
 * at the latest. */
#ifndef VB_SERVE_JSON_MEMORY_H
#define VB_SERVE_JSON_MEMORY_H

/* A number or a word of a JSON text may have at most this many characters, so that the reserve is large enough for
 * it. */
#define JSON_MEMORY_MOST_WORD 100

/* Makes jansson use this memory, in all threads. Call it before jansson allocates anything. */
void json_memory_use(void);
/* Begins a request in this thread: allocations succeed again. No value that an earlier request of the thread made after
 * a failure may still be used. */
void json_memory_begin(void);
/* Whether an allocation of jansson failed in this thread since json_memory_begin. If so, no result of jansson may be
 * used. */
int json_memory_failed(void);

#endif
