import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

KEPT = """
    NAME = "kept"

    def run(options):
        yield Figure("latency", 1.5, "ms", budget=2)
        yield Figure("rate", 60.0, "/s", budget=50, at_least=True)
        yield Figure("peer", 9.0, "ms")
"""
MISSED = """
    NAME = "missed"

    def run(options):
        yield Figure("latency", 2.5, "ms", budget=2)
"""
QUICK = """
    NAME = "tiny"

    def run(options):
        yield Figure("rounds", options.minutes or (1 if options.quick else 100), "rounds")
"""
FAILING = """
    NAME = "failing"

    def run(options):
        yield Figure("first", 1, "ms", budget=2)
        raise ValueError("the second figure went wrong")
"""
SKIPPED = """
    NAME = "skipped"

    def run(options):
        raise SkipBenchmark("There is no accelerator.")
        yield
"""
NOISY = """
    NAME = "noisy"

    def run(options):
        print("a library says hello")
        yield Figure("latency", 1, "ms")
"""
DYING = """
    import os
    NAME = "dying"

    def run(options):
        yield Figure("latency", 1, "ms")
        os._exit(7)
"""
HELPER = """
    raise RuntimeError("a helper is not imported by discovery")
"""


@pytest.fixture
def run_main(capfd):
    """Run the command on a package; returns the exit status, the parsed stdout lines and stderr."""
    from benchmarks.__main__ import main

    def run(package, *arguments):
        status = main(arguments, package)
        captured = capfd.readouterr()
        return status, [json.loads(line) for line in captured.out.splitlines()], captured.err

    return run


def test_each_figure_is_one_json_line(make_package, run_main):
    status, lines, _ = run_main(make_package(kept=KEPT))
    assert status == 0
    assert lines == [
        {"benchmark": "kept", "metric": "latency", "value": 1.5, "unit": "ms", "budget": "<= 2", "ok": True},
        {"benchmark": "kept", "metric": "rate", "value": 60.0, "unit": "/s", "budget": ">= 50", "ok": True},
        {"benchmark": "kept", "metric": "peer", "value": 9.0, "unit": "ms", "budget": None, "ok": True},
    ]


def test_missed_budget_fails_the_command_and_is_in_the_table(make_package, run_main):
    status, lines, table = run_main(make_package(kept=KEPT, missed=MISSED))
    assert status == 1
    assert [line["ok"] for line in lines] == [True, True, True, False]
    assert "missed" in table
    assert "<= 2" in table


def test_only_named_benchmarks_run(make_package, run_main):
    status, lines, _ = run_main(make_package(kept=KEPT, missed=MISSED), "kept")
    assert status == 0
    assert {line["benchmark"] for line in lines} == {"kept"}


def test_all_run_without_names_in_order(make_package, run_main):
    _, lines, _ = run_main(make_package(tiny=QUICK, kept=KEPT, missed=MISSED))
    assert [line["benchmark"] for line in lines] == ["kept", "kept", "kept", "missed", "tiny"]


def test_unknown_name_is_wrong_use_and_names_the_known(make_package, run_main):
    status, lines, message = run_main(make_package(kept=KEPT, tiny=QUICK), "kept", "kepd")
    assert status == 2
    assert lines == []
    assert message == "unknown benchmark kepd. Choose from: kept, tiny.\n"


@pytest.mark.parametrize(("arguments", "rounds"), [((), 100), (("--quick",), 1), (("--minutes", "30"), 30)])
def test_options_reach_the_benchmark(make_package, run_main, arguments, rounds):
    _, lines, _ = run_main(make_package(tiny=QUICK), "tiny", *arguments)
    assert [line["value"] for line in lines] == [rounds]


def test_failing_benchmark_keeps_its_figures_and_the_others_run(make_package, run_main):
    status, lines, message = run_main(make_package(failing=FAILING, tiny=QUICK))
    assert status == 1
    assert [line["metric"] for line in lines] == ["first", "rounds"]
    assert "failing: failed." in message
    assert "the second figure went wrong" in message


def test_benchmarks_of_recording_run_to_their_end(run_main):
    names = ["adapters", "otlp", "producer", "sessions"]
    _, lines, messages = run_main("benchmarks", *names, "--quick")
    assert sorted({line["benchmark"] for line in lines}) == names
    assert "failed." not in messages


def test_benchmark_whose_process_dies_fails_the_command(make_package, run_main):
    status, lines, message = run_main(make_package(dying=DYING))
    assert status == 1
    assert [line["metric"] for line in lines] == ["latency"]
    assert "the process ended with status 7" in message


def test_benchmark_that_cannot_run_is_skipped_with_its_reason(make_package, run_main):
    status, lines, message = run_main(make_package(skipped=SKIPPED, tiny=QUICK))
    assert status == 0
    assert [line["benchmark"] for line in lines] == ["tiny"]
    assert "skipped: skipped. There is no accelerator." in message


def test_what_a_benchmark_prints_stays_out_of_stdout(make_package, run_main):
    _, lines, message = run_main(make_package(noisy=NOISY))
    assert [line["benchmark"] for line in lines] == ["noisy"]
    assert "a library says hello" in message


def test_json_file_holds_the_same_lines(make_package, run_main, tmp_path):
    path = tmp_path / "figures.jsonl"
    _, lines, _ = run_main(make_package(kept=KEPT, tiny=QUICK), "--json", str(path))
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines


def test_modules_without_a_name_are_helpers_and_stay_unloaded(make_package):
    from benchmarks.harness import discover

    package = make_package(helper=HELPER, kept=KEPT)
    assert discover(package) == {"kept": f"{package}.kept"}


def test_the_project_has_its_benchmarks():
    from benchmarks.harness import discover

    found = discover()
    assert {"producer", "ray_hub"} <= set(found)
    assert "harness" not in found


def test_calls_are_measured_in_turns_of_equal_length():
    from benchmarks.harness import measure_calls

    turns = []

    def quick(calls):
        turns.append(("quick", calls))
        sum(range(calls))

    def slow(calls):
        turns.append(("slow", calls))
        for _ in range(calls):
            sum(range(2_000))

    costs = measure_calls({"quick": quick, "slow": slow}, rounds=3, between=lambda: turns.append("between"))
    measured = turns[-12:]
    assert measured == [measured[0], "between", measured[2], "between"] * 3
    assert [name for name, _ in (measured[0], measured[2])] == ["quick", "slow"]
    assert measured[0][1] > measured[2][1]
    assert costs["slow"] > costs["quick"] > 0


def test_command_runs_from_the_root():
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks", "no-such-benchmark"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 2
    assert "unknown benchmark no-such-benchmark. Choose from: " in finished.stderr
