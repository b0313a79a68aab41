/* tools/draft.c -- `verbatim draft`: shows the drafts that a method proposes after a prompt. */
#include <stdlib.h>

#include "tools/cli/cli.h"

/* Of a tree. */
struct nodes {
    int32_t draft[VB_MAX_NODES], parent[VB_MAX_NODES], count;
    double confidence[VB_MAX_NODES];
};

static int print_drafts(struct cli *c, int32_t next, const struct nodes *t)
{
    int is_tree = c->session.drafting.tree.topk > 1;
    if (c->json) {
        json_t *drafts = json_array(), *parents = json_array(), *confidences = json_array();
        for (int32_t i = 0; i < t->count; i++) {
            json_array_append_new(drafts, json_integer(t->draft[i]));
            json_array_append_new(parents, json_integer(t->parent[i]));
            json_array_append_new(confidences, json_real(t->confidence[i]));
        }
        json_t *all = json_pack("{s:i,s:o}", "next", next, "drafts", drafts);
        if (is_tree) {
            json_object_set(all, "parents", parents);
            json_object_set(all, "confidences", confidences);
        }
        json_decref(parents);
        json_decref(confidences);
        return cli_print_json(all);
    }
    printf("next %d\ndrafts", next);
    for (int32_t i = 0; i < t->count; i++)
        printf(" %d", t->draft[i]);
    for (int32_t i = 0; i < t->count && is_tree; i++)
        printf("%s %d", i ? "" : "\nafter ", t->parent[i]);
    for (int32_t i = 0; i < t->count && is_tree; i++)
        printf("%s %.3g", i ? "" : "\nconfidences", t->confidence[i]);
    putchar('\n');
    return EXIT_DONE;
}

static int run(struct cli *c)
{
    int32_t *prompt = NULL, next;
    struct nodes t;
    size_t count;
    vb_session *session = NULL;
    vb_error err;
    int code = cli_open(c);
    if (code == EXIT_DONE)
        code = cli_prompt(c, &prompt, &count);
    if (code == EXIT_DONE)
        code = cli_session(c, count, 1 + cli_draft_tokens(c), &session);
    if (code == EXIT_DONE && (vb_append(session, prompt, count, &err) ||
                              vb_draft_tree(session, &next, t.draft, t.parent, t.confidence, &t.count, &err)))
        code = cli_error(c, &err);
    else if (code == EXIT_DONE)
        code = print_drafts(c, next, &t);
    vb_session_close(session);
    free(prompt);
    return code;
}

static const struct note notes[] = {
    {"--json", "Print {\"next\": ID, \"drafts\": [ID, ...]}. For a tree, also print \"parents\" and \"confidences\". "
               "The parent of a "
               "draft is the number of the draft that it follows, counted from 1. If this number is 0, the draft "
               "follows the token \"next\". The confidence of a draft is the product of all probabilities on its path "
               "through the tree."},
    {NULL, NULL}};

const struct command command_draft = {
    "draft",
    "show what a draft method proposes after a prompt",
    "MODEL (--prompt TEXT | --prompt-file FILE | --tokens IDS) --draft METHOD [OPTIONS]",
    "Prints the token that the model chooses after the prompt, and the tokens that the draft method proposes to follow "
    "it.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_PROMPT | TAKES_SAMPLING | TAKES_DRAFT | TAKES_PREFILL | TAKES_ACCEPTANCE,
    run,
    notes,
    0,
    NULL};
