/* tools/training/documents.h -- reads texts for training, and makes token ids of them.
 *
 *   NAME.jsonl   one document per line: {"text": ...}, {"messages": [...]} (through the chat template; "tools" may
 *                stand beside them), or {"tokens": [...]}, with or without "loss_mask": [...]. Other keys are ignored.
 *   other names  UTF-8 text. A line that is <|endoftext|> separates two documents; empty lines beside it are no part of
 *                them.
 *
 * A text begins with BOS as a prompt does (cli_encode_prompt), and ends with the end token. "messages" get what their
 * template writes. "tokens" are taken as they are.
 *
 * A token whose entry in loss_mask is 0 is no label: the loss does not ask any row to predict it. With
 * --assistant-only-loss, the labels of "messages" are the assistant's tokens (tools/training/turns.h), and "tokens"
 * need a mask. */
#ifndef VB_TRAINING_DOCUMENTS_H
#define VB_TRAINING_DOCUMENTS_H

#include "tools/cli/cli.h"

struct documents {
    int32_t *ids;          /* [tokens]: of all documents, one after the other */
    unsigned char *mask;   /* [tokens]: 0: the token is no label */
    int is_masked;         /* whether a token is no label */
    size_t *end;           /* [count]: where each of them ends */
    struct document_file {
        char *name;    /* in the folder of --hidden-states; NULL: the document is a text */
        uint64_t hash; /* of what is read of the file */
    } *file;           /* [count] */
    size_t tokens, count;
    size_t room, end_room; /* for how many `ids` and `end` have memory */
    int32_t end_token;     /* -1: none; set while files are read */
};

/* Appends the documents of these files, whose names are separated by commas. The model must be open, and, unless all
 * files have "tokens" only, the tokenizer. Reports errors. */
int documents_read(struct cli *c, struct documents *d, const char *files);
/* Appends one document. mask NULL: all tokens are labels. */
void documents_add(struct documents *d, const int32_t *ids, const unsigned char *mask, size_t count);
/* The mask, or NULL if all tokens are labels. */
static inline const unsigned char *documents_mask(const struct documents *d) { return d->is_masked ? d->mask : NULL; }
void documents_close(struct documents *d);

#endif
