"""One curves.csv of several runs, each of which started from the model of the run before.

    python join_curves.py --out MODEL/curves.csv RUN1/curves.csv RUN2/curves.csv ...

The column `run` counts the runs; steps, minutes and tokens are summed over them.
"""
import argparse
import csv

SUMMED = {"step": int, "minutes": float, "tokens": int}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True)
    p.add_argument("curves", nargs="+")
    a = p.parse_args()
    joined, fields, before = [], ["run"], dict.fromkeys(SUMMED, 0)
    for run, path in enumerate(a.curves, 1):
        with open(path, newline="") as f:
            rows = list(csv.DictReader(f))
        if not rows:
            raise SystemExit(f"{path}: wanted rows of train.py, found none")
        fields += [name for name in rows[0] if name not in fields]
        for row in rows:
            row["run"] = run
            for name, number in SUMMED.items():
                row[name] = round(before[name] + number(row[name]), 2)
        before = {name: rows[-1][name] for name in SUMMED}
        joined += rows
    with open(a.out, "w", newline="") as f:
        w = csv.DictWriter(f, fields)
        w.writeheader()
        w.writerows(joined)


if __name__ == "__main__":
    main()
