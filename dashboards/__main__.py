"""Writes the dashboards: `python -m dashboards`; with `--check` it returns 1 if they are out of date."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import engines, machines, runs, trainers

DIRECTORY = Path(__file__).parent.parent / "src" / "rl_insight" / "stack" / "dashboards"
ALL = (
    runs.overview,
    runs.timeline,
    runs.sessions,
    runs.hotspots,
    machines.hardware,
    machines.collector,
    engines.vllm,
    engines.sglang,
    engines.transfer_queue,
    trainers.verl,
    trainers.agent_loops,
)


def generate() -> dict[str, str]:
    """Return every dashboard as JSON, by file name."""
    built = [make().build() for make in ALL]
    made = {}
    for dashboard in built:
        plain = json.loads(json.dumps(dashboard, cls=JSONEncoder))
        for number, panel in enumerate(plain["panels"], 1):
            panel["id"] = number
        made[f"{dashboard.uid}.json"] = json.dumps(plain, indent=2, sort_keys=True) + "\n"
    return made


def main(arguments: list[str]) -> int:
    """Write the dashboards; with `--check` only compare them, and return 1 if they differ."""
    generated = generate()
    present = {path.name: path.read_text(encoding="utf-8") for path in DIRECTORY.glob("*.json")}
    if "--check" in arguments:
        return int(generated != present)
    for name in present.keys() - generated.keys():
        (DIRECTORY / name).unlink()
    for name, text in generated.items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
