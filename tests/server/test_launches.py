"""Launches with the same name on several nodes: the server distinguishes them by their ranks."""

import pytest

from rl_insight.config import load_config
from rl_insight.server.launches import Launches
from rl_insight.startup import new_run_id

NODES = {
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}


@pytest.fixture
def launches(services):
    now = [0.0]
    made = Launches(services.runs, clock=lambda: now[0])
    made.advance = lambda seconds: now.__setitem__(0, now[0] + seconds)
    return made


def test_ranks_of_one_launch_share_a_run_and_the_next_launch_has_another(launches):
    assert [launches.join("r", rank, 0) for rank in range(4)] == ["r"] * 4
    assert [launches.join("r", rank, 0) for rank in (2, 0, 3, 1)] == ["r-2"] * 4
    assert launches.join("other", 0, 0) == "other"


def test_workers_that_torchrun_restarts_stay_in_their_run(launches):
    for restarts in range(3):
        assert [launches.join("r", rank, restarts) for rank in range(2)] == ["r"] * 2
    assert launches.join("r", 0, 0) == "r-2"


def test_a_larger_launch_does_not_join_a_run_that_has_ended(launches):
    assert launches.join("r", 0, 0) == "r"
    launches.advance(3600.0)
    assert launches.join("r", 7, 0) == "r-2"
    launches.advance(10.0)
    assert launches.join("r", 0, 0) == "r-2"


@pytest.mark.parametrize(("final", "expected"), [(False, "r"), (True, "r-2")])
def test_a_server_that_was_restarted_goes_by_the_runs_it_has(services, client, make_batch, frames, final, expected):
    batch = make_batch(run_id="r")
    batch.final = final
    headers = {"content-type": "application/vnd.rl-insight.frames"}
    assert client.post("/api/v1/ingest", content=frames(batch), headers=headers).is_success
    assert Launches(services.runs).join("r", 0, 0) == expected


def test_ranks_do_not_wait_until_every_run_was_read(services, launches, monkeypatch, make_batch):
    with services.runs.open("r", create=True) as store:
        store.commit([make_batch(run_id="r")])
    monkeypatch.setattr(services.runs, "list_runs", lambda: pytest.fail("all runs were read"))
    assert launches.join("r", 0, 0) == "r"
    assert launches.join("r", 0, 0) == "r-2"
    launches.advance(3600.0)
    assert launches.join("r", 7, 0) == "r-3"


def test_the_route_checks_what_it_is_asked(client):
    assert client.post("/api/v1/runs/join", json={"run_id": "r", "rank": 1}).json() == {"run_id": "r"}
    for bad in (
        {"run_id": "", "rank": 1},
        {"run_id": "r", "rank": -1},
        {"run_id": "r"},
        {"run_id": "r", "rank": 0, "x": 1},
    ):
        assert client.post("/api/v1/runs/join", json=bad).status_code == 422


def test_processes_ask_the_server_and_manage_without_one(start_server):
    server = start_server()
    config = load_config({"project": "p", "experiment_name": "e", "server": {"url": server.url}}, environ={})
    ids = [new_run_id(config, {**NODES, "RANK": str(rank)}) for rank in (0, 2, 0, 2)]
    assert ids[0] == ids[1]
    assert ids[2:] == [f"{ids[0]}-2"] * 2
    away = load_config({"project": "p", "experiment_name": "e", "server": {"url": "http://127.0.0.1:9"}}, environ={})
    assert new_run_id(away, {**NODES, "RANK": "0"}) == ids[0]
