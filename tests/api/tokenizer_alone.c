/* tests/api/tokenizer_alone.c -- a program that uses only the tokenizer. tests/install.sh looks at its size. */
#include <stdio.h>

#include <verbatim.h>

int main(int argc, char **argv)
{
    vb_tokenizer *tokenizer;
    vb_error err;
    if (argc != 2 || vb_tokenizer_open(&tokenizer, argv[1], NULL, &err))
        return 1;
    printf("%d tokens\n", (int)vb_tokenizer_size(tokenizer));
    vb_tokenizer_close(tokenizer);
    return 0;
}
