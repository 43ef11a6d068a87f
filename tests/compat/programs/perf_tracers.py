"""AReaL's tracer and ours, with the configuration that AReaL's programs use."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import stubs


@dataclass
class SessionTracerConfig:
    enabled: bool = False
    flush_threshold: int = 256


@dataclass
class PerfTracerConfig:
    experiment_name: str = "math"
    trial_name: str = "trial0"
    fileroot: str = "/tmp"
    enabled: bool = False
    save_interval: int = 1
    profile_steps: list[int] | None = None
    session_tracer: SessionTracerConfig | None = field(default_factory=lambda: SessionTracerConfig(enabled=True))


class Profile:
    """The part of PyTorch's profiler that a tracer uses: a trace of one thread and one stream."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        made.append(options)

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *_error: object) -> None:
        return None

    def export_chrome_trace(self, path: str) -> None:
        events = [
            {"ph": "M", "name": "thread_name", "pid": 7, "tid": 70, "args": {"name": "thread 70"}},
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": 3, "args": {"name": "stream 3"}},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 70, "ts": 1000.0, "dur": 40.0},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 3, "ts": 1010.0, "dur": 20.0},
        ]
        with open(path, "w") as stream:
            json.dump({"traceEvents": events}, stream)


made: list[dict[str, Any]] = []
"""The options of each profile that was taken."""


def stub_torch() -> None:
    class ProfilerActivity:
        CPU = "cpu"
        CUDA = "cuda"

    torch = stubs.module("torch")
    stubs.module("torch.profiler", profile=Profile, ProfilerActivity=ProfilerActivity)
    torch.cuda = stubs.module("torch.cuda", is_available=lambda: True)


def load(which: str) -> ModuleType:
    """Return AReaL's module, or ours."""
    stub_torch()
    if which == "ours":
        from rl_insight.compat import areal

        return areal
    for name in ("areal", "areal.utils", "areal.api"):
        stubs.package(name)
    stubs.module("areal.api.cli_args", PerfTracerConfig=PerfTracerConfig, SessionTracerConfig=SessionTracerConfig)
    return stubs.load("areal.utils.perf_tracer")


def say(**found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
