/* tools/draft.c -- `verbatim draft`: what would be proposed after a prompt. */
#include <stdlib.h>

#include "cli.h"

static int print_drafts(struct cli *c, int32_t next, const int32_t *drafts, int32_t n)
{
    if (c->json) {
        json_t *list = json_array();
        for (int32_t i = 0; i < n; i++)
            json_array_append_new(list, json_integer(drafts[i]));
        return cli_print_json(json_pack("{s:i,s:o}", "next", next, "drafts", list));
    }
    printf("next %d\ndrafts", next);
    for (int32_t i = 0; i < n; i++)
        printf(" %d", drafts[i]);
    putchar('\n');
    return EXIT_DONE;
}

static int run(struct cli *c)
{
    int32_t *prompt = NULL, drafts[VB_MAX_DRAFT], next, n;
    size_t count;
    vb_session *session = NULL;
    vb_error err;
    int code = cli_open(c);
    if (code == EXIT_DONE)
        code = cli_prompt(c, &prompt, &count);
    if (code == EXIT_DONE)
        code = cli_session(c, count, 1 + cli_draft_tokens(c), &session);
    if (code == EXIT_DONE &&
        (vb_append(session, prompt, count, &err) || vb_draft(session, &next, drafts, &n, &err)))
        code = cli_error(c, &err);
    else if (code == EXIT_DONE)
        code = print_drafts(c, next, drafts, n);
    vb_session_close(session);
    free(prompt);
    return code;
}

const struct command command_draft = {
    "draft", "what a draft method would propose after a prompt",
    "usage: verbatim draft MODEL (--prompt TEXT | --prompt-file FILE | --tokens IDS) --draft METHOD [OPTIONS]\n\n"
    "Prints the target's next token and the drafts that would follow it.\n\n"
    CLI_DRAFT_HELP
    "  --json                 {\"next\": ID, \"drafts\": [ID, ...]}\n"
    "  --acceptance, --draft-sample-method: drafts are drawn with rejection; --relaxed-topk, --relaxed-delta, --thinking-tokens\n"
    "  --temperature, --top-k, --top-p, --min-p, --seed, --repetition-penalty, --presence-penalty, --frequency-penalty,\n"
    "  --chat, --messages, --system, --chat-template-kwargs, --logit-bias, --bos, --no-bos, --threads, --isa, --precision,\n"
    "  --repack, --prefill-chunk, --prefill, --context, --convention, --as, --numa, --mlock, --padded    as for generate\n",
    TAKES_COMPUTE | TAKES_PROMPT | TAKES_SAMPLING | TAKES_DRAFT | TAKES_PREFILL | TAKES_ACCEPTANCE, run};
