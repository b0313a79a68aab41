/* tools/serve/page.c -- the page at /, and the headers that say what it may do.
 *
 * page.html has the style, and ends where the script begins; the script consists of the files page*.js. A browser gets
 * all of it as one file. The header Content-Security-Policy contains the hashes of the style and of the script: a
 * browser runs this script and nothing else, and the script can reach this server alone. */
#ifdef HAVE_MICROHTTPD
#include "tools/serve/page.h"

#include <sha2.h>
#include <stdio.h>
#include <string.h>

#include "tools/cli/base64.h"

/* The page's text becomes part of the program. */
__asm__(".section .rodata\n"
        ".global serve_page\n"
        "serve_page:\n"
        ".incbin \"tools/serve/page.html\"\n"
        ".incbin \"tools/serve/page_tokens.js\"\n"
        ".incbin \"tools/serve/page_request.js\"\n"
        ".incbin \"tools/serve/page.js\"\n"
        ".ascii \"</script>\\n</body>\\n</html>\\n\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char serve_page[];

#define DIGEST_BASE64 BASE64_ROOM(SHA256_DIGEST_LENGTH)

static void digest_of(const char *text, size_t size, char out[DIGEST_BASE64])
{
    SHA2_CTX h;
    uint8_t d[SHA256_DIGEST_LENGTH];
    SHA256Init(&h);
    SHA256Update(&h, (const uint8_t *)text, size);
    SHA256Final(d, &h);
    base64_write(out, d, sizeof d);
}

/* The digest of the text between two tags, as browsers compute it. */
static void digest_between(const char *begin, const char *end, char out[DIGEST_BASE64])
{
    const char *from = strstr(serve_page, begin) + strlen(begin);
    digest_of(from, (size_t)(strstr(from, end) - from), out);
}

static int add(struct MHD_Response *r, const char *name, const char *value)
{
    return MHD_add_response_header(r, name, value) == MHD_YES;
}

struct MHD_Response *page_response(struct MHD_Connection *connection, int *status)
{
    char page[DIGEST_BASE64], style[DIGEST_BASE64], script[DIGEST_BASE64], tag[64], policy[512];
    digest_of(serve_page, strlen(serve_page), page);
    digest_between("<style>", "</style>", style);
    digest_between("<script>", "</script>", script);
    snprintf(tag, sizeof tag, "\"%s\"", page);
    snprintf(policy, sizeof policy,
             "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; connect-src 'self'; img-src data:; "
             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
             "trusted-types 'none'",
             script, style);
    const char *known = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "If-None-Match");
    int is_known = known && strstr(known, tag);
    struct MHD_Response *r = MHD_create_response_from_buffer(is_known ? 0 : strlen(serve_page),
                                                             (void *)(uintptr_t)serve_page, MHD_RESPMEM_PERSISTENT);
    *status = is_known ? 304 : 200;
    if (r && add(r, "Content-Security-Policy", policy) && add(r, "ETag", tag) && add(r, "Cache-Control", "no-cache") &&
        add(r, "Referrer-Policy", "no-referrer") && add(r, "Cross-Origin-Opener-Policy", "same-origin"))
        return r;
    if (r)
        MHD_destroy_response(r);
    return NULL;
}
#endif
