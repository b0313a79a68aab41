#!/usr/bin/env python3
"""Adds up what ncu --csv has measured, by kernel: gpu_profile.py FILE"""
import csv
import sys

TIME, READ, DRAM, SM = "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "sm__throughput.avg.pct_of_peak_sustained_elapsed"
UNITS = {"nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0,
         "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9}


def launches(lines):
    """(kernel, {metric: value in seconds, bytes or percent}) of each launch; ncu's own messages come before the table."""
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found = {}
    for row in csv.DictReader(lines[begin:]):
        if row.get("Metric Name") and row.get("Metric Value"):
            value = float(row["Metric Value"].replace(",", "")) * UNITS.get(row["Metric Unit"], 1.0)
            found.setdefault(row["ID"], (row["Kernel Name"].split("(")[0], {}))[1][row["Metric Name"]] = value
    return list(found.values())


def main():
    with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
        all_launches = launches(file.read().splitlines())
    if not all_launches:
        print("ncu has measured no kernels")
        return 1
    total = sum(metrics.get(TIME, 0.0) for _, metrics in all_launches)
    print(f"{'kernel':22} {'launches':>8} {'us each':>9} {'of time':>8} {'MB read':>9} {'GB/s':>8} {'memory':>8} {'SM':>6}   of the peak")
    kernels = {}
    for kernel, metrics in all_launches:
        kernels.setdefault(kernel, []).append(metrics)
    for kernel, some in sorted(kernels.items(), key=lambda k: -sum(m.get(TIME, 0.0) for m in k[1])):
        time, read = (sum(m.get(name, 0.0) for m in some) for name in (TIME, READ))
        dram, sm = (sum(m.get(name, 0.0) * m.get(TIME, 0.0) for m in some) / (time or 1.0) for name in (DRAM, SM))
        print(f"{kernel:22} {len(some):8} {1e6 * time / len(some):9.2f} {100 * time / (total or 1.0):7.1f}% {read / 1e6:9.2f} {read / (time or 1.0) / 1e9:8.1f} "
              f"{dram:7.1f}% {sm:5.1f}%")
    print(f"{len(all_launches)} launches take {1e6 * total:.1f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
