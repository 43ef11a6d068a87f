from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
import time
import warnings

import pytest

import rl_insight as insight
from rl_insight.monitor import Monitor

MEMORY = {"server": {"backend": "memory"}}


def closed_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_second_init_is_ignored_with_a_warning(monitor):
    monitor.init("p", "e", MEMORY, run_id="first")
    with pytest.warns(
        RuntimeWarning,
        match=r"init\(.*\) was ignored: this process is already recording run '.+'\. Call rl_insight\.finish\(\)",
    ):
        monitor.init("q", "f", MEMORY, run_id="second")
    assert monitor.get_status()["run_id"] == "first"


@pytest.mark.parametrize("given", [{"project": "p"}, {"experiment_name": "e"}])
def test_exactly_one_of_project_and_experiment_is_refused(monitor, given):
    with pytest.raises(ValueError, match="needed together"):
        monitor.init(**given, config=MEMORY)
    assert monitor.get_status() == {"recording": False}
    monitor.init("p", "e", MEMORY)
    assert monitor.get_status()["recording"]


def test_identity_goes_with_everything_recorded(monitor):
    monitor.init("math", "grpo", MEMORY, run_id="r1", role="trainer", rank=3, labels={"cluster": "blue"})
    monitor.metric_count("c")
    assert monitor.flush()
    process = monitor._pipeline.transport.batches[-1].process
    assert (process.project, process.experiment_name, process.run_id) == ("math", "grpo", "r1")
    assert (process.role, process.rank, process.labels) == ("trainer", 3, {"cluster": "blue"})


def test_mapping_in_first_place_is_the_configuration(monitor):
    monitor.init({**MEMORY, "project": "p", "experiment_name": "e"})
    assert monitor._pipeline.process.project == "p"


def test_two_configurations_are_refused(monitor):
    with pytest.raises(TypeError, match="two configurations"):
        monitor.init(MEMORY, config=MEMORY)


@dataclasses.dataclass
class Server:
    backend: str = "memory"


@dataclasses.dataclass
class Settings:
    server: Server = dataclasses.field(default_factory=Server)


def yaml_file(tmp_path):
    path = tmp_path / "insight.yaml"
    path.write_text("server:\n  backend: memory\n")
    return path


def omega(_):
    from omegaconf import OmegaConf

    return OmegaConf.create(MEMORY)


@pytest.mark.parametrize(
    "make", [lambda _: MEMORY, lambda _: Settings(), omega, yaml_file, lambda p: str(yaml_file(p))]
)
def test_configuration_comes_in_each_form(monitor, tmp_path, make):
    monitor.init(config=make(tmp_path))
    assert monitor.get_status()["backend"] == "memory"


def test_unknown_backend_lists_the_known_ones(monitor):
    with pytest.raises(ValueError, match=r"'pigeon'.*file.*http.*memory.*none"):
        monitor.init(config={"server": {"backend": "pigeon"}})


def test_unknown_key_names_the_nearest(monitor):
    with pytest.raises(ValueError, match=r"server\.url"):
        monitor.init(config={"server": {"ur": "x"}})


def test_environment_beats_arguments(monitor, monkeypatch):
    monkeypatch.setenv("RL_INSIGHT_RUN_ID", "from-environment")
    monitor.init("p", "e", MEMORY, run_id="argument")
    assert monitor.get_status()["run_id"] == "from-environment"


@pytest.mark.parametrize("how", ["config", "environment"])
def test_disabled_monitor_records_nothing(monitor, monkeypatch, how):
    if how == "environment":
        monkeypatch.setenv("RL_INSIGHT_ENABLED", "0")
    monitor.init(config={**MEMORY, "enabled": how != "config"})
    monitor.metric_count("c")
    assert monitor.get_status() == {"recording": False}


def test_without_a_server_events_wait_on_disk_and_one_line_says_so(monitor, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path))
    monitor.init("p", "e", config={"server": {"backend": "http"}, "http": {"spool_dir": str(tmp_path)}})
    monitor.metric_count("c")
    assert monitor.flush(10) is False
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "rl-insight server start" in caplog.text
    assert "no server is running on this machine" in monitor.get_status()["transport"]["last_error"]
    begun = time.monotonic()
    monitor.finish()
    assert time.monotonic() - begun < 4  # it does not wait out its time for a server that does not run
    assert list(tmp_path.rglob("*.rli"))


def test_training_continues_when_the_server_is_down(monitor, tmp_path, caplog):
    url = f"http://127.0.0.1:{closed_port()}"
    config = {
        "server": {"url": url, "backend": "http"},
        "http": {"spool_dir": str(tmp_path)},
        "recorder": {"finish_timeout_s": 0.2},
    }
    monitor.init("p", "e", config, run_id="away")
    for number in range(100):
        monitor.metric_gauge("reward", number)
        with monitor.trace_state("rollout"), monitor.trace_span("generate"):
            monitor.trace_event("token")
            monitor.log("info", "x")
    assert monitor.flush(0.2) is False
    monitor.finish()
    waiting = list(tmp_path.rglob("*.rli"))
    assert waiting, "what was not delivered waits on disk"
    assert f"run away is incomplete: not everything was delivered in time. {len(waiting)} batches" in caplog.text


def test_transport_that_does_not_start_disables_and_says_why(monitor, monkeypatch, caplog):
    def refuse(*_):
        raise OSError("no sockets left")

    monkeypatch.setattr("rl_insight.startup.create_transport", refuse)
    monitor.init("p", "e", MEMORY)
    monitor.metric_count("c")
    assert "is not recording" in caplog.text
    assert monitor.get_status() == {"recording": False}


def test_finish_delivers_and_turns_every_call_into_a_no_op(monitor):
    monitor.init(config=MEMORY)
    transport = monitor._pipeline.transport
    with monitor.trace_span("before"):
        pass
    monitor.finish()
    monitor.metric_count("after")
    with monitor.trace_span("after") as span:
        span.set_attribute("a", 1)
    monitor.trace_event("after")
    monitor.log("info", "after")
    monitor.set_step(4)
    assert monitor.flush() is False
    batches = transport.batches
    assert sum(len(batch.spans) for batch in batches) == 1
    assert batches[-1].final
    assert "after" not in {text for batch in batches for text in batch.strings}


def test_finish_twice_and_without_init_is_harmless(monitor):
    monitor.finish()
    monitor.init(config=MEMORY)
    monitor.finish()
    monitor.finish()
    monitor.close()


def test_close_is_finish():
    assert Monitor.close is Monitor.finish
    assert insight.close.__func__ is insight.finish.__func__


def test_init_after_finish_starts_a_new_life(monitor):
    monitor.init(config=MEMORY)
    first = monitor.get_status()["process_id"]
    monitor.finish()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.init(config=MEMORY)
    monitor.metric_count("c")
    assert monitor.flush()
    assert monitor.get_status()["process_id"] != first
    assert sum(len(batch.samples) for batch in monitor._pipeline.transport.batches) == 1


def test_span_open_across_finish_ends_quietly(monitor):
    monitor.init(config=MEMORY)
    transport = monitor._pipeline.transport
    with monitor.trace_span("across"):
        monitor.finish()
    from rl_insight.schema.records import records

    spans = [record for batch in transport.batches for record in records(batch)]
    assert [(span.name, span.status) for span in spans] == [("across", "open")]


def test_finish_is_bounded_when_the_flusher_hangs(monitor, caplog):
    import threading

    monitor.init(config={**MEMORY, "recorder": {"finish_timeout_s": 0.1}})
    release = threading.Event()
    monitor._pipeline.flusher._send = lambda *_: release.wait(60)
    monitor.metric_count("c")
    monitor.finish()
    release.set()
    assert "not everything was delivered in time" in caplog.text


def test_status_shows_processes_and_losses(monitor, caplog):
    monitor.init(config=MEMORY, run_id="r")
    monitor.metric_count("c", -1)
    monitor.flush()
    status = monitor.get_status()
    assert (status["recording"], status["run_id"], status["backend"]) == (True, "r", "memory")
    assert status["losses"] == {"metrics/bad_amount": 1}
    assert status["transport"]["backend"] == "memory"


def test_rank_comes_from_the_launcher(monitor, monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monitor.init(config=MEMORY)
    assert monitor._pipeline.process.rank == 5


@pytest.mark.parametrize("rank", ["9" * 30, "9" * 5000, str(2**31)])
def test_rank_that_no_batch_can_carry_is_not_taken_from_the_launcher(monitor, monkeypatch, rank):
    monkeypatch.setenv("RANK", rank)
    monitor.init(config=MEMORY)
    assert monitor._pipeline.process.rank is None


def test_rank_that_no_batch_can_carry_is_refused(monitor):
    with pytest.raises(
        ValueError, match=r"rank cannot be 1208925819614629174706176: it must be from 0 to 2147483647\."
    ):
        monitor.init(config=MEMORY, rank=2**80)


def test_second_init_names_what_it_ignored(monitor):
    monitor.init("p", "e", MEMORY, run_id="first")
    with pytest.warns(RuntimeWarning) as caught:
        monitor.init("q", "f", MEMORY, run_id="second", rank=3)
    assert str(caught[0].message) == (
        "rl_insight.init(project='q', experiment_name='f', run_id='second', rank=3) was ignored: this process is "
        "already recording run 'first'. Call rl_insight.finish() first to start another run, or remove the second call."
    )
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("rank", "announce", "said"), [(None, True, True), (0, True, True), (3, True, False), (None, False, False)]
)
def test_init_prints_the_link_of_the_run_once_per_launch(monitor, capsys, tmp_path, rank, announce, said):
    url = f"http://127.0.0.1:{closed_port()}"
    config = {"server": {"url": url}, "http": {"spool_dir": str(tmp_path)}, "announce": announce}
    config["recorder"] = {"finish_timeout_s": 0}
    monitor.init(config=config, run_id="a b", rank=rank)
    assert monitor.run_url() == f"{url}/?run=a%20b"
    assert (f"RL-Insight: run a b at {url}/?run=a%20b\n" == capsys.readouterr().err) is said
    monitor.finish()
    assert monitor.run_url() is None


def test_one_process_of_a_machine_prints_the_link_of_a_run(monitor, capsys, tmp_path):
    url = f"http://127.0.0.1:{closed_port()}"
    config = {"server": {"url": url}, "http": {"spool_dir": str(tmp_path)}, "recorder": {"finish_timeout_s": 0}}

    others = [Monitor() for _ in range(2)]

    def links(one, role, run_id="r"):
        one.init(config=config, run_id=run_id, role=role, rank=0)
        return capsys.readouterr().err.count("RL-Insight: run")

    try:
        assert links(monitor, "trainer") == 1
        assert links(others[0], "rollout") == 0
        assert links(others[1], "trainer", run_id="another") == 1
        monitor.finish()
        assert links(monitor, "trainer") == 1, "a run that is started again has its link printed again"
    finally:
        for one in others:
            one.finish()


def test_public_names_are_all_that_dir_lists():
    import rl_insight

    assert dir(rl_insight) == sorted(rl_insight.__all__)
    assert all(getattr(rl_insight, name) is not None for name in dir(rl_insight))


def test_import_loads_no_module_that_only_some_programs_need():
    program = "import sys; before = set(sys.modules); import rl_insight; print(*sorted(set(sys.modules) - before))"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"asyncio", "http.client", "ipaddress", "urllib.parse"}.isdisjoint(finished.stdout.split())
