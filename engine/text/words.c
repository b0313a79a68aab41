/* engine/text/words.c -- do two tokenizers cut text into the same words? A GGUF file has a name for how it is done, a
 * tokenizer.json has patterns, and one thing can be said by many patterns. So both are tried: on text that has one of
 * everything, then on every character of Unicode's first plane, and every eighth of the second, among letters, digits,
 * blanks and itself. */
#include "engine/text/tokenizer_internal.h"

#include <string.h>

#define CHARACTERS 0x20000
#define PLANE 0x10000
#define TEXT 65536      /* bytes tried at a time */
#define MOST_OF_ONE 128 /* of one character's text */

static const char everything[] =
    "It's what HE'LL say: \"don't\"; we've you're I'm I'd he'll IT'S DON'T WE'VE YOU'RE I'M I'D x's'd'll'm 1 12 123 "
    "1234 12345678 3.14 1,000,000 0x1fA and a2b3c  two   blanks\t\ttabs \t \n\n"
    " \n  \r\n\r\nlines \n x\n\n\ny   \n    if (a[i++] != b->c) { return ~f(x, &y) | z^2; } /* #%$@`'' */ <tag "
    "attr=\"1\">...</tag> snake_case camelCase UPPER!!!Word ?why (paren)[bracket]{brace} e-mail@host.org "
    "http://a.b/c?d=e&f=g 50% \302\24399 \342\202\254100 na\303\257ve \303\211COLE stra\303\237e "
    "\316\221\316\262\316\263 \320\237\321\200\320\270\320\262\320\265\321\202 "
    "\344\275\240\345\245\275\357\274\214\344\270\226\347\225\214\343\200\202123\344\270\255abc\343\201\223\343\202\223"
    "\343\201\253\343\201\241\343\201\257 \343\202\253\343\202\277\343\202\253\343\203\212\343\203\274 "
    "\355\225\234\352\265\255\354\226\264 \331\205\330\261\330\255\330\250\330\247 "
    "\340\244\250\340\244\256\340\244\270\340\245\215\340\244\244\340\245\207 "
    "\360\237\232\200\360\237\217\275\342\200\215\342\231\200\357\270\217 \302\240\342\200\203\343\200\200x e\314\201 "
    "\302\275 \342\205\243 '''' \"\"\"\" ..,,--__ 's 'S 'RE n'T\n ";

static int same(const struct vb_tokenizer *a, const struct vb_tokenizer *b, const char *text, size_t size, int *equal,
                vb_error *err)
{
    int32_t *x = NULL, *y = NULL;
    size_t n = 0, m = 0;
    int rc = tokenizer_words(a, text, size, &x, &n, err);
    if (!rc)
        rc = tokenizer_words(b, text, size, &y, &m, err);
    *equal = !rc && n == m && !memcmp(x, y, n * sizeof *x);
    vb_free(tokenizer_allocator(a), x);
    vb_free(tokenizer_allocator(b), y);
    return rc;
}

static size_t put_character(char *out, uint32_t c)
{
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(lead[more] | c >> 6 * more);
    for (int i = 1; i <= more; i++)
        out[i] = (char)(0x80 | (c >> 6 * (more - i) & 0x3f));
    return (size_t)more + 1;
}

/* Each '*' is the character. */
static size_t put_among_others(char *out, uint32_t c)
{
    size_t n = 0;
    for (const char *s = "a*a **b\n1*1 *\n.*. '*s *1234 "; *s; s++)
        n += *s == '*' ? put_character(out + n, c) : put_character(out + n, (unsigned char)*s);
    return n;
}

int tokenizer_same_words(const struct vb_tokenizer *a, const struct vb_tokenizer *b, int *equal, vb_error *err)
{
    char *text = vb_alloc(tokenizer_allocator(a), TEXT, 1);
    size_t used = 0;
    int rc = text ? same(a, b, everything, sizeof everything - 1, equal, err)
                  : vb_fail(err, VB_NO_MEMORY, "no memory to compare two tokenizers");
    for (uint32_t c = 1; !rc && *equal && c <= CHARACTERS; c += c < PLANE ? 1 : 8) {
        if (c < CHARACTERS && (c < 0xd800 || c > 0xdfff)) /* no surrogates */
            used += put_among_others(text + used, c);
        if (used > TEXT - MOST_OF_ONE || c == CHARACTERS) {
            rc = same(a, b, text, used, equal, err);
            used = 0;
        }
    }
    vb_free(tokenizer_allocator(a), text);
    return rc;
}
