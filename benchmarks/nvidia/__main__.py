"""Prints this machine's hardware readings: `python -m benchmarks.nvidia`."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.nvidia.compare import as_rows, compare_with_nvidia_smi
from rl_insight.hardware.base import Source
from rl_insight.hardware.selection import choose_sources


def main(arguments: Sequence[str] | None = None) -> int:
    """Print readings, or compare them with `nvidia-smi`; returns 0, 1 if they disagree, 2 if there are none."""
    options = _parser().parse_args(arguments)
    if options.compare_nvidia_smi:
        return _compare(options)
    sources = choose_sources(options.source or "auto")
    if not sources:
        print("there is nothing to watch here.", file=sys.stderr)  # a command's output
        return 2
    try:
        _watch(sources, options)
    except KeyboardInterrupt:
        return 130
    finally:
        for source in sources:
            source.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nvidia", description=__doc__)
    parser.add_argument("--once", action="store_true", help="read once and exit")
    parser.add_argument("--json", action="store_true", help="print JSON, one line per reading")
    parser.add_argument("--interval", type=float, default=5.0, metavar="SECONDS", help="time between readings")
    parser.add_argument("--source", action="append", metavar="NAME", help="ray, nvml or host; may be repeated")
    parser.add_argument("--compare-nvidia-smi", action="store_true", help="compare the readings with nvidia-smi")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to compare")
    parser.add_argument("--load", action="store_true", help="keep the GPUs busy during the comparison")
    return parser


def _watch(sources: list[Source], options: argparse.Namespace) -> None:
    stop = threading.Event()
    for source in sources:  # CPU utilization needs two readings
        source.read(stop)
    time.sleep(0.2 if options.once else options.interval)
    while True:
        for source in sources:
            for reading in source.read(stop):
                _print(options, {"source": source.name, **msgspec.to_builtins(reading)})
        if options.once:
            return
        time.sleep(options.interval)


def _print(options: argparse.Namespace, row: dict[str, Any]) -> None:
    if options.json:
        print(json.dumps(row), flush=True)  # a command's output
        return
    what = " ".join(str(row[key]) for key in ("source", "host", "kind", "index", "model", "pid") if row.get(key))
    print(what)  # a command's output
    for name, value in row["values"].items():
        print(f"  {name:32} {value:.6g}")  # a command's output


def _compare(options: argparse.Namespace) -> int:
    try:
        comparisons, engine = compare_with_nvidia_smi(options.seconds, load=options.load)
    except RuntimeError as error:
        print(error, file=sys.stderr)  # a command's output
        return 2
    if options.json:
        print(json.dumps({"load": engine, "comparisons": as_rows(comparisons)}))  # a command's output
    else:
        print(f"load: {engine or 'none'}")  # a command's output
        for row in comparisons:
            verdict = "agrees" if row.agrees else "DIFFERS"
            print(  # a command's output
                f"gpu {row.gpu} {row.quantity:20} ours {row.ours:.6g}, nvidia-smi {row.nvidia_smi:.6g} "
                f"(noise {row.noise:.3g}, {row.pairs} pairs): {verdict}"
            )
    return 0 if comparisons and all(row.agrees for row in comparisons) else 1


if __name__ == "__main__":
    sys.exit(main())
