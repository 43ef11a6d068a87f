"""Clients of rl-insight 0.3.0 name no run: each of their experiments is a run, with its spans and metrics."""

import asyncio
import time

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rl_insight.otlp.decode.experiments import NAMELESS, Experiment, ExperimentBook, NamingHost, run_of_day
from rl_insight.server.scrape import client_runs, scraper
from rl_insight.server.scrape._http_get import Page, ScrapeError

SERVICE = "rl_insight_monitor"
GRPO, PPO = Experiment("math", "grpo"), Experiment("physics", "ppo")
BASE = run_of_day(SERVICE)
TARGETS = "/api/v1/prometheus/targets"


def run_of(experiment):
    return run_of_day(SERVICE, experiment)


@pytest.fixture
def send(client):
    """Send spans in one request, as a hub does: each is a name with its attributes."""
    numbers = iter(range(1, 1000))

    def send(*spans, **resource):
        request = ExportTraceServiceRequest()
        entry = request.resource_spans.add()
        for key, value in ({"service.name": SERVICE} | resource).items():
            entry.resource.attributes.add(key=key).value.string_value = value
        scope = entry.scope_spans.add()
        for name, attributes in spans:
            number = next(numbers).to_bytes(8, "big")
            start = time.time_ns()
            span = scope.spans.add(name=name, span_id=number, trace_id=number * 2, start_time_unix_nano=start)
            span.end_time_unix_nano = start + 1000
            for key, value in attributes.items():
                span.attributes.add(key=key).value.string_value = value
        headers = {"Content-Type": "application/x-protobuf"}
        assert client.post("/v1/traces", content=request.SerializeToString(), headers=headers).status_code == 200

    return send


def names(experiment, **more):
    return {"project": experiment.project, "experiment_name": experiment.name, **more}


@pytest.fixture
def runs(client, services, query):
    """Return the names of the spans in each run."""

    def read():
        found = [one["run_id"] for one in client.get("/api/v1/runs").json()]
        return {run: [name for (name,) in query(services, run, "SELECT name FROM spans ORDER BY 1")] for run in found}

    return read


def test_spans_of_two_experiments_in_one_request_are_stored_in_two_runs(send, runs, client, services, query):
    turn = {"monitor.trace_source": "session", "sample": "1", "session": "0", "global_steps": "1"}
    send(("a", names(GRPO)), ("b", names(PPO)), ("c", names(GRPO, **turn)), ("d", names(PPO, **turn)))
    assert runs() == {run_of(GRPO): ["a", "c"], run_of(PPO): ["b", "d"]}
    for one in (GRPO, PPO):
        assert query(services, run_of(one), "SELECT project, experiment_name FROM processes") == [tuple(one)]
        assert query(services, run_of(one), "SELECT count(*) FROM sessions") == [(1,)]


def test_spans_with_some_of_the_names_belong_to_the_experiment_of_their_sender(send, runs):
    """Agent sessions may know only the experiment, and workers nothing."""
    send(("early", {}))
    send(("worker", {}), ("session", {"project": "", "experiment_name": "grpo"}), ("trainer", names(GRPO)))
    send(("worker", {}))
    send(("other", {}), **{"service.name": "other"})
    assert runs() == {
        BASE: ["early"],
        run_of(GRPO): ["session", "trainer", "worker", "worker"],
        run_of_day("other"): ["other"],
    }


def test_the_spans_of_another_program_stay_together_whatever_their_attributes_mean(send, runs):
    send(("a", {"project": "apollo"}), ("b", names(PPO)), ("c", {}), **{"service.name": "my-trainer"})
    send(("d", {}), **{"service.name": "my-trainer"})
    assert runs() == {run_of_day("my-trainer"): ["a", "b", "c", "d"]}


def test_a_run_that_the_resource_names_keeps_all_its_spans(send, runs):
    send(("a", names(GRPO)), ("b", names(PPO)), **{"rl.run.id": "r1"})
    assert runs() == {"r1": ["a", "b"]}


def test_a_resource_may_name_the_experiment(send, runs):
    send(("a", {}), ("b", {"experiment_name": "grpo"}), ("c", names(PPO)), **names(GRPO))
    assert runs() == {run_of(GRPO): ["a", "b"], run_of(PPO): ["c"]}


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a-b", "c"), ("a", "b-c")), (("a.b", "c"), ("a", "b.c")), (("", "a"), ("a", "")), (("a/b", "c"), ("a-b", "c"))],
    ids=str,
)
def test_the_runs_of_different_experiments_differ(one, other):
    assert run_of(Experiment(*one)) != run_of(Experiment(*other))


def test_names_apply_for_as_long_as_their_sender_repeats_them():
    now = [0.0]
    book, sender = ExperimentBook(lambda: now[0]), NamingHost(SERVICE, "n0")
    book.note(sender, GRPO)
    now[0] = 100.0
    assert book.complete(sender, NAMELESS) == book.complete(sender, Experiment("", "grpo")) == GRPO
    assert book.complete(sender, Experiment("", "sft")) == Experiment("", "sft")
    assert book.complete(NamingHost(SERVICE, "n1"), NAMELESS) == NAMELESS
    book.note(sender, GRPO)
    now[0] = 200.0
    assert book.complete(sender, NAMELESS) == GRPO
    assert book.complete(sender, NAMELESS, begun_s=150.0) == NAMELESS
    now[0] = 300.0
    assert book.complete(sender, NAMELESS) == NAMELESS


@pytest.fixture
def pages(monkeypatch):
    """The pages of targets by URL; None for one that does not answer."""
    found = {}

    async def fetch(url, **_options):
        if found.get(url) is None:
            raise ScrapeError("nobody there")
        page = Page(limit=10_000)
        page.body += found[url].encode()
        return page

    monkeypatch.setattr(scraper, "fetch", fetch)
    return found


@pytest.fixture
def clock(monkeypatch, services):
    """The clock that names age by, in seconds."""
    now = [1000.0]
    monkeypatch.setattr(services.scraper._clients._experiments, "clock", lambda: now[0])
    return now


@pytest.fixture
def scrape(client, services, pages):
    """Register a target as a client does, or scrape all of them."""

    def scrape(address="", page=None, **registration):
        if address:
            pages[f"http://{address}/metrics"] = page
            assert client.post(TARGETS, json={"targets": [address], **registration}).status_code == 200
        for target in services.targets.list():
            asyncio.run(services.scraper.scrape(target))

    return scrape


def values_of(services, query, run, name="reward_mean"):
    return query(services, run, f"SELECT value FROM samples WHERE name = '{name}' ORDER BY time_ns")


def page_of(*rewards, more=""):
    lines = [
        f'{SERVICE}_reward_mean{{project="{one.project}",experiment_name="{one.name}"}} {value}\n'
        for one, value in rewards
    ]
    return f"python_info 1\n{''.join(lines)}{more}"


def test_metrics_of_an_experiment_are_stored_with_its_spans(client, services, query, send, scrape):
    send(("a", names(GRPO)), ("b", names(PPO)))
    scrape("n0:1", page_of((GRPO, 0.5)))
    scrape("n0:2", page_of((PPO, 0.25)))
    assert [(target.run_id, target.project) for target in services.targets.list()] == [
        (run_of(GRPO), "math"),
        (run_of(PPO), "physics"),
    ]
    assert values_of(services, query, run_of(GRPO)) == [(0.5,), (0.5,)]
    assert values_of(services, query, run_of(PPO)) == [(0.25,)]
    assert len(client.get("/api/v1/runs").json()) == 2


def test_a_hub_with_two_experiments_is_divided_and_those_that_ended_are_not_repeated(services, query, scrape, pages):
    session = f'{SERVICE}_agent_loop_run_info{{experiment_name="grpo",global_steps="1"}} 1\n'
    scrape("n0:1", page_of((GRPO, 0.5), more=session))
    for reward in (0.1, 0.2):
        pages["http://n0:1/metrics"] = page_of((GRPO, 0.5), (PPO, reward), more=session)
        scrape()
    scrape()
    assert values_of(services, query, run_of(GRPO)) == [(0.5,)]
    assert values_of(services, query, run_of(GRPO), "agent_loop_run_info") == [(1.0,)]
    assert values_of(services, query, run_of(PPO)) == [(0.1,), (0.2,), (0.2,)]
    assert len(values_of(services, query, run_of(PPO), "python_info")) == 3
    (target,) = services.targets.list()
    assert target.run_id == run_of(PPO)


def test_metrics_without_names_are_stored_in_the_run_of_the_day(services, query, scrape):
    scrape("n0:1", f"{SERVICE}_reward_mean 0.5\n")
    assert values_of(services, query, BASE) == [(0.5,)]


def test_engines_wait_for_the_experiment_of_the_client_that_registered_them(client, services, query, scrape, clock):
    scrape("n0:8000", "running 3\n", job_name="vllm")
    assert client.get("/api/v1/runs").json() == []
    scrape("n0:1", page_of((GRPO, 0.5)))
    scrape()
    assert len(values_of(services, query, run_of(GRPO), "running")) == 1
    scrape("n0:9000", "running 3\n", job_name="vllm")
    assert {target.run_id for target in services.targets.list()} == {run_of(GRPO)}
    assert len(client.get("/api/v1/runs").json()) == 1


def test_engines_of_a_client_without_names_are_stored_in_the_run_of_the_day(client, services, query, scrape, clock):
    scrape("n0:8000", "running 3\n", job_name="vllm")
    clock[0] += client_runs._WAIT_S
    scrape()
    assert len(values_of(services, query, BASE, "running")) == 1


def test_names_in_a_registration_set_the_run_at_once(services, scrape):
    scrape("n0:8000", None, job_name="vllm", **names(GRPO))
    assert [target.run_id for target in services.targets.list()] == [run_of(GRPO)]


def test_failed_scrapes_do_not_make_a_run_longer(services, query, scrape, pages, monkeypatch):
    scrape("n0:1", page_of((GRPO, 0.5)))
    scrape("n0:8000", "running 3\n", job_name="vllm", **names(GRPO))
    pages.clear()
    scrape()
    up = "SELECT json_extract_string(labels, 'job') AS job, value FROM samples WHERE name = 'up' ORDER BY job, time_ns"
    first = query(services, run_of(GRPO), up)
    assert first == [("trainer_metrics", 1.0), ("trainer_metrics", 1.0), ("vllm", 1.0), ("vllm", 0.0)]
    later_ns = time.time_ns() + int(1.1e9 * scraper._STORED_FAILURES_S)
    monkeypatch.setattr(scraper.time, "time_ns", lambda: later_ns)
    scrape()
    assert query(services, run_of(GRPO), up) == first
