/* tools/cli/speculative.h -- drafting options that were given in the format of another system (--speculative-config,
 * --plugin-params, --draft-words), before they are merged with Verbatim's own options. */
#ifndef VB_CLI_SPECULATIVE_H
#define VB_CLI_SPECULATIVE_H

#include "tools/cli/cli.h"

/* The drafting that a user asks for with one option of another system. */
struct wish {
    const char *option;        /* the name of the option, for messages */
    const char *method;        /* Verbatim's name for the draft method; NULL: no method is asked for */
    const char *length_option; /* the name of the option that gives the draft length, for messages */
    long long tokens;          /* the draft length; -1: none is asked for */
    const char *model;         /* the directory of a second model, or NULL */
    int32_t ngram_min, ngram_max, topk, nodes; /* 0: not asked for */
    float p_min;               /* 0: not asked for */
    int padded;
    int relaxed;               /* whether the option asks for --acceptance relaxed, with the two values below */
    int32_t relaxed_topk;
    const char *relaxed_delta;
};

/* The name of a draft method in another system, and Verbatim's name for the same method. */
struct method_name {
    const char *name, *method;
};
/* Looks `name` up in a table that ends with the name NULL, and sets w->method. Reports unknown names. */
int wish_method(const struct cli *c, struct wish *w, const struct method_name *names, const char *name);
/* Reports that `value` is not a draft length. */
int wish_bad_length(const struct cli *c, const char *option, const char *value);

/* wish_of_vllm reads --speculative-config, wish_of_mindie reads --plugin-params, and wish_of_words reads --draft-words.
 * These functions store the result in *w, where the caller has already set w->option. They report errors. */
int wish_of_vllm(struct cli *c, struct wish *w);
int wish_of_mindie(struct cli *c, struct wish *w);
int wish_of_words(struct cli *c, struct wish *w);

#endif
