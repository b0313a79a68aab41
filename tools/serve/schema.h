/* tools/serve/schema.h -- a JSON schema as an automaton over bytes: which byte may follow, and whether the value may
 * end here.
 *
 * Whatever the automaton accepts is one JSON value in valid UTF-8, and every accepted prefix can be completed. The
 * value satisfies the schema, in which an absent additionalProperties counts as false.
 *
 * Keywords: type (a name or a list), enum, const, properties, required, additionalProperties, items, prefixItems,
 * minItems, maxItems, minLength, maxLength, anyOf, $ref (a JSON pointer inside the document; it may be recursive),
 * $defs, definitions; oneOf where the branches exclude each other: by their types, or by a property that all require
 * and whose enum or const differ. A schema may be true or false. Ignored: title, description, default, examples,
 * $schema, $comment. Every other keyword is refused by name, and so are enum, const beside keywords about objects and
 * arrays when a value is one of these, and anyOf, oneOf, $ref beside other keywords. A definition that nothing refers
 * to is not read. Without `type` the type follows from the keywords (properties: an object, and so on), and without any
 * of these every value is allowed.
 *
 * Of the values that satisfy a schema the automaton accepts those that are written within these limits:
 *   - the properties of an object come in the order of the schema, and what `required` names beyond them after these,
 *     in its order; properties that fall under additionalProperties may stand anywhere between them, and may repeat a
 *     key;
 *   - white space is at most SCHEMA_BLANKS bytes before each token, and SCHEMA_INDENT more for each array or object
 *     that is open; none follows the whole value;
 *   - objects and arrays nest at most SCHEMA_DEPTH deep;
 *   - an integer has at most SCHEMA_DIGITS digits and neither fraction nor exponent; a number has at most as many
 *     before the point, SCHEMA_FRACTION after it and SCHEMA_EXPONENT in its exponent;
 *   - a value of enum or const, and a key of `properties` where no other keys are allowed, is written in one way:
 *     strings with the fewest escapes, numbers with the fewest digits (an integral one below 10^15 as an integer).
 * Strings of `type: string` may have any escapes but \u0000, which many readers refuse; surrogates come in pairs, which
 * count as one character of minLength and maxLength.
 *
 * Memory is bounded: SCHEMA_NODES subschemas, types and constant values; SCHEMA_MEMBERS properties, alternatives and
 * enum values together; SCHEMA_TEXT bytes of keys and constants; SCHEMA_ALTERNATIVES for one value, where all constants
 * count as one. A larger schema is refused. At run time at most SCHEMA_THREADS alternatives are followed side by side;
 * when a schema is more ambiguous than that, schema_byte returns an error. */
#ifndef VB_SCHEMA_H
#define VB_SCHEMA_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define SCHEMA_BLANKS 2
#define SCHEMA_INDENT 4
#define SCHEMA_DEPTH 32
#define SCHEMA_DIGITS 18
#define SCHEMA_FRACTION 20
#define SCHEMA_EXPONENT 2
#define SCHEMA_NODES 16384
#define SCHEMA_MEMBERS 65536
#define SCHEMA_TEXT (4 << 20)
#define SCHEMA_ALTERNATIVES 128
#define SCHEMA_THREADS 256
#define SCHEMA_COUNT 1000000000 /* the largest minItems, maxItems, minLength, maxLength */

struct schema; /* read-only once it is open; threads may share it */

/* schema: NULL means any JSON object (response_format json_object). It is not kept. VB_UNSUPPORTED: a keyword or a size
 * is not supported; VB_BAD_ARGUMENT: it is no schema, or no value satisfies it; VB_NO_MEMORY. `error` gets one sentence
 * with the JSON pointer. */
int schema_open(struct schema **out, const json_t *schema, char error[512]);
void schema_close(struct schema *s);

/* What was read so far of one value. The schema outlives it. */
struct schema_state;
int schema_begin(struct schema_state **out, const struct schema *s);                    /* VB_OK or VB_NO_MEMORY */
int schema_state_copy(struct schema_state *to, const struct schema_state *from);        /* the same; on an error `to` is
                                                                                           unchanged */
void schema_state_close(struct schema_state *state);
/* 1: the byte is accepted; 0: it is refused; VB_UNSUPPORTED: more than SCHEMA_THREADS alternatives; VB_NO_MEMORY. Only
 * after 1 does the state change. */
int schema_byte(struct schema_state *state, unsigned char byte);
int schema_may_end(const struct schema_state *state);
/* Equal states accept the same continuations. Both compare contents: states of different schemas must not be
 * compared. */
int schema_state_equal(const struct schema_state *a, const struct schema_state *b);
uint64_t schema_state_hash(const struct schema_state *state);

#endif
