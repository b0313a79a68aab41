#!/usr/bin/env python3
"""Draws one column of the curves.csv of several training runs into an SVG file, and prints where each run ends.

usage: draw-curves.py [--column NAME] [--x NAME] -o FILE.svg NAME=DIR/curves.csv ...

The default column is held_out_main, the loss of the next token on held-out texts; the default of --x is tokens. NAME is what
the picture calls a run. Rows without a number in the column are left out."""
import argparse
import csv
import html
import math
import sys

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]  # colour-blind readers can distinguish them
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 60, 160, 40, 50


def read(run, x, column):
    name, equals, path = run.partition("=")
    if not equals:
        sys.exit(f"{run}: wanted NAME=DIR/curves.csv")
    try:
        with open(path, newline="") as f:
            rows = list(csv.DictReader(f))
    except OSError as e:
        sys.exit(f"{path}: {e.strerror}")
    if not rows or x not in rows[0] or column not in rows[0]:
        sys.exit(f"{path}: it has no columns {x} and {column}")
    points = [(float(r[x]), float(r[column])) for r in rows if r[column]]
    if not points:
        sys.exit(f"{path}: no row has a number in the column {column}")
    return name, points


def step_of(span):
    """1, 2 or 5 times a power of ten, so that `span` has 4 to 10 of them."""
    power = 10 ** math.floor(math.log10(span / 4))
    return max(f * power for f in (1, 2, 5) if f * power <= span / 4)


def draw(f, runs, x, column):
    xs = [p[0] for _, points in runs for p in points]
    ys = [p[1] for _, points in runs for p in points]
    most_x = max(xs) or 1
    step_x, step_y = step_of(most_x), step_of(max(ys) - min(ys) or 1)
    low = math.floor(min(ys) / step_y) * step_y
    high = max(math.ceil(max(ys) / step_y) * step_y, low + step_y)
    at_x = lambda v: LEFT + v / most_x * (WIDTH - LEFT - RIGHT)
    at_y = lambda v: TOP + (high - v) / (high - low) * (HEIGHT - TOP - BOTTOM)
    f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">\n'
            f'<rect width="100%" height="100%" fill="white"/>\n<text x="{LEFT}" y="20">{html.escape(column)} in nats per token</text>\n')
    for i in range(round((high - low) / step_y) + 1):
        y = low + i * step_y
        f.write(f'<path d="M{LEFT} {at_y(y):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
                f'<text x="{LEFT - 6}" y="{at_y(y) + 4:.1f}" text-anchor="end">{y:.4g}</text>\n')
    for i in range(int(most_x / step_x) + 1):
        f.write(f'<text x="{at_x(i * step_x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{i * step_x:.8g}</text>\n')
    f.write(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{html.escape(x)}</text>\n')
    for i, (name, points) in enumerate(runs):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{at_x(a):.1f},{at_y(b):.1f}" for a, b in points)
        f.write(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>\n'
                f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 16 * (i + 1)}" fill="{colour}">{html.escape(name)}</text>\n')
    f.write("</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--column", default="held_out_main")
    parser.add_argument("--x", default="tokens")
    parser.add_argument("-o", required=True, metavar="FILE.svg")
    parser.add_argument("runs", nargs="+", metavar="NAME=FILE")
    a = parser.parse_args()
    runs = [read(run, a.x, a.column) for run in a.runs]
    with open(a.o, "w") as f:
        draw(f, runs, a.x, a.column)
    for name, points in runs:
        print(f"{name}: {a.column} {points[-1][1]:.4f} after {points[-1][0]:.0f} {a.x}")


if __name__ == "__main__":
    main()
