"""The smallest useful example: record a few steps of a simulated training run, then print the records.

Run it with `python -m examples.quickstart`. It records to a running server, else to files that it reads back.
"""

import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import rl_insight as insight
from rl_insight.config.paths import find_local_server
from rl_insight.schema.records import HistogramRecord, LogRecord, SampleRecord, SpanRecord, records
from rl_insight.transport import read_batches

STEPS = 3
PROMPTS = 4


@insight.trace_op("update_model", stage="optimizer")
def update_model() -> float:
    """Simulate an optimizer step; the decorator makes every call a span."""
    time.sleep(0.02)
    return random.random()


def generate(prompt: int) -> None:
    """Simulate a rollout: a span with attributes, and a value for a histogram."""
    tokens = random.randint(20, 200)
    with insight.trace_span("generate", {"prompt_id": prompt, "tokens": tokens}):
        time.sleep(tokens / 10_000)
    insight.metric_histogram("response_length", tokens, documentation="Tokens per response")


def train() -> None:
    """Run the simulated training; states show what the lane `trainer` is doing."""
    for step in range(1, STEPS + 1):
        with insight.step(step):  # everything recorded in this block belongs to the step
            with insight.trace_state("rollout", state_lane_id="trainer"):
                for prompt in range(PROMPTS):
                    generate(prompt)
            with insight.trace_state("update", state_lane_id="trainer"):
                loss = update_model()
            insight.metric_gauge("loss", loss)
            insight.metric_count("rollouts", PROMPTS)
            insight.log("info", "step done", loss=loss)
    insight.trace_event("training_finished", steps=STEPS)


def print_summary(directory: Path) -> None:
    """Read the files back and print their contents."""
    kinds: Counter[str] = Counter()
    durations: dict[str, list[float]] = {}
    metrics: dict[str, str] = {}
    logs: list[str] = []
    for batch in read_batches(directory):
        for record in records(batch):
            kinds[type(record).__name__.removesuffix("Record").lower()] += 1
            if isinstance(record, SpanRecord) and record.duration_ns is not None:
                durations.setdefault(record.name, []).append(record.duration_ns / 1e6)
            elif isinstance(record, SampleRecord):  # counters are cumulative, so the last value is the total
                metrics[record.metric] = f"{record.kind}, last value {float(record.value):.3f}"
            elif isinstance(record, HistogramRecord):
                metrics[record.metric] = f"histogram of {record.count} values, {record.min} to {record.max}"
            elif isinstance(record, LogRecord):
                logs.append(f"step {record.step}: {record.message} {record.attributes}")
    print("Recorded:", ", ".join(f"{count} {kind}s" for kind, count in sorted(kinds.items())))
    for name, milliseconds in sorted(durations.items()):
        print(f"  span   {name:<16} {len(milliseconds):>3} times, {sum(milliseconds):7.1f} ms in total")
    for name, text in sorted(metrics.items()):
        print(f"  metric {name:<16} {text}")
    for line in logs:
        print(f"  log    {line}")


def main() -> None:
    """Record, finish, and show the result."""
    server = os.environ.get("RL_INSIGHT_SERVER_URL") or getattr(find_local_server(), "url", None)
    with tempfile.TemporaryDirectory() as directory:
        to_files = {"server": {"backend": "file"}, "file": {"directory": directory}}
        insight.init("examples", "quickstart", None if server else to_files, role="trainer", rank=0)
        train()
        insight.finish()  # delivers buffered events
        if server:
            print(f"Recorded {STEPS} steps. See them at {server}")
        else:
            print_summary(Path(directory))


if __name__ == "__main__":
    main()
