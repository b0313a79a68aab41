/* examples/train_steps.c -- trains the MTP modules of a model on one text for some steps, and writes their weights.
 *
 *     cc train_steps.c $(pkg-config --cflags --libs verbatim) -o train_steps
 *     ./train_steps golden/tale TEXT.txt 20 modules.safetensors */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <verbatim.h>

enum { MOST_BYTES = 1 << 16, MOST_TOKENS = 2048, MOST_TENSORS = 4096 };

int main(int argc, char **argv)
{
    static char text[MOST_BYTES];
    static int32_t ids[MOST_TOKENS];
    static vb_tensor list[MOST_TENSORS];
    vb_model *model = NULL;
    vb_tokenizer *tokenizer = NULL;
    vb_trainer *trainer = NULL;
    vb_train_losses losses;
    vb_train_tensor x;
    vb_error err = {0};
    double norm;
    size_t count, tensors = 0;
    if (argc != 5)
        return fprintf(stderr, "usage: %s MODEL TEXT.txt STEPS NEW.safetensors\n", argv[0]), 2;
    FILE *f = fopen(argv[2], "rb");
    if (!f)
        return perror(argv[2]), 1;
    size_t bytes = fread(text, 1, sizeof text, f);
    fclose(f);
    if (vb_model_open(&model, argv[1], NULL, &err) || vb_tokenizer_open(&tokenizer, argv[1], NULL, &err) ||
        vb_encode_plain(tokenizer, text, bytes, ids, MOST_TOKENS, &count, &err) ||
        vb_trainer_open(&trainer, model, NULL, &err))
        return fprintf(stderr, "%s\n", err.message), 1;
    vb_train_sequence sequence = {.tokens = ids, .count = count < MOST_TOKENS ? count : MOST_TOKENS};
    for (int step = 1; step <= atoi(argv[3]); step++) {
        if (vb_trainer_gradients(trainer, &sequence, 1, &losses, &err) ||
            vb_trainer_update(trainer, step, 1e-3, &norm, &err))
            return fprintf(stderr, "%s\n", err.message), 1;
        printf("step %d: loss %.6f, norm %.6f\n", step, losses.total, norm);
    }
    for (; tensors < MOST_TENSORS && vb_trainer_tensor(trainer, tensors, &x); tensors++)
        list[tensors] = (vb_tensor){.name = x.name, .dtype = "F32", .ndim = x.ndim, .shape = {x.shape[0], x.shape[1]},
                                    .data = x.w, .bytes = 4 * x.count};
    int fd = open(argv[4], O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0 || vb_tensors_write(fd, argv[4], list, tensors, NULL, NULL, &err) || close(fd))
        return fprintf(stderr, "%s\n", fd < 0 ? "the file cannot be made" : err.message), 1;
    vb_trainer_close(trainer);
    vb_tokenizer_close(tokenizer);
    vb_model_close(model);
}
