"""schemathesis over the OpenAPI document: no request gets a 5xx response."""

import random

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings

from rl_insight.transport.ingest_client import CONTENT_TYPE

RUN = "r1"
STREAMS = {"/api/v1/live"}
"""Never end; tests of their own ask them."""
BINARY = (CONTENT_TYPE, "application/vnd.rl-insight.run", "application/x-protobuf")


def _raw(_context, value):
    return value if isinstance(value, bytes) else str(value).encode()


@pytest.fixture
def server(start_server, make_batch, frames):
    """A server with a run that contains all kinds of records."""
    from rl_insight.schema import BatchBuilder

    running = start_server()
    builder = BatchBuilder()
    reward = builder.add_series("reward", "gauge", "", '{"worker":"0"}')
    tokens = builder.add_series("tokens", "counter", "", "{}")
    latency = builder.add_series("latency_ms", "histogram", "", "{}")
    for number in range(1, 50):
        builder.add_sample(reward, time_ns=number * 10**9, value=0.5, step=number)
        builder.add_sample(tokens, time_ns=number * 10**9, value=7.0 * number)
        builder.add_histogram(
            latency, time_ns=number * 10**9, count=number, total=5.0, minimum=1.0, maximum=9.0, buckets={10: number}
        )
        builder.add_log(time_ns=number * 10**9, level=20, message=f"line {number}", session_id="s1", step=number)
        builder.add_event(time_ns=number * 10**9, name="arrived", session_id="s1", step=number)
        builder.add_session(session_id=f"s{number}", status="accepted", time_ns=number * 10**9, record="{}")
        builder.add_span(
            span_id=number, trace=(1, 2), name="generate", start_ns=number * 10**9, duration_ns=-1, step=number
        )
    batch = builder.build(make_batch(2).process, sequence=2, sent_ns=1)
    answer = requests.post(
        f"{running.url}/api/v1/ingest",
        data=frames(make_batch(1, spans=500), batch),
        headers={"Content-Type": CONTENT_TYPE},
        timeout=20,
    )
    assert answer.json() == {"accepted": 2, "duplicates": 0}
    return running


def ask_everything(server, *, examples, derandomize):
    import schemathesis  # 1 s that only these tests need

    for media_type in BINARY:
        schemathesis.serializer(media_type)(_raw)
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    session = requests.Session()
    known_run = random.Random(3)
    asked = set()
    for operation in (result.ok() for result in schema.get_all_operations()):
        if operation.path in STREAMS:
            continue

        @settings(
            max_examples=examples,
            derandomize=derandomize,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def ask(case):
            # A made-up run is only ever answered 404: most questions are about the one that is there.
            if case.method != "DELETE" and known_run.random() < 0.8:
                case.query = {**(case.query or {}), "run": RUN}
            answer = case.call(session=session, timeout=60)
            assert answer.status_code < 500, f"{answer.text}\n{case.as_curl_command()}\n{server.text}"
            asked.add(case.operation.label)

        ask()
    session.close()
    return asked


def check(server, **options):
    asked = ask_everything(server, **options)
    document = requests.get(f"{server.url}/openapi.json", timeout=20).json()
    documented = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods} - {
        f"GET {path}" for path in STREAMS
    }
    assert asked == documented
    assert requests.get(f"{server.url}/api/v1/summary?run={RUN}", timeout=20).json()["spans"] == 500


def test_no_question_is_answered_with_5xx(server):
    check(server, examples=4, derandomize=True)


@pytest.mark.slow
def test_no_question_is_answered_with_5xx_for_a_long_time(server):
    check(server, examples=400, derandomize=False)
