/* tools/cli/speculative.h -- what another system's words ask for, before it is compared with our own options. */
#ifndef VB_CLI_SPECULATIVE_H
#define VB_CLI_SPECULATIVE_H

#include "tools/cli/cli.h"

struct wish {
    const char *option;        /* who asks: for messages */
    const char *method;        /* our name of it; NULL: nothing is asked for */
    const char *length_option; /* who asks for the length */
    long long tokens;          /* -1: no length */
    const char *model;         /* a second model's directory, or NULL */
    int32_t ngram_min, ngram_max, topk, nodes; /* 0: not asked for */
    float p_min;               /* 0: not asked for */
    int padded;
    int relaxed;
    int32_t relaxed_topk;
    const char *relaxed_delta;
};

/* A system's name for a method, and ours. The table ends with a name of NULL. Reports unknown names. */
struct method_name {
    const char *name, *method;
};
int wish_method(const struct cli *c, struct wish *w, const struct method_name *names, const char *name);
int wish_bad_length(const struct cli *c, const char *option, const char *value);

/* They fill a wish whose option is set, and report errors. --speculative-config, --plugin-params; --draft-words. */
int wish_of_vllm(struct cli *c, struct wish *w);
int wish_of_mindie(struct cli *c, struct wish *w);
int wish_of_words(struct cli *c, struct wish *w);

#endif
