"""Reading runs from Python: through a server and from files, with the same results."""

import json
import math
import subprocess
import sys

import pytest

import rl_insight as insight
from rl_insight.config.paths import Server, find_local_server
from rl_insight.errors import ConfigError, InsightError
from rl_insight.questions import QUESTIONS
from rl_insight.reader import pages
from rl_insight.reader.opening import NoSuchRunError, open_source
from rl_insight.reader.places import find_place
from rl_insight.store.errors import RunNotFoundError
from tests.reader.recorded import SESSIONS, STEPS

EXAMPLES = {
    "hotspots": {"group_by": "name_role"},
    "metrics/labels": {"label": "role"},
    "metrics/range": {
        "metric": "reward",
        "start_ns": 0,
        "end_ns": 2**62 - 1,
        "width": 1,
        "axis": "step",
        "smoothing": 0.5,
    },
    "lanes/idle": {"start_ns": 1, "end_ns": 2**62 - 1},
    "metrics/heatmap": {"metric": "nothing", "start_ns": 0, "end_ns": 10, "width": 1},
    "metrics/quantiles": {"metric": "nothing", "start_ns": 0, "end_ns": 10, "width": 1},
    "sessions": {"status": ["failed"], "order": "total_s"},
    "sessions/record": {"session_id": "s1-1"},
    "sessions/transcript": {"session_id": "s1-1"},
    "spans": {"name": "update", "order": "oldest"},
    "spans/series": {"name": "update"},
    "steps/breakdown": {"first": 0, "last": STEPS},
    "steps/changes": {"step": STEPS - 1},
    "steps/compare": {"step": STEPS - 1},
    "steps/idle": {"first": 0, "last": STEPS},
    "steps/metrics": {"first": 0, "last": STEPS},
    "steps/ranks": {"first": 0, "last": STEPS},
}
PASSING = {"processes": ("silent_s", "state"), "open/work": ("oldest_age_s",), "sessions/in_flight": ("age_s",)}
"""Fields that depend on when they are asked for."""


@pytest.mark.parametrize("question", sorted(QUESTIONS))
def test_a_file_answers_as_the_server_does(question, served, files):
    answers = []
    for directory in (served, files):
        source = open_source(find_place(data_dir=directory), "grpo-7b-a")
        try:
            given = EXAMPLES.get(question, {})
            if question == "span":
                given = {"span_id": source.ask("spans", name="update", limit=1)[0]["span_id"]}
            if question == "timeline":
                run = source.ask("summary")
                given = {"start_ns": run["start_ns"], "end_ns": run["end_ns"], "lane": [1], "steps": True}
            answer = source.ask(question, **given)
        finally:
            source.close()
        for row in answer if question in PASSING else ():
            for name in PASSING[question]:
                row.pop(name)
        answers.append(answer)
    assert answers[0] == answers[1]
    if question not in {
        "losses",
        "metrics/quantiles",
        "open/work",
        "open/spans",
        "sessions/in_flight",
        "findings",
        "hardware/by_state",
        "stacks",
    }:
        assert answers[0]


def test_runs_are_listed_the_one_that_began_last_first(place):
    found = insight.runs(data_dir=place)
    assert [row["run_id"] for row in found] == ["grpo-7b-b", "grpo-7b-a", "ppo-1"]
    assert found[0]["experiment_name"] == "grpo-7b"


@pytest.mark.parametrize(
    ("name", "run_id"),
    [(None, "grpo-7b-b"), ("grpo-7b", "grpo-7b-b"), ("grpo-7b-a", "grpo-7b-a"), ("pp", "ppo-1"), ("ppo", "ppo-1")],
)
def test_a_run_goes_by_id_prefix_and_experiment(place, name, run_id):
    with insight.open_run(name, data_dir=place) as run:
        assert run.run_id == run_id == run.summary()["run_id"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("grp", "'grp' is a prefix of 2 runs: grpo-7b-b, grpo-7b-a. Type more of the id."),
        ("gprpo-7b-a", "Did you mean 'grpo-7b-a'?"),
        ("xyz", "`rl-insight runs list` shows the runs."),
        ("", "there is no run ''"),
    ],
)
def test_a_name_that_means_no_run_says_why(place, name, said):
    with pytest.raises(NoSuchRunError) as caught:
        insight.open_run(name, data_dir=place)
    assert said in str(caught.value)
    assert str(place) in str(caught.value) or "http://" in str(caught.value) or "Type more" in said


def test_a_run_opens_by_the_address_of_its_page(server_url):
    with insight.open_run(f"{server_url}/?run=grpo-7b-a") as run:
        assert run.run_id == "grpo-7b-a"
        assert server_url in repr(run)
    with insight.open_run(server_url) as run:
        assert run.run_id == "grpo-7b-b"


def test_the_environment_names_the_server(server_url, monkeypatch):
    monkeypatch.setenv("RL_INSIGHT_SERVER_URL", server_url + "/")
    assert len(insight.runs()) == 3
    with insight.open_run("ppo") as run:
        assert run.run_id == "ppo-1"


def test_a_configuration_file_names_the_server_as_it_does_for_training(tmp_path, monkeypatch):
    file = tmp_path / "insight.yaml"
    file.write_text("server:\n  url: http://node7:18080\n  token: fromfile\n")
    monkeypatch.setenv("RL_INSIGHT_CONFIG", str(file))
    assert find_place() == Server("http://node7:18080", "fromfile")
    assert find_place(data_dir=tmp_path) == tmp_path
    assert find_place("http://elsewhere:1") == Server("http://elsewhere:1")
    monkeypatch.setenv("RL_INSIGHT_SERVER_URL", "http://node8:18080/")
    assert find_place() == Server("http://node8:18080", "fromfile")


def test_a_server_that_is_down_is_one_sentence(monkeypatch):
    monkeypatch.setenv("RL_INSIGHT_SERVER_URL", "http://127.0.0.1:9")
    with pytest.raises(InsightError, match=r"http://127\.0\.0\.1:9 does not answer"):
        insight.runs()


def test_rows_are_read_lazily_filtered_and_limited(place):
    with insight.open_run("grpo-7b-a", data_dir=place) as run:
        updates = run.spans(name="update")
        assert repr(updates) == "<spans of grpo-7b-a where name='update', order='oldest'>"
        assert [row["step"] for row in updates] == list(range(STEPS))
        assert [row["step"] for row in updates.where(step=3)] == [3]
        assert [row["step"] for row in updates.where(order="newest").head(2)] == [STEPS - 1, STEPS - 2]
        longest = run.spans(order="longest").head(3).to_dicts()
        assert [row["duration_ns"] for row in longest] == sorted((row["duration_ns"] for row in longest), reverse=True)
        assert len(run.sessions().to_dicts()) == STEPS * SESSIONS
        assert {row["session_id"] for row in run.sessions(status="failed", step=2)} == {"s2-0"}
        assert run.sessions().head(5).where(descending=True).first()["step"] == STEPS - 1
        assert [row["step"] for row in run.steps()] == list(range(STEPS))
        assert [row["step"] for row in run.steps(last=3).head(2)] == [2, 3]
        assert [row["message"] for row in run.logs(level=30, step=4)] == ["step 4 is slow"]
        assert len(list(run.events(text="checkpoint"))) == STEPS
        assert {row["name"] for row in run.metrics()} >= {"reward", "entropy", "samples"}
        assert run.metric("reward").to_columns()["value"] == [step / 10 for step in range(STEPS)]
        assert {row["name"] for row in run.breakdown(first=1, last=2)} >= {"rollout", "update", "idle"}
        assert {row["role"] for row in run.processes()} == {"trainer"}
        assert isinstance(run.findings().to_dicts(), list)
        assert {row["name"] for row in run.hardware()} >= {"rollout", "update"}
        by_time = run.metric("reward", by="time", points=10).to_dicts()
        assert by_time
        assert all(math.isfinite(row["value"]) for row in by_time)
        assert run.sql("SELECT count(*) AS n FROM spans WHERE name = 'update'").to_dicts() == [{"n": STEPS}]


def test_a_metric_goes_by_the_name_under_which_it_was_recorded(place):
    with insight.open_run("grpo-7b-a", data_dir=place) as run:
        assert run.metric("actor/loss").to_columns()["value"] == [step / 100 for step in range(STEPS)]
        with pytest.raises(ConfigError, match="grpo-7b-a has no metric 'rewards': did you mean 'reward'"):
            run.metric("rewards").to_dicts()
        with pytest.raises(ConfigError, match=r"no metric 'zzz': metrics\(\) lists"):
            run.metric("zzz").to_dicts()


def test_a_histogram_is_read_as_quantiles(place):
    with insight.open_run("grpo-7b-a", data_dir=place) as run:
        rows = run.metric("length").to_dicts()
        assert {row["quantile"] for row in rows} == {"0.5", "0.95", "0.99"}
        medians = [row["value"] for row in rows if row["quantile"] == "0.5"]
        assert medians == pytest.approx([10.0 * (step + 1) for step in range(STEPS)], rel=0.022)
        with pytest.raises(ConfigError, match="'length' is a histogram"):
            run.metric("length", aggregation="sum").to_dicts()


def test_what_cannot_be_asked_is_said_before_anything_is_read(place):
    with insight.open_run("grpo-7b-a", data_dir=place) as run:
        with pytest.raises(
            ConfigError, match=r"spans of grpo-7b-a have no condition 'nmae': the conditions are .*name"
        ):
            run.spans().where(nmae="x")
        with pytest.raises(ConfigError, match="at least 1"):
            run.logs().head(0)
        with pytest.raises(InsightError, match=r"use head\(n\)"):
            list(run.spans(order="longest"))
        with pytest.raises(InsightError, match="SELECT"):
            list(run.sql("DELETE FROM spans"))
        with pytest.raises(InsightError):
            list(run.sessions(order="nothing"))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_pages_give_every_row_once(place, monkeypatch, size):
    with insight.open_run("grpo-7b-a", data_dir=place) as run:
        everything = {row["span_id"] for row in run.spans()}
        monkeypatch.setattr(pages, "PAGE", 10 + size)
        monkeypatch.setattr(pages, "_STEPS_PAGE", size)
        assert sorted(row["span_id"] for row in run.spans()) == sorted(everything)
        assert sorted(row["span_id"] for row in run.spans(order="newest")) == sorted(everything)
        assert len(run.spans().head(25).to_dicts()) == 25
        assert len(run.sessions().to_dicts()) == STEPS * SESSIONS
        assert [row["step"] for row in run.steps()] == list(range(STEPS))


def test_more_rows_with_one_time_than_a_page_holds_are_an_error(place, monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 1)
    with (
        insight.open_run("grpo-7b-a", data_dir=place) as run,
        pytest.raises(InsightError, match="add conditions, or export"),
    ):
        list(run.spans())


def test_arrow_keeps_integers_and_objects(place):
    with insight.open_run("grpo-7b-a", data_dir=place) as run:
        table = run.spans().to_arrow()
    assert str(table.schema.field("start_ns").type) == "int64"
    attributes = dict(zip(table["name"].to_pylist(), table["attributes"].to_pylist(), strict=True))
    assert json.loads(attributes["update_critic"]) == {"nested": {"a": [1, 2]}}


def test_pandas_keeps_integers_where_some_are_missing(place):
    pandas = pytest.importorskip("pandas")
    with insight.open_run("grpo-7b-a", data_dir=place) as run:
        frame = run.spans().to_pandas()
    assert frame["start_ns"].dtype == "int64"
    assert str(frame["step"].dtype) == "Int64"  # update_critic has none
    assert pandas.to_datetime(frame["start_ns"], unit="ns").dt.year.min() >= 2020


def test_polars_frames_have_the_rows(place):
    polars = pytest.importorskip("polars")
    with insight.open_run("grpo-7b-a", data_dir=place) as run:
        frame = run.spans(name="update").to_polars()
    assert frame["step"].to_list() == list(range(STEPS))
    assert frame.schema["start_ns"] == polars.Int64


def test_without_a_library_the_error_names_it(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with insight.open_run("ppo", data_dir=place) as run, pytest.raises(InsightError, match="polars is not installed"):
        run.spans().to_polars()


def test_a_mistyped_file_is_an_error_and_creates_nothing(tmp_path):
    with pytest.raises(RunNotFoundError, match="none was created"):
        insight.open_run(tmp_path / "typo.duckdb")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_opened_for_reading_only_by_several_at_once(files):
    path = files / "runs" / "ppo-1.duckdb"
    before = path.read_bytes()
    code = f"import rl_insight; print(rl_insight.open_run({str(path)!r}).summary()['spans'])"
    with insight.open_run(path) as run:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        assert int(done.stdout) == run.summary()["spans"]
    assert path.read_bytes() == before


def test_reading_through_a_server_needs_neither_duckdb_nor_pyarrow(server_url):
    code = (
        "import sys\n"
        "for name in ('duckdb', 'pyarrow', 'numpy', 'fastapi', 'typer', 'rich'): sys.modules[name] = None\n"
        "import rl_insight as insight\n"
        f"run = insight.open_run('grpo-7b', server={server_url!r})\n"
        "print(len(run.spans(name='update').to_dicts()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == str(STEPS), done.stderr


def test_a_local_server_lends_its_token_to_its_own_address_alone(served, monkeypatch):
    local = find_local_server(served)
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(served))
    assert find_place(local.url) == Server(local.url, local.token)
    assert find_place("http://elsewhere:1") == Server("http://elsewhere:1")
    assert find_place("http://elsewhere:1", "t" * 16) == Server("http://elsewhere:1", "t" * 16)


def test_a_run_that_is_being_read_is_never_taken_for_damaged(files):
    with insight.open_run("ppo", data_dir=files):
        assert {row["run_id"] for row in insight.runs(data_dir=files)} == {"grpo-7b-b", "grpo-7b-a", "ppo-1"}
    assert not list((files / "runs").glob("*corrupt*"))
    assert not next(row for row in insight.runs(data_dir=files) if row["run_id"] == "ppo-1")["problem"]


def test_a_file_is_opened_twice_and_still_listed(files):
    path = files / "runs" / "ppo-1.duckdb"
    (files / "runs" / ".index.json").unlink(missing_ok=True)
    with insight.open_run(path) as one, insight.open_run(path) as other:
        assert one.spans().first() == other.spans().first()
        assert {row["run_id"] for row in insight.runs(data_dir=files)} >= {"ppo-1"}
    assert path.is_file()
