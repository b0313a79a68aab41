/* tools/diff/report.c -- what `diff` writes besides its table: --require, --junit and --html. All of it comes from the
 * object that --json prints. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/file.h"
#include "tools/cli/page.h"
#include "tools/diff/diff.h"

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static int is_compared(const json_t *tap) { return strcmp(text_of(tap, "verdict"), verdict_name[NOT_COMPARED]) != 0; }

/* ---- names that must be compared ---- */

static int is_matched(const char *pattern, const json_t *taps)
{
    size_t i;
    json_t *tap;
    json_array_foreach(taps, i, tap)
        if (is_compared(tap) && !fnmatch(pattern, text_of(tap, "name"), 0))
            return 1;
    return 0;
}

static int is_judged(const char *pattern, const json_t *told, const char *side)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(json_object_get(told, side), "operators"), i, one)
        if (strcmp(text_of(one, "verdict"), "not judged") && !fnmatch(pattern, text_of(one, "tap"), 0))
            return 1;
    return 0;
}

json_t *diff_missing(const char *require, const json_t *told)
{
    json_t *missing = json_array();
    for (const char *p = require ? require : ""; *p;) {
        size_t n = strcspn(p, ",");
        char *pattern = cli_must(strndup(p, n));
        if (n && !is_matched(pattern, json_object_get(told, "taps")) && !is_judged(pattern, told, "local_a") &&
            !is_judged(pattern, told, "local_b"))
            json_array_append_new(missing, json_string(pattern));
        free(pattern);
        p += n + (p[n] == ',');
    }
    return missing;
}

/* ---- JUnit ---- */

/* Writes text into an attribute. Bytes that XML forbids are written as '?'. */
static void put_xml(FILE *f, const char *text)
{
    for (; *text; text++)
        if (*text == '&' || *text == '<' || *text == '>' || *text == '"')
            fprintf(f, "&#%d;", *text);
        else
            fputc((unsigned char)*text < 0x20 ? '?' : *text, f);
}

static int fails(const struct cli *c, const json_t *tap)
{
    const char *verdict = text_of(tap, "verdict");
    int bits = c->bits, tie = !strcmp(verdict, verdict_name[TIE_FLIP]) && strcmp(diff_ties(c), "fail");
    int passes = tie || !strcmp(verdict, verdict_name[IDENTICAL]) ||
                 (!strcmp(verdict, verdict_name[ROUNDING]) && !bits);
    return is_compared(tap) && !passes;
}

static void put_case(FILE *f, const struct cli *c, const json_t *tap)
{
    const char *verdict = text_of(tap, "verdict"), *why = text_of(tap, "why");
    fputs("  <testcase classname=\"verbatim.diff\" name=\"", f);
    put_xml(f, text_of(tap, "name"));
    fputs("\">", f);
    if (!is_compared(tap))
        fputs("<skipped message=\"not compared\"/>", f);
    if (fails(c, tap)) {
        fprintf(f, "<failure type=\"%s\" message=\"", verdict);
        put_xml(f, *why ? why : verdict);
        fputs("\"/>", f);
    }
    fputs("</testcase>\n", f);
}

static const json_t *operators_of(const json_t *told, int side)
{
    return json_object_get(json_object_get(told, side ? "local_b" : "local_a"), "operators");
}

static int is_wrong(const json_t *operator)
{
    const char *verdict = text_of(operator, "verdict");
    return !strcmp(verdict, verdict_name[STRUCTURAL]) || !strcmp(verdict, verdict_name[BIASED]);
}

/* The operators that were judged alone, of the side A or B. */
static void put_operators(FILE *f, const json_t *told, int side)
{
    size_t i;
    json_t *one;
    json_array_foreach(operators_of(told, side), i, one) {
        const char *why = text_of(one, "why");
        fprintf(f, "  <testcase classname=\"verbatim.diff.operator-%c\" name=\"", side ? 'b' : 'a');
        put_xml(f, text_of(one, "tap"));
        fprintf(f, " (%s)\">", text_of(one, "operator"));
        if (is_wrong(one) || !strcmp(text_of(one, "verdict"), "not judged")) {
            if (is_wrong(one))
                fprintf(f, "<failure type=\"%s\" message=\"", text_of(one, "verdict"));
            else
                fputs("<skipped message=\"", f);
            if (*why) {
                put_xml(f, why);
                put_xml(f, *text_of(json_object_get(one, "bias"), "where") ? "; " : "");
                put_xml(f, text_of(json_object_get(one, "bias"), "where"));
            } else {
                fprintf(f, "%lld of %lld rows", json_integer_value(json_object_get(one, "wrong_rows")),
                        json_integer_value(json_object_get(one, "rows")));
            }
            fputs("\"/>", f);
        }
        fputs("</testcase>\n", f);
    }
}

int diff_junit(const struct cli *c, const json_t *told)
{
    struct cli_file file;
    FILE *f = cli_file_begin(c, &file, c->junit);
    const json_t *taps = json_object_get(told, "taps"), *missing = json_object_get(told, "required_missing");
    size_t i, failures = json_array_size(missing), skipped = 0, tests = json_array_size(taps) + failures;
    json_t *one;
    if (!f)
        return EXIT_OTHER;
    json_array_foreach(taps, i, one) {
        failures += (size_t)fails(c, one);
        skipped += !is_compared(one);
    }
    for (int side = 0; side < 2; side++) {
        tests += json_array_size(operators_of(told, side));
        json_array_foreach(operators_of(told, side), i, one) {
            failures += (size_t)is_wrong(one);
            skipped += !strcmp(text_of(one, "verdict"), "not judged");
        }
    }
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"verbatim diff ", f);
    put_xml(f, text_of(json_object_get(told, "a"), "path"));
    fputc(' ', f);
    put_xml(f, text_of(json_object_get(told, "b"), "path"));
    fprintf(f, "\" tests=\"%zu\" failures=\"%zu\" skipped=\"%zu\">\n", tests, failures, skipped);
    json_array_foreach(taps, i, one)
        put_case(f, c, one);
    for (int side = 0; side < 2; side++)
        put_operators(f, told, side);
    json_array_foreach(missing, i, one) {
        fputs("  <testcase classname=\"verbatim.diff.require\" name=\"", f);
        put_xml(f, json_string_value(one));
        fputs("\"><failure type=\"missing\" message=\"no value that both sides have matches this "
              "pattern\"/></testcase>\n",
              f);
    }
    fputs("</testsuite>\n", f);
    return cli_file_end(c, &file, NULL);
}

/* ---- the web page ---- */

/* Includes the text of the page in the program. */
__asm__(".section .rodata\n"
        ".global diff_page\n"
        "diff_page:\n"
        ".incbin \"tools/diff/report.html\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char diff_page[];

int diff_html(const struct cli *c, const json_t *told) { return cli_page(c, c->html, diff_page, "@DIFF@", told); }
