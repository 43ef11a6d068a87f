"""`rl-insight top`: one frame, and live in a pseudo-terminal."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import pytest

from rl_insight.cli import main
from rl_insight.cli.frame import VIEWS, sparkline
from tests.reader.crowd import IDLE_GPU, SILENT_RANK, SLOW_RANK

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program in a pseudo-terminal of 80 by 24."""

    def __init__(self, *words):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        environment = {name: text for name, text in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        # Ctrl+C is a signal only to programs whose controlling terminal this is.
        self.program = subprocess.Popen(
            [sys.executable, "-m", "rl_insight.cli", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            preexec_fn=lambda: (os.setsid(), fcntl.ioctl(slave, termios.TIOCSCTTY, 0)),  # noqa: PLW1509
        )
        self.raw = ""

    def wait_for(self, text, timeout_s=40.0):
        until = time.monotonic() + timeout_s
        seen = ""
        while text not in ESCAPE.sub("", seen):
            ready, _, _ = select.select([self._master], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"{text!r} did not appear: {seen!r}"
            seen += os.read(self._master, 65_536).decode("utf-8", "replace")
        self.raw += seen
        return ESCAPE.sub("", seen)

    def press(self, key):
        os.write(self._master, key.encode())

    def close(self):
        if self.program.poll() is None:
            self.program.kill()
        self.program.wait(10)
        os.close(self._master)
        os.close(self.slave)


@pytest.fixture
def terminal():
    opened = []

    def start(*words):
        opened.append(Terminal(*words))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.parametrize("view", VIEWS)
def test_one_frame_fits_80_by_24(place, view, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    assert main(["top", "grpo-7b", "--once", "--view", view, "--data-dir", str(place)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert "grpo-7b-b" in lines[0]
    assert "q quit" in lines[-1]
    text = "\n".join(lines)
    if view == "overview":
        assert re.search(r"step time +\d", text)
        assert re.search(r"reward +0\.\d+ +[▁▂▃▄▅▆▇█]+", text)
        assert "rollout" in text


def test_keys_change_view_and_run_and_the_terminal_is_restored(place, terminal):
    shown = terminal("top", "grpo-7b", "--interval", "0.2", "--data-dir", str(place))
    shown.wait_for("step time")
    shown.press("4")
    shown.wait_for("1 processes")
    shown.press("n")
    shown.wait_for("grpo-7b-a")
    shown.press("p")
    shown.wait_for("grpo-7b-b")
    shown.press("q")
    shown.wait_for("")
    assert shown.program.wait(20) == 0
    assert "\x1b[?1049h" in shown.raw
    assert termios.tcgetattr(shown.slave)[3] == shown.before[3]


def test_ctrl_c_ends_it(place, terminal):
    shown = terminal("top", "--data-dir", str(place))
    shown.wait_for("q quit")
    shown.press("\x03")
    assert shown.program.wait(20) in {0, 130}
    assert termios.tcgetattr(shown.slave)[3] == shown.before[3]


def test_an_unknown_view_is_a_usage_error(capsys):
    assert main(["top", "--view", "nothing"]) == 2
    assert "it must be one of overview" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["files", "server"])
def test_a_thousand_processes_in_a_terminal(kind, request, terminal):
    crowd = request.getfixturevalue("crowd_files" if kind == "files" else "crowd_served")
    shown = terminal("top", "crowd", "--interval", "0.2", "-m", "critic/rewards/mean", "--data-dir", str(crowd))
    text = shown.wait_for("q quit", 90.0)
    assert re.search(r"critic/rewards/mean +0\.\d+ +[▁▂▃▄▅▆▇█]+", text)
    assert re.search(rf"slowest +update_actor: trainer {SLOW_RANK} 9\.00 s", text)
    assert re.search(rf"GPUs +1,000, 90% busy; least: node{IDLE_GPU // 8} · GPU {IDLE_GPU % 8} 2%", text)
    assert "999 live, 1 silent" in text
    for key, view, first in (
        ("4", "processes", rf"silent +trainer +rank {SILENT_RANK} "),
        ("5", "ranks", rf"trainer {SLOW_RANK} +node97 +9\.00 s +2\.57x"),
        ("6", "gpus", rf"node{IDLE_GPU // 8} · GPU {IDLE_GPU % 8} +2%"),
        ("3", "findings", "findings"),
        ("2", "sessions", "0 sessions in flight"),
    ):
        shown.press(key)
        text = shown.wait_for(f" {view}  |  1-6 view", 90.0)
        assert re.search(first, text), text
        assert max(len(line.rstrip("\r")) for line in text.split("\n")) <= 80
    shown.press("q")
    assert shown.program.wait(20) == 0


@pytest.mark.parametrize("words", [["diagnose"], ["top", "--once"], ["hotspots", "--scope", "all"]])
def test_a_command_that_takes_a_while_says_what_it_does(crowd_files, terminal, words):
    shown = terminal(*words, "--data-dir", str(crowd_files))
    shown.wait_for({"diagnose": "diagnosing", "top": "querying the run", "hotspots": "querying hotspots"}[words[0]])
    shown.wait_for({"diagnose": "evaluated", "top": "q quit", "hotspots": "update_actor"}[words[0]])
    assert shown.program.wait(20) == 0


def frame(directory, view, capsys):
    assert main(["top", "small-1", "--once", "--view", view, "--data-dir", str(directory)]) == 0
    return capsys.readouterr().out


def busy(value, at, host, gpu):
    return "gpu_utilization_ratio", value, at, {"host": host, "gpu": gpu}


def test_gpus_of_a_run_without_steps_are_counted_one_by_one(write_run, capsys):
    readings = [("a", "0", 0.2), ("a", "1", 0.4), ("b", "0", 0.6), ("b", "1", 0.8)]
    samples = [busy(1.0, 40, host, gpu) for host, gpu, _ in readings]
    samples += [busy(value, 100, host, gpu) for host, gpu, value in readings]
    directory = write_run(samples)
    assert "GPUs       4, 50% busy; least: a · GPU 0 20%" in frame(directory, "overview", capsys)
    text = frame(directory, "gpus", capsys)
    rows = re.findall(r"(\w) · GPU (\d) +(\d+)%  ([▁▂▃▄▅▆▇█]+)", text)
    assert [row[:3] for row in rows] == [("a", "0", "20"), ("a", "1", "40"), ("b", "0", "60"), ("b", "1", "80")]
    assert {row[3][0] for row in rows} == {"█"}


def test_a_dead_gpu_is_shown_apart_and_not_in_the_mean(write_run, capsys):
    spans = [(0, step, step * 50, step * 50 + 50) for step in range(2)]
    samples = [busy(0.0, 10, "a", "0"), busy(0.5, 90, "a", "1"), busy(0.9, 95, "a", "2")]
    directory = write_run(samples, spans)
    assert "GPUs       3, 70% busy, 1 silent; least: a · GPU 1 50%" in frame(directory, "overview", capsys)
    text = frame(directory, "gpus", capsys)
    assert re.search(r"a · GPU 0 +0%  silent for 1 min 30 s\n +a · GPU 1 +50%", text), text


def test_gpus_of_a_scraped_exporter_are_on_the_same_scale(write_run, capsys):
    labels = {"Hostname": "a", "gpu": "0"}
    samples = [("DCGM_FI_DEV_GPU_UTIL", value, at, labels) for at, value in ((70, 100.0), (100, 30.0))]
    directory = write_run(samples)
    assert "GPUs       1, 30% busy; least: a · GPU 0 30%" in frame(directory, "overview", capsys)


def test_the_reward_of_the_run_comes_before_its_parts(write_run, capsys):
    samples = [(name, 0.5, at, {}) for at in (5, 25, 45) for name in ("reward_by_task", "reward_mean", "queue_depth")]
    directory = write_run(samples, spans=[(0, step, step * 20, step * 20 + 20) for step in range(3)])
    text = frame(directory, "overview", capsys)
    assert re.findall(r"reward_mean|reward_by_task|queue_depth", text) == [
        "reward_mean",
        "reward_by_task",
        "queue_depth",
    ]


def test_the_median_of_two_ranks_is_between_them(write_run, capsys):
    directory = write_run(
        spans=[(rank, step, step * 20, step * 20 + 4 + 8 * rank) for rank in (0, 1) for step in (0, 1)]
    )
    assert "update: trainer 1 12.0 s, trainer 0 4.00 s; median of 2 8.00 s" in frame(directory, "overview", capsys)
    text = frame(directory, "ranks", capsys)
    assert re.search(r"slowest of 2 first; median 8\.00 s", text)
    assert re.search(r"trainer 1 +h +12\.0 s +1\.50x", text)


def test_sparklines_leave_out_what_is_not_a_number():
    assert sparkline([0.0, float("nan"), 1.0], 5) == "▁█"
