"""POST /api/v1/ingest: each batch once, good parts kept, bad input 4xx, overload 429."""

import gzip
import random
from array import array

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_insight.schema import BatchBuilder, frame
from rl_insight.schema.bundle import encode_bundle
from rl_insight.store import run_store
from rl_insight.store.errors import StoreFullError
from rl_insight.transport.ingest_client import CONTENT_TYPE

HEADERS = {"Content-Type": CONTENT_TYPE}
COUNT = "SELECT count(*) FROM spans"


def post(client, body, **headers):
    return client.post("/api/v1/ingest", content=body, headers=HEADERS | headers)


def test_an_acknowledged_batch_is_in_the_store(client, services, make_batch, frames, query):
    answer = post(client, frames(make_batch(1), make_batch(2)))
    assert (answer.status_code, answer.json()) == (200, {"accepted": 2, "duplicates": 0})
    assert query(services, "r1", COUNT) == [(6,)]


def test_a_repeated_batch_is_stored_once(client, services, make_batch, frames, query):
    body = frames(make_batch(1))
    assert post(client, body).json() == {"accepted": 1, "duplicates": 0}
    assert post(client, body).json() == {"accepted": 0, "duplicates": 1}
    assert query(services, "r1", COUNT) == [(3,)]


def test_each_batch_of_a_bundle_is_taken_once_in_whatever_company_it_comes(client, services, make_batch, frames, query):
    batches = [make_batch(sequence, process_id=f"p{process}") for process in range(3) for sequence in (1, 2)]
    assert post(client, frames(batches[3])).json() == {"accepted": 1, "duplicates": 0}
    bundle = frame(encode_bundle(batches))
    assert post(client, bundle).json() == {"accepted": 5, "duplicates": 1}
    assert post(client, bundle + frames(batches[0])).json() == {"accepted": 0, "duplicates": 7}
    spans = "SELECT process_id, count(*), count(DISTINCT span_id) FROM spans GROUP BY ALL ORDER BY ALL"
    assert query(services, "r1", spans) == [("p0", 6, 6), ("p1", 6, 6), ("p2", 6, 6)]


def test_rows_out_of_range_are_left_out_of_their_batch_in_a_bundle(client, services, make_batch, frames, query):
    bad = make_batch(1, process_id="p2")
    times = array("q", [2**63 - 1, *bad.spans.column("start_ns")[1:]])
    bad.spans.start_ns = times.tobytes()
    bundle = frame(encode_bundle([make_batch(1), bad]))
    assert post(client, bundle).json() == {"accepted": 2, "duplicates": 0}
    assert query(services, "r1", "SELECT process_id, count(*) FROM spans GROUP BY ALL ORDER BY ALL") == [
        ("p1", 3),
        ("p2", 2),
    ]
    assert query(services, "r1", "SELECT kind, reason, count FROM losses") == [("spans", "range", 1)]


def test_a_bundle_with_a_batch_that_cannot_be_stored_is_refused_whole(client, services, make_batch):
    answer = post(client, frame(encode_bundle([make_batch(1), make_batch(0)])))
    assert answer.status_code == 400
    assert "invalid sequence 0" in answer.json()["error"]
    assert services.runs.list_runs() == []


def test_a_long_body_is_taken_as_a_short_one(client, services, make_batch, frames, query):
    body = frames(make_batch(1, spans=2000))
    assert len(body) > 100_000
    assert post(client, body).json() == {"accepted": 1, "duplicates": 0}
    assert query(services, "r1", COUNT) == [(2000,)]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_other_methods_are_refused_with_a_sentence(client, method):
    answer = client.request(method, "/api/v1/ingest")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]


def test_an_unexpected_failure_is_reported_in_json(client, services, make_batch, frames, monkeypatch):
    def fail(_body):
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(services.ingest, "submit_frames", fail)
    answer = post(client, frames(make_batch(1)))
    assert answer.status_code == 500
    assert "see the server's log" in answer.json()["error"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_compressed_bodies_are_taken(client, make_batch, frames, encoding):
    compress = gzip.compress if encoding == "gzip" else zstandard.compress
    answer = post(client, compress(frames(make_batch(1))), **{"Content-Encoding": encoding})
    assert answer.json() == {"accepted": 1, "duplicates": 0}


def test_good_batches_around_a_bad_one_are_kept_and_the_answer_says_so(client, services, make_batch, frames, query):
    body = frames(make_batch(1)) + frame(b"not a batch") + frames(make_batch(2))
    answer = post(client, body)
    assert answer.status_code == 400
    assert answer.json()["accepted"] == 2
    assert "1 of 3 batches were refused, 2 stored" in answer.json()["error"]
    assert query(services, "r1", COUNT) == [(6,)]
    assert post(client, frames(make_batch(1))).json() == {"accepted": 0, "duplicates": 1}


def test_a_batch_that_only_the_store_finds_bad_is_refused_for_good_and_alone(
    client, services, make_batch, frames, query, monkeypatch
):
    convert = run_store.texts_of

    def fail_on_poison(gathered):
        if "poison" in gathered.strings:
            raise RuntimeError("cannot be converted")
        return convert(gathered)

    monkeypatch.setattr(run_store, "texts_of", fail_on_poison)
    builder = BatchBuilder()
    builder.add_event(time_ns=1, name="poison")
    poison = builder.build(make_batch(1, process_id="p2").process, sequence=1, sent_ns=1)
    answer = post(client, frames(make_batch(1), poison, make_batch(2)))
    assert answer.status_code == 400
    assert "cannot be stored" in answer.json()["error"]
    assert "1 of 3 batches were refused, 2 stored" in answer.json()["error"]
    assert query(services, "r1", COUNT) == [(6,)]
    assert post(client, frames(make_batch(3))).json() == {"accepted": 1, "duplicates": 0}


def test_frames_before_a_broken_one_are_kept(client, services, make_batch, frames, query):
    answer = post(client, frames(make_batch(1), make_batch(2))[:-5])
    assert answer.status_code == 400
    assert "truncated" in answer.json()["error"]
    assert query(services, "r1", COUNT) == [(3,)]


def test_a_number_that_the_store_cannot_hold_is_refused_and_harms_nobody(client, make_batch, frames):
    bad = make_batch(2**63 + 5, spans=0)
    answer = post(client, frames(bad, make_batch(1)))
    assert (answer.status_code, answer.json()["accepted"], answer.json()["refused"]) == (400, 1, 1)


@pytest.mark.parametrize(
    ("content_type", "encoding", "status"),
    [
        ("application/json", None, 415),
        ("", None, 415),
        (CONTENT_TYPE, "br", 415),
        (CONTENT_TYPE, "gzip", 400),
        ("application/octet-stream; x=y", None, 200),
    ],
)
def test_content_type_and_encoding_are_checked(client, content_type, encoding, status, make_batch, frames):
    headers = {"Content-Type": content_type} | ({"Content-Encoding": encoding} if encoding else {})
    answer = client.post("/api/v1/ingest", content=frames(make_batch(1)), headers=headers)
    assert answer.status_code == status
    assert status == 200 or answer.json()["error"]


def test_a_body_beyond_the_limit_is_refused(make_services, client_of, make_batch, frames):
    client = client_of(make_services("max_body_bytes=2048"))
    answer = post(client, bytes(5000))
    assert answer.status_code == 413
    assert "the limit is 2048 bytes" in answer.json()["error"]

    def chunks():
        for _ in range(10):
            yield bytes(500)

    assert post(client, chunks()).status_code == 413
    assert post(client, frames(make_batch(1))).status_code == 200


def test_a_zip_bomb_is_refused_and_the_next_batch_taken(client, make_batch, frames):
    bomb = gzip.compress(bytes(300 * 1024 * 1024))
    assert post(client, bomb, **{"Content-Encoding": "gzip"}).status_code == 413
    assert post(client, frames(make_batch(1))).status_code == 200


def test_overload_is_answered_with_429_and_when_to_come_back(client, services, make_batch, frames, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(services.writer, "_pending_bytes", 10**9)
        patched.setattr(services.writer, "_retry_after_s", lambda: 3.2)
        answer = post(client, frames(make_batch(1)))
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "4")
    assert post(client, frames(make_batch(1))).json()["accepted"] == 1


def test_a_full_disk_is_answered_with_503_and_nothing_is_acknowledged(
    client, services, make_batch, frames, monkeypatch
):
    def commit(run_id, group):
        raise StoreFullError("the disk is full.")

    with monkeypatch.context() as patched:
        patched.setattr(services.writer, "_write", commit)
        answer = post(client, frames(make_batch(1)))
    assert (answer.status_code, answer.json()["accepted"]) == (503, 0)
    assert int(answer.headers["Retry-After"]) >= 1
    assert post(client, frames(make_batch(1))).json()["accepted"] == 1


def test_requests_in_flight_are_bounded(make_services, client_of, make_batch, frames):
    services = make_services("max_inflight_bytes=1024")
    client = client_of(services)
    with services.inflight.reserve() as other:
        assert other.grow(1000)
        answer = post(client, frames(make_batch(1)))
        assert (answer.status_code, int(answer.headers["Retry-After"]) >= 1) == (503, True)
    assert post(client, frames(make_batch(1))).status_code == 200
    assert services.inflight.used == 0


def test_random_and_truncated_bytes_give_only_4xx_and_the_next_batch_is_taken(client, make_batch, frames):
    good = frames(make_batch(1), make_batch(2))
    source = random.Random(7)
    for number in range(300):
        body = bytearray(good[: source.randrange(1, len(good))] if number % 2 else good)
        for _ in range(source.randrange(1, 6)):
            body[source.randrange(len(body))] = source.randrange(256)
        assert post(client, bytes(body)).status_code in {200, 400, 413}
    answer = post(client, frames(make_batch(77)))
    assert answer.json() == {"accepted": 1, "duplicates": 0}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=st.binary(max_size=200), framed=st.booleans())
def test_any_bytes_give_4xx(client, payload, framed):
    body = frame(payload) if framed else payload
    assert post(client, body).status_code == (400 if body else 200)


def test_metrics_of_a_stored_batch_and_of_the_server_are_on_the_metrics_page(client, make_batch, frames, wait_until):
    batch = make_batch(1)
    assert post(client, frames(batch)).status_code == 200
    post(client, b"nonsense")

    def page():
        return client.get("/metrics").text

    wait_until(lambda: "rl_insight_monitor_collector_batches_total 1" in page())
    assert 'rl_insight_monitor_server_refused_total{route="native",reason="frame"} 1' in page()
    assert "rl_insight_monitor_server_committed_batches_total 1" in page()
    openmetrics = client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    names = {family.name for family in text_string_to_metric_families(openmetrics.text)}
    assert {"rl_insight_monitor_server_commits", "rl_insight_monitor_collector_batches"} <= names


def test_a_user_metric_cannot_take_the_name_of_one_of_ours(services, make_batch, wait_until):
    from rl_insight.schema import BatchBuilder

    builder = BatchBuilder()
    builder.add_sample(builder.add_series("server_commits", "counter", "", "{}"), time_ns=1, value=5.0)
    batch = builder.build(make_batch(1).process, sequence=1, sent_ns=1)
    services.ingest.submit_batches([(batch, 10)], "native").settle()
    wait_until(lambda: services.collector.status().refused_samples.get("name"))
