"""`update_prometheus_config` from a training process: both forms, off the caller's thread, never an I/O error."""

import json

import msgspec
import pytest

import rl_insight.targets as subject
from rl_insight.http_client import Reply
from rl_insight.targets import update_prometheus_config


@pytest.fixture(autouse=True)
def no_server_here(monkeypatch, tmp_path):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path / "nothing"))
    for name in ("RL_INSIGHT_SERVER_URL", "RL_INSIGHT_TOKEN", "RL_INSIGHT_CONFIG", "RL_INSIGHT_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("RL_INSIGHT_INHERIT", raising=False)
    monkeypatch.setattr(subject, "_INIT_WAIT_S", 0.0)


@pytest.fixture
def sent(monkeypatch):
    """Captures the requests instead of sending them."""
    posts = []

    def post(method, url, body, *, headers, token, trust):
        assert (method, headers) == ("POST", {"Content-Type": "application/json"})
        posts.append((url.removesuffix("/api/v1/targets"), token, msgspec.json.decode(body)))
        return Reply(200, b"", {})

    monkeypatch.setattr(subject, "request", post)
    return posts


CONFIG = {"server": {"url": "http://node:1", "token": "secret"}, "run_id": "r1", "project": "p", "experiment_name": "e"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (([["a:1", "b:2"], "vllm", {"rank": 0}]), {"config": CONFIG}),
        (([["a:1", "b:2"]]), {"job_name": "vllm", "labels": {"rank": 0}, "config": CONFIG}),
        (([CONFIG, ["a:1", "b:2"], "vllm", {"rank": 0}]), {}),
        (([CONFIG]), {"server_addresses": ("a:1", "b:2"), "job_name": "vllm", "labels": {"rank": 0}}),
    ],
)
def test_both_forms_register_the_same(sent, arguments, named):
    update_prometheus_config(*arguments, **named).join(5)
    expected = {
        "addresses": ["a:1", "b:2"],
        "job_name": "vllm",
        "labels": {"rank": "0"},
        "run_id": "r1",
        "project": "p",
        "experiment_name": "e",
        "lease_s": 600.0,
    }
    assert sent == [("http://node:1", "secret", expected)]


def test_a_list_of_labels_goes_with_the_addresses(sent):
    update_prometheus_config(["a:1", "b:2"], labels=[{"x": 1}, {"x": 2}], config=CONFIG).join(5)
    assert sent[0][2]["labels"] == [{"x": "1"}, {"x": "2"}]


def test_an_address_without_labels_may_say_none(sent):
    update_prometheus_config(["a:1", "b:2"], "vllm", [{"replica": 0}, None], config=CONFIG).join(5)
    assert sent[0][2]["labels"] == [{"replica": "0"}, {}]


@pytest.mark.parametrize("addresses", [[], (), None])
def test_no_address_is_a_warning(sent, caplog, addresses):
    assert update_prometheus_config(addresses, "vllm") is None
    assert "got no address" in caplog.text
    assert sent == []


def test_engines_that_are_registered_before_init_belong_to_its_run(sent, monkeypatch):
    monkeypatch.setattr(subject, "_INIT_WAIT_S", 10.0)
    config = {"server": CONFIG["server"]}
    registering = update_prometheus_config(["a:1"], "vllm", config=config)
    assert registering.is_alive()
    run = {"run_id": "grpo-1", "project": "math", "experiment_name": "grpo", "role": None}
    monkeypatch.setenv("RL_INSIGHT_INHERIT", json.dumps(run))
    registering.join(10)
    posted = sent[0][2]
    assert (posted["run_id"], posted["project"], posted["experiment_name"]) == ("grpo-1", "math", "grpo")


def test_without_a_run_they_are_registered_after_a_while(sent):
    update_prometheus_config(["a:1"], "vllm", config={"server": CONFIG["server"]}).join(10)
    assert sent[0][2]["run_id"] is None


@pytest.mark.parametrize(
    ("arguments", "named", "error"),
    [
        ((["a:1", "b:2"],), {"labels": [{"x": 1}]}, ValueError),
        (([""],), {}, ValueError),
        (([3],), {}, ValueError),
        (({}, ["a:1"]), {"config": {}}, TypeError),
        ((["a:1"], "job", {}, "more"), {}, TypeError),
        ((["a:1"],), {"server_addresses": ["b:2"]}, TypeError),
        (({"sever": {}}, ["a:1"]), {}, ValueError),
    ],
)
def test_wrong_use_is_a_clear_error(sent, arguments, named, error):
    with pytest.raises(error):
        update_prometheus_config(*arguments, **named)
    assert sent == []


def test_a_server_that_is_down_is_one_line_in_the_log(caplog, monkeypatch):
    monkeypatch.setattr(subject, "_FIRST_PAUSE_S", 0.001)
    update_prometheus_config(["a:1"], config={"server": {"url": "http://127.0.0.1:1"}}).join(10)
    update_prometheus_config("a:1").join(10)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "does not answer" in lines[0]
    assert "no server is known" in lines[1]


def test_the_targets_arrive_at_a_real_server(start_server, monkeypatch):
    import json
    import urllib.request

    server = start_server()
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(server.data_dir))
    update_prometheus_config(["a:1"], "vllm").join(10)
    with urllib.request.urlopen(f"{server.url}/api/v1/targets") as answer:
        assert [target["job_name"] for target in json.load(answer)["targets"]] == ["vllm"]
    assert server.signal() == 0
    again = start_server(data_dir=server.data_dir)
    with urllib.request.urlopen(f"{again.url}/api/v1/targets") as answer:
        assert [target["url"] for target in json.load(answer)["targets"]] == ["http://a:1/metrics"]
