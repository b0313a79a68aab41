/* examples/generate.c -- Verbatim from C: a prompt continued with drafts, text as it comes, one tensor watched by a
 * tap.
 *
 *     cc generate.c -o generate $(pkg-config --cflags --libs verbatim) -lm
 *     ./generate golden/tale "Once upon a time" 40 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <verbatim.h>

#define MOST_PROMPT 4096

/* Told about each token as it is chosen: print its bytes, an accepted draft in brackets. */
static int on_token(void *context, const vb_event *event)
{
    size_t size = 0;
    const char *bytes = vb_piece(context, event->token, &size);
    printf(event->draft_depth ? "[%.*s]" : "%.*s", (int)size, bytes ? bytes : "");
    return fflush(stdout); /* not 0, as when nobody reads: stop */
}

/* Told about every named value as it is computed: remember the norm of one tensor's last row. */
static void on_tap(void *context, const vb_tap *tap)
{
    if (strcmp(tap->name, "model.norm.output"))
        return;
    const float *row = (const float *)tap->data + (tap->rows - 1) * tap->stride;
    double sum = 0.0;
    for (size_t i = 0; i < tap->inner; i++)
        sum += (double)row[i] * row[i];
    *(double *)context = sqrt(sum);
}

/* BOS where the tokenizer wants it, then the text. Returns the number of ids, at most MOST_PROMPT, or -1. */
static int encode(const vb_tokenizer *tokenizer, const char *text, int32_t *ids, vb_error *err)
{
    int bos = vb_add_bos(tokenizer) && vb_bos_token(tokenizer) >= 0;
    size_t count, room = MOST_PROMPT - (size_t)bos;
    if (bos)
        ids[0] = vb_bos_token(tokenizer);
    if (vb_encode(tokenizer, text, strlen(text), ids + bos, room, &count, err))
        return -1;
    return bos + (int)(count < room ? count : room);
}

int main(int argc, char **argv)
{
    vb_model *model = NULL;
    vb_tokenizer *tokenizer = NULL;
    vb_session *session = NULL;
    vb_error err = {0};
    vb_result result;
    int32_t ids[MOST_PROMPT];
    double norm = 0.0;
    int code = EXIT_FAILURE, count;
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT [N]\n", argv[0]);
        return EXIT_FAILURE;
    }
    vb_generate_options options = {.max_tokens = argc > 3 ? (size_t)atoi(argv[3]) : 40, .fingerprint = 1,
                                   .callback = on_token};
    if (vb_model_open(&model, argv[1], NULL, &err) || vb_tokenizer_open(&tokenizer, argv[1], NULL, &err))
        goto done;
    if ((count = encode(tokenizer, argv[2], ids, &err)) < 0)
        goto done;
    options.context = tokenizer;
    vb_session_options how = {.drafting = {.method = vb_mtp_modules(model) ? "mtp-eagle" : "none"}, .tap = on_tap,
                              .tap_context = &norm};
    how.context = count + (int32_t)options.max_tokens; /* 0 would make room for all that the model can read */
    if (vb_session_open(&session, model, &how, &err) || vb_append(session, ids, (size_t)count, &err) ||
        vb_generate(session, &options, &result, &err))
        goto done;
    printf("\n%zu tokens, %zu of %zu drafts accepted, fingerprint %016llx, |model.norm.output| of the last row %.6f\n",
           result.tokens, result.accepted, result.drafted, (unsigned long long)result.fingerprint, norm);
    code = EXIT_SUCCESS;
done:
    if (code != EXIT_SUCCESS)
        fprintf(stderr, "%s\n", err.message);
    vb_session_close(session);
    vb_tokenizer_close(tokenizer);
    vb_model_close(model);
    return code;
}
