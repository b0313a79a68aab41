/* tests/support/prompts.h -- for tests of `generate --prompts`: a file of prompts and the answers to it, in the
 * directory of the running test. */
#ifndef VB_TEST_PROMPTS_H
#define VB_TEST_PROMPTS_H

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

#define V3 "golden/tiny/v3"
#define MOST 64 /* answers in a file */

extern char in[80], out[80]; /* DIR/in.jsonl and DIR/out.jsonl; WITH_DIR sets them */

int make_prompts_dir(void **unused);

#define WITH_DIR(test) cmocka_unit_test_setup_teardown(test, make_prompts_dir, remove_test_dir)

/* Parses answers, one per line. The answer whose "index" is i becomes answer[i]. Entries of `answer` without an answer
 * are NULL. Returns the number of answers. read_answers does the same for the file `out`. Release the answers with
 * drop_answers. */
size_t answers_in(const char *text, json_t *answer[MOST]);
size_t read_answers(json_t *answer[MOST]);
void drop_answers(json_t *answer[MOST]);

/* Writes three short prompts to `in`. */
void write_few(void);

#define FEW_RUN "generate", V3, "-n", "5", "--prompts", in, "-o", out

#endif
