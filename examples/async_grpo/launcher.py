"""The command line of the example: `python -m examples.async_grpo --help`."""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

from examples.async_grpo.children import ChildFailedError, Children
from examples.async_grpo.destination import Destination, DestinationError, open_destination
from examples.async_grpo.faults import FAULTS, Fault
from examples.async_grpo.interruptions import Interruptions
from examples.async_grpo.rollout import run_rollout_worker
from examples.async_grpo.settings import Links, Settings
from examples.async_grpo.summary import Summary, SummaryError, summarize_api, summarize_files
from examples.async_grpo.tool import run_tool_server
from examples.async_grpo.trainer import run_trainer
from examples.async_grpo.weights import WeightStore

INTERRUPTED = 130


def main(arguments: list[str] | None = None, program: str = "python -m examples.async_grpo") -> int:
    """Run the example; returns 0, 1 after a failure, or 130 after Ctrl+C."""
    options = parse(arguments, program)
    on_stop_signals(signal.default_int_handler)
    run_id = os.environ.get("RL_INSIGHT_RUN_ID") or f"async_grpo-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    directory = (options.directory or Path("rl-insight-events") / run_id) if options.no_server else None
    context = multiprocessing.get_context("spawn")
    try:
        with open_destination(context, options.server, directory) as destination:
            return run(context, options, run_id, destination)
    except (ChildFailedError, DestinationError, SummaryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def run(context: SpawnContext, options: argparse.Namespace, run_id: str, destination: Destination) -> int:
    """Train, then print a summary; returns the exit code."""
    settings = Settings(
        run_id=run_id,
        insight_config=destination.insight_config
        | ({"recorder": {"capture_text": True}} if options.capture_text else {}),
        steps=options.steps,
        workers=options.workers,
        seed=options.seed,
        speed=options.speed,
        straggler=options.straggler,
        hang=options.hang,
        errors=options.errors,
        fault=Fault(options.fault, options.fault_at),
        interruptions=Interruptions(
            slow_start_s=options.slow_start,
            evaluate_every=options.evaluate_every,
            checkpoint_every=options.checkpoint_every,
            checkpoint=options.checkpoint,
            resume=options.resume,
        ),
    )
    print(f"Run {run_id}: {settings.workers} rollout workers, 1 trainer, 1 tool server. Press Ctrl+C to stop.")
    print(f"Live page: {destination.url}" if destination.url else f"Recording to {destination.directory}", flush=True)
    code = 0
    try:
        train(context, settings)
        if not options.exit and destination.url:
            print(f"Training is done. The page is on {destination.url} until Ctrl+C.", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        code = INTERRUPTED
    print(summarize(destination, run_id).text())
    return code


def summarize(destination: Destination, run_id: str) -> Summary:
    """Read the run back from where it was recorded."""
    if destination.url is not None:
        return summarize_api(destination.url, destination.token, run_id)
    return summarize_files(destination.directory or Path())


def train(context: SpawnContext, settings: Settings) -> None:
    """Start all processes, wait until the trainer is done, and stop them."""
    links = Links(
        stop=context.Event(),
        stop_services=context.Event(),
        groups=context.Queue(maxsize=2 * settings.groups_per_step),
        weights=WeightStore(context),
        trained=tuple(context.Queue() for _ in range(settings.workers)),
    )
    children = Children(context, settings, links)
    try:
        tool_port = start_tool_server(context, children)
        for rank in range(settings.workers):
            children.start(run_rollout_worker, "rollout", rank, tool_port)
        children.wait_for(children.start(run_trainer, "trainer", 0))
    finally:
        on_stop_signals(signal.SIG_IGN)  # a second Ctrl+C must not interrupt the shutdown
        children.stop()
        on_stop_signals(signal.default_int_handler)


def on_stop_signals(handler: Any) -> None:
    """Handle Ctrl+C and `kill` alike, even if a shell started the process with Ctrl+C disabled."""
    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)


def start_tool_server(context: SpawnContext, children: Children) -> int:
    """Start the tool server and return its port."""
    receiver, sender = context.Pipe(duplex=False)
    children.start(run_tool_server, "tool", 0, sender)
    sender.close()  # now the pipe closes with the child, if it fails
    try:
        return int(receiver.recv())
    except EOFError as error:
        raise ChildFailedError("the tool server did not start: see its error above.") from error


def parse(arguments: list[str] | None, program: str) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog=program, description="A small asynchronous GRPO run on a toy task.")
    parser.add_argument("--steps", type=whole_number, help="stop training after this many steps (default: never)")
    parser.add_argument(
        "--exit", action="store_true", help="exit after the last step, with a summary; requires --steps"
    )
    parser.add_argument("--workers", type=whole_number, default=3, help="rollout processes (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts and the sampling")
    parser.add_argument(
        "--speed", type=positive, default=1.0, help="speed of the simulated delays, relative to real time"
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--server", metavar="URL", help="record to this server (default: the local one, or a new one)")
    place.add_argument("--no-server", action="store_true", help="record to files")
    parser.add_argument("--directory", type=Path, help="directory for the files of --no-server")
    besides = parser.add_argument_group("besides training")
    besides.add_argument(
        "--slow-start",
        type=positive,
        default=0.0,
        metavar="SECONDS",
        help="extra time of the first updates, as if they compiled",
    )
    besides.add_argument("--evaluate-every", type=whole_number, metavar="STEPS", help="evaluate every STEPS steps")
    besides.add_argument(
        "--checkpoint-every", type=whole_number, metavar="STEPS", help="save a checkpoint every STEPS steps"
    )
    besides.add_argument(
        "--checkpoint", type=Path, default=Path("async_grpo-checkpoint.npz"), help="path of the checkpoint"
    )
    besides.add_argument("--resume", action="store_true", help="continue from the checkpoint, if there is one")
    besides.add_argument("--capture-text", action="store_true", help="record the text of some samples of each step")
    trouble = parser.add_argument_group("injected faults")
    trouble.add_argument("--straggler", type=int, metavar="RANK", help="this rollout worker is 3 times slower")
    trouble.add_argument("--hang", action="store_true", help="one tool call never returns")
    trouble.add_argument("--errors", action="store_true", help="the tool fails in bursts")
    trouble.add_argument("--fault", choices=sorted(FAULTS), help="inject a fault: see faults.py")
    trouble.add_argument(
        "--fault-at", type=whole_number, default=20, metavar="STEP", help="when the fault begins (default: step 20)"
    )
    options = parser.parse_args(arguments)
    if options.exit and options.steps is None:
        parser.error("--exit needs --steps: without it the training never ends.")
    if options.directory is not None and not options.no_server:
        parser.error("--directory requires --no-server: a server stores the run itself.")
    if options.straggler is not None and not 0 <= options.straggler < options.workers:
        parser.error(f"--straggler must be a rank from 0 to {options.workers - 1}.")
    return options


def whole_number(text: str) -> int:
    """Parse an integer of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of 1 or more, not {text!r}")
    return int(text)


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return number
