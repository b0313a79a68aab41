/* tools/serve/reply_logprobs.c -- log-probabilities in the formats of OpenAI and vLLM. */
#include <string.h>

#include "tools/serve/reply_internal.h"

static const char *piece_of(const struct server *s, int32_t token, size_t *size)
{
    const char *piece = s->tokenizer ? vb_piece(s->tokenizer, token, size) : NULL;
    if (!piece)
        *size = 0;
    return piece;
}

void reply_token_name(struct serve_writer *w, const struct server *s, int32_t token)
{
    size_t size;
    const char *piece = piece_of(s, token, &size);
    if (piece && vb_utf8_valid(piece, size) == size) {
        writer_string(w, piece, size);
    } else if (piece) {
        writer_put(w, "\"bytes:");
        for (size_t i = 0; i < size; i++)
            writer_format(w, "\\\\x%02x", (unsigned char)piece[i]);
        writer_put(w, "\"");
    } else {
        writer_format(w, "\"token_id:%d\"", token);
    }
}

static int same_name(const struct server *s, int32_t a, int32_t b)
{
    size_t size_a, size_b;
    const char *x = piece_of(s, a, &size_a), *y = piece_of(s, b, &size_b);
    return x && y && size_a == size_b && !memcmp(x, y, size_a);
}

/* ---- completions ------------------------------------------------------------------------------------------------- */

static void put_entry(struct serve_writer *w, const struct server *s, int32_t token, double logprob, int is_renamed,
                      int *count)
{
    writer_put(w, (*count)++ ? ", " : "");
    if (is_renamed)
        writer_format(w, "\"token_id:%d\"", token);
    else
        reply_token_name(w, s, token);
    writer_put(w, ": ");
    writer_number(w, logprob);
}

/* The likeliest `top` and the token itself, which keeps its name; another one with the same name has its id for a
 * key. */
static void put_top(struct serve_writer *w, const struct server *s, const struct serve_rows *rows, size_t i,
                    int32_t token, int32_t top, int32_t kept)
{
    const int32_t *best = kept ? rows->top_token + i * (size_t)kept : NULL; /* without a list there is no memory for
                                                                               one */
    int count = 0, is_there = 0;
    writer_put(w, "{");
    for (int32_t k = 0; k < top; k++) {
        int is_renamed = best[k] != token && same_name(s, best[k], token);
        for (int32_t before = 0; before < k && best[k] != token; before++)
            is_renamed |= same_name(s, best[k], best[before]);
        is_there |= best[k] == token;
        put_entry(w, s, best[k], rows->top_logprob[i * (size_t)kept + (size_t)k], is_renamed, &count);
    }
    if (!is_there)
        put_entry(w, s, token, rows->row[i].logprob, 0, &count);
    writer_put(w, "}");
}

/* Walks over the entries of an answer: the prompt's tokens (echo), then those that were said. */
struct logprob_walk {
    const struct serve_choice *choice;
    size_t prompt, from, to;
};
struct logprob_entry {
    int32_t token;
    const struct serve_rows *rows; /* NULL: the prompt's first token, or a row of a sequence that was cancelled before
                                      it */
    size_t row;
};

static size_t walk_count(const struct logprob_walk *walk) { return walk->prompt + walk->to - walk->from; }

static struct logprob_entry walk_at(const struct logprob_walk *walk, size_t i)
{
    const struct serve_choice *c = walk->choice;
    if (i < walk->prompt) {
        const struct serve_rows *rows = &c->first->prompt_rows;
        return (struct logprob_entry){c->prompt->tokens[i], i && i <= rows->count ? rows : NULL, i ? i - 1 : 0};
    }
    size_t said = i - walk->prompt + walk->from;
    return (struct logprob_entry){c->said[said].token, &c->rows, said};
}

static void put_offsets(struct serve_writer *w, const struct logprob_walk *walk, struct serve_cursor *at)
{
    const struct server *s = walk->choice->job->server;
    const struct serve_prompt *p = walk->choice->prompt;
    for (size_t i = 0; i < walk_count(walk); i++) {
        int32_t token = walk_at(walk, i).token;
        size_t size;
        const char *piece = piece_of(s, token, &size);
        writer_format(w, "%s%zu", i ? ", " : "", at->characters);
        if (i == 0 && walk->prompt && s->tokenizer && p->tokens[0] == vb_bos_token(s->tokenizer))
            size = 0; /* BOS is not in the text */
        for (size_t k = 0; k < size; k++)
            at->characters += ((unsigned char)piece[k] & 0xc0) != 0x80;
    }
}

void reply_completion_logprobs(struct serve_writer *w, struct serve_choice *choice, struct serve_cursor *at, size_t to,
                               int echo)
{
    const struct server *s = choice->job->server;
    struct logprob_walk walk = {choice, echo ? choice->prompt->count : 0, at->tokens, to};
    int32_t top = choice->job->logprobs, kept = job_top(choice->job);
    top = top < kept ? top : kept;
    size_t count = walk_count(&walk);
    writer_put(w, "{\"tokens\": [");
    for (size_t i = 0; i < count; i++) {
        writer_put(w, i ? ", " : "");
        reply_token_name(w, s, walk_at(&walk, i).token);
    }
    writer_put(w, "], \"token_logprobs\": [");
    for (size_t i = 0; i < count; i++) {
        struct logprob_entry e = walk_at(&walk, i);
        writer_put(w, i ? ", " : "");
        if (e.rows)
            writer_number(w, e.rows->row[e.row].logprob);
        else
            writer_put(w, "null");
    }
    writer_put(w, "], \"top_logprobs\": [");
    for (size_t i = 0; i < count; i++) {
        struct logprob_entry e = walk_at(&walk, i);
        writer_put(w, i ? ", " : "");
        if (e.rows)
            put_top(w, s, e.rows, e.row, e.token, top, kept);
        else
            writer_put(w, "null");
    }
    writer_put(w, "], \"text_offset\": [");
    put_offsets(w, &walk, at);
    writer_put(w, "]}");
}

/* ---- chats ------------------------------------------------------------------------------------------------------- */

static void put_chat_token(struct serve_writer *w, const struct server *s, int32_t token, double logprob)
{
    size_t size;
    const char *piece = piece_of(s, token, &size);
    writer_put(w, "{\"token\": ");
    reply_token_name(w, s, token);
    writer_put(w, ", \"logprob\": ");
    writer_number(w, logprob);
    writer_put(w, ", \"bytes\": [");
    for (size_t i = 0; i < size; i++)
        writer_format(w, "%s%d", i ? ", " : "", (unsigned char)piece[i]);
    writer_put(w, "]");
}

void reply_chat_logprobs(struct serve_writer *w, const struct serve_choice *choice, size_t from, size_t to)
{
    const struct server *s = choice->job->server;
    const struct serve_rows *rows = &choice->rows;
    int32_t top = choice->job->logprobs, kept = job_top(choice->job);
    top = top < kept ? top : kept;
    writer_put(w, "{\"content\": [");
    for (size_t i = from; i < to; i++) {
        writer_put(w, i > from ? ", " : "");
        put_chat_token(w, s, choice->said[i].token, rows->row[i].logprob);
        writer_put(w, ", \"top_logprobs\": [");
        for (int32_t k = 0; k < top; k++) {
            size_t at = i * (size_t)kept + (size_t)k;
            writer_put(w, k ? ", " : "");
            put_chat_token(w, s, rows->top_token[at], rows->top_logprob[at]);
            writer_put(w, "}");
        }
        writer_put(w, "]}");
    }
    writer_put(w, "], \"refusal\": null}");
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

static void put_ranked(struct serve_writer *w, const struct server *s, int32_t token, double logprob, int32_t rank,
                       int is_first)
{
    writer_format(w, "%s\"%d\": {\"logprob\": ", is_first ? "" : ", ", token);
    writer_number(w, logprob);
    writer_format(w, ", \"rank\": %d, \"decoded_token\": ", rank);
    reply_token_name(w, s, token);
    writer_put(w, "}");
}

void reply_prompt_logprobs(struct serve_writer *w, const struct serve_choice *choice)
{
    const struct server *s = choice->job->server;
    const struct serve_rows *rows = &choice->first->prompt_rows;
    int32_t top = choice->job->prompt_logprobs, kept = job_top(choice->job);
    top = top < kept ? top : kept;
    writer_put(w, ", \"prompt_logprobs\": [null");
    for (size_t i = 0; i < rows->count; i++) {
        int32_t token = choice->prompt->tokens[i + 1];
        writer_put(w, ", {");
        put_ranked(w, s, token, rows->row[i].logprob, rows->row[i].rank, 1);
        for (int32_t k = 0; k < top; k++) {
            size_t at = i * (size_t)kept + (size_t)k;
            if (rows->top_token[at] != token)
                put_ranked(w, s, rows->top_token[at], rows->top_logprob[at], k + 1, 0);
        }
        writer_put(w, "}");
    }
    writer_put(w, "]");
}
