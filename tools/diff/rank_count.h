/* tools/diff/rank_count.h -- how many tensor-parallel ranks a dump comes from. */
#ifndef VB_DIFF_RANK_COUNT_H
#define VB_DIFF_RANK_COUNT_H

#include "tools/diff/diff.h"

/* Finds out how many tensor-parallel ranks added up the results of o_proj in a dump, as diff_read gives it.
 * Returns a row of the table that conventions_against prints: name, value (null: not known), told, by, equal and
 * equal_otherwise (the parts of the numbers whose bits this number of ranks and the next best one predict), and why.
 * Sets *code and reports the error after one. */
json_t *diff_rank_count(struct cli *c, const struct diff_side *dump, int *code);

#endif
