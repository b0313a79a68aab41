/* tools/cli/diagram.c -- draws curves and dots into an SVG file. */
#include "tools/cli/diagram.h"

#include <math.h>

#define WIDTH 640
#define HEIGHT 420
#define LEFT 60
#define RIGHT 150
#define TOP 30
#define BOTTOM 50

const char *diagram_colour(int i)
{
    static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};
    return colours[(size_t)i % (sizeof colours / sizeof *colours)];
}

double diagram_step(double range)
{
    double power = pow(10, floor(log10(range)));
    double steps = range / power; /* 1 to 10 */
    return power * (steps < 2 ? 0.2 : steps < 4 ? 0.5 : 1);
}

static double x_of(const struct diagram *d, double x)
{
    return LEFT + (x - d->x_least) / (d->x_most - d->x_least) * (WIDTH - LEFT - RIGHT);
}
static double y_of(const struct diagram *d, double y)
{
    return HEIGHT - BOTTOM - (y - d->y_least) / (d->y_most - d->y_least) * (HEIGHT - TOP - BOTTOM);
}

static void put_text(FILE *f, const char *text)
{
    for (; *text; text++)
        if (*text == '<' || *text == '>' || *text == '&' || *text == '"')
            fprintf(f, "&#%d;", *text);
        else
            fputc(*text, f);
}

/* How many steps fit between least and most. */
static int count_of(double least, double most, double step) { return (int)floor((most - least) / step + 1e-9); }

void diagram_begin(struct diagram *d)
{
    FILE *f = d->f;
    d->lines = 0;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n<text x=\"%d\" y=\"18\" font-size=\"14\">",
            WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
    put_text(f, d->title);
    fputs("</text>\n", f);
    for (int i = 0; i <= count_of(d->y_least, d->y_most, d->y_step); i++) {
        double y = d->y_least + i * d->y_step;
        fprintf(f, "<path d=\"M%d %.1fH%d\" stroke=\"%s\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.*f</text>\n",
                LEFT, y_of(d, y), WIDTH - RIGHT, fabs(y - d->y_strong) < 1e-9 ? "#888" : "#ddd", LEFT - 6,
                y_of(d, y) + 4, d->y_digits, y);
    }
    for (int i = 0; i <= count_of(d->x_least, d->x_most, d->x_step); i++) {
        double x = d->x_least + i * d->x_step;
        fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.*f</text>\n", x_of(d, x), HEIGHT - BOTTOM + 18,
                d->x_digits, x);
    }
    fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">", x_of(d, (d->x_least + d->x_most) / 2), HEIGHT - 10);
    put_text(f, d->x_title);
    fputs("</text>\n", f);
}

void diagram_curve(const struct diagram *d, const char *colour, int dashed, const double *x, const double *y, size_t n)
{
    int points = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(x[i]) || isnan(y[i]))
            continue;
        if (!points)
            fprintf(d->f, "<path fill=\"none\" stroke=\"%s\"%s d=\"", colour,
                    dashed ? " stroke-dasharray=\"5 4\"" : "");
        fprintf(d->f, "%c%.1f %.1f", points++ ? 'L' : 'M', x_of(d, x[i]), y_of(d, y[i]));
    }
    if (points)
        fputs("\"/>\n", d->f);
}

void diagram_dot(const struct diagram *d, const char *colour, double x, double y, const char *title)
{
    fprintf(d->f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"><title>", x_of(d, x), y_of(d, y), colour);
    put_text(d->f, title);
    fputs("</title></circle>\n", d->f);
}

void diagram_label(struct diagram *d, const char *colour, const char *text)
{
    fprintf(d->f, "<text x=\"%d\" y=\"%d\" fill=\"%s\">", WIDTH - RIGHT + 12, TOP + 20 * ++d->lines, colour);
    put_text(d->f, text);
    fputs("</text>\n", d->f);
}

void diagram_gap(struct diagram *d) { d->lines++; }
void diagram_end(const struct diagram *d) { fputs("</svg>\n", d->f); }
