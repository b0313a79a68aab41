/* tools/cli/diagram.h -- draws curves and dots into an SVG file: a frame with a grid, and names of the curves on the
 * right. */
#ifndef VB_CLI_DIAGRAM_H
#define VB_CLI_DIAGRAM_H

#include <stddef.h>
#include <stdio.h>

struct diagram {
    FILE *f;
    const char *title, *x_title;
    double x_least, x_most, x_step, y_least, y_most, y_step; /* the steps of the numbers at the axes */
    int x_digits, y_digits;          /* digits of these numbers after the point */
    double y_strong;                 /* the line of the grid at this y is darker; NAN: none is */
    int lines;                       /* how many lines diagram_label has written */
};

/* Colours that colour-blind readers can distinguish; i of any size. */
const char *diagram_colour(int i);

/* Writes the beginning of the file, and the grid. */
void diagram_begin(struct diagram *d);
/* Draws a curve through n points; those with an x or a y that is NAN are left out. */
void diagram_curve(const struct diagram *d, const char *colour, int dashed, const double *x, const double *y, size_t n);
/* Draws a dot. A mouse over it shows `title`, which is escaped. */
void diagram_dot(const struct diagram *d, const char *colour, double x, double y, const char *title);
/* Writes a line of text at the right. */
void diagram_label(struct diagram *d, const char *colour, const char *text);
/* Leaves out a line. */
void diagram_gap(struct diagram *d);
void diagram_end(const struct diagram *d);

/* A step of 1, 2 or 5 times a power of ten, so that `range` has 4 to 10 of them. */
double diagram_step(double range);

#endif
