/* tests/api/own_names.c -- a program with its own `argmax`, `crc64`, `struct model` and others, which are also names
 * inside the library. It prints the tokens that follow a prompt. tests/install.sh compiles it as C and as C++.
 *
 *     own_names MODEL PROMPT */
#include <verbatim.h>

#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" { /* the linker then sees the same names as in C */
#endif
struct model { int layers; };
struct tokenizer { int size; };
struct session { struct model *model; struct tokenizer *tokenizer; };
struct kernels { int own; };
enum kind { OWN_KIND = 3 };

struct kernels kernels_scalar = {5}; /* in the library, a constant */

int argmax(const struct session *session);
int argmax(const struct session *session)
{
    return session->model->layers + session->tokenizer->size;
}

const char *crc64(void);
const char *crc64(void)
{
    return "own";
}

int model_open(enum kind kind);
int model_open(enum kind kind)
{
    return (int)kind;
}
#ifdef __cplusplus
}
#endif

static int own_names_are_called(void)
{
    struct model model = {30};
    struct tokenizer tokenizer = {12};
    struct session session = {&model, &tokenizer};
    return argmax(&session) == 42 && !strcmp(crc64(), "own") && model_open(OWN_KIND) == 3 && kernels_scalar.own == 5;
}

static int print_token(void *context, const vb_event *event)
{
    printf("%s%d", event->index == *(const size_t *)context ? "" : ", ", event->token);
    return 0;
}

static int generate(const vb_model *model, const int32_t *prompt, size_t count, vb_error *err)
{
    vb_session *session;
    vb_session_options options;
    vb_generate_options how;
    vb_result result;
    memset(&options, 0, sizeof options);
    memset(&how, 0, sizeof how);
    how.max_tokens = 8;
    how.callback = print_token;
    how.context = &count;
    if (vb_session_open(&session, model, &options, err))
        return err->code;
    int code = vb_append(session, prompt, count, err);
    if (!code)
        code = vb_generate(session, &how, &result, err);
    printf("\n");
    vb_session_close(session);
    return code;
}

int main(int argc, char **argv)
{
    vb_model *model;
    vb_tokenizer *tokenizer;
    vb_error err;
    int32_t ids[64];
    size_t count;
    if (argc != 3 || !own_names_are_called())
        return 1;
    int code = vb_model_open(&model, argv[1], NULL, &err);
    if (!code) {
        code = vb_tokenizer_open(&tokenizer, argv[1], NULL, &err);
        if (!code) {
            code = vb_encode(tokenizer, argv[2], strlen(argv[2]), ids + 1, 63, &count, &err);
            ids[0] = vb_bos_token(tokenizer);
            if (!code)
                code = generate(model, ids + !vb_add_bos(tokenizer), count + (size_t)vb_add_bos(tokenizer), &err);
            vb_tokenizer_close(tokenizer);
        }
        vb_model_close(model);
    }
    if (code)
        fprintf(stderr, "own_names: %s\n", err.message);
    return code != 0 || !own_names_are_called();
}
