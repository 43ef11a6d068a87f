"""The command: `python -m benchmarks [NAME ...] [--quick] [--minutes N] [--json PATH]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Options, discover, run_all


def main(arguments: Sequence[str] | None = None, package: str = "benchmarks") -> int:
    """Run benchmarks; returns the exit status: 0 if all budgets were met, 1 if one was missed, 2 for a usage error."""
    known = discover(package)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the budgets. One JSON line per figure on stdout, a table on stderr.",
        epilog=f"Benchmarks: {', '.join(known)}.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="the benchmarks to run; default all")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds; rough values")
    parser.add_argument("--minutes", type=float, default=0.0, help="page, scale, faults: the duration")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the JSON lines to this file")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in known]
    if unknown:
        print(f"unknown benchmark {', '.join(unknown)}. Choose from: {', '.join(known)}.", file=sys.stderr)
        return 2
    chosen = {name: known[name] for name in options.names or known}
    wanted = Options(quick=options.quick, minutes=options.minutes)
    return run_all(chosen, wanted, json_path=options.json, out=sys.stdout, err=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
