"""docs/read-a-run.md: its blocks run, in order, on a live run; its table is complete."""

import inspect
import re
from types import SimpleNamespace

import pytest

from rl_insight.questions import QUESTIONS
from rl_insight.reader import Run
from tests.api.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "read-a-run.md"


def test_the_example_runs(served, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(served))
    namespace = {"__name__": "__main__"}
    for source in blocks(PAGE, ["no-run"]):
        exec(compile(source, str(PAGE), "exec"), namespace)
    assert namespace["failed"]
    assert namespace["reward"]["value"]
    assert len(namespace["longest"]) == 5
    assert list(namespace["by_status"]["n"]) == [18, 6]


def test_every_method_and_its_conditions_are_documented():
    rows = {}
    for line in PAGE.read_text().splitlines():
        for name in re.findall(r"`(\w+)\(\w*\)`", line.split("|")[1]) if line.startswith("| `") else ():
            rows[name] = line
    for name, method in inspect.getmembers(Run, inspect.isfunction):
        if name.startswith("_") or name in {"close", "summary"}:
            continue
        assert name in rows, name
        words = set(inspect.signature(method).parameters) - {"self", "conditions", "timeout_s", "max_rows"}
        for word in words - {"name" if name == "metric" else "", "text" if name == "sql" else "", "question"}:
            assert f"`{word}`" in rows[name], (name, word)


@pytest.mark.parametrize("name", ["spans", "sessions", "hotspots", "logs", "events", "findings"])
def test_methods_take_all_conditions_of_their_question(name):
    rows = getattr(Run(SimpleNamespace(run_id="r")), name)()
    paging = {"limit", "offset", "newest_first"}
    assert rows._allowed == QUESTIONS[name].conditions.keys() - paging
    documented = next(line for line in PAGE.read_text().splitlines() if re.match(rf"\| .*`{name}\(\)`", line))
    for condition in rows._allowed - {"level", "role", "rank"}:
        assert f"`{condition}`" in documented, condition
