"""Exports, reports and replays over HTTP: the run is not moved, and no temporary files are left behind."""

from __future__ import annotations

import gzip
import io
import json
import zipfile

import pytest

from rl_insight.exchange.report.page import _FOLDER
from rl_insight.server.http import made_files


@pytest.fixture(autouse=True)
def run(client, make_batch, frames):
    body = frames(make_batch(1, process_id="p1"), make_batch(1, process_id="p2"))
    assert client.post("/api/v1/ingest", content=body, headers={"content-type": "application/octet-stream"}).is_success


@pytest.mark.parametrize("file_format", ["chrome", "otlp", "jsonl", "rli"])
def test_a_run_is_sent_in_every_format_of_one_file(client, file_format):
    answer = client.get("/api/v1/export", params={"run": "r1", "format": file_format})
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["rl-insight-records"]) >= 6
    assert answer.headers["content-disposition"] == f'attachment; filename="r1.{file_format}"'
    packed = client.get("/api/v1/export", params={"run": "r1", "format": file_format, "gzip": True})
    assert len(gzip.decompress(packed.content)) == len(answer.content)


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_tables_are_sent_as_an_archive(client, file_format):
    answer = client.get("/api/v1/export", params={"format": file_format})
    with zipfile.ZipFile(io.BytesIO(answer.content)) as packed:
        assert f"spans.{file_format}" in packed.namelist()
    assert int(answer.headers["rl-insight-records"]) >= 6


@pytest.mark.parametrize(
    ("path", "parameters", "status", "sentence"),
    [
        ("export", {"format": "chrome", "step": 7}, 400, "no spans, events or logs of r1 match these conditions"),
        ("export", {"format": "xml"}, 422, "format"),
        ("export", {"format": "csv", "run": "nope"}, 404, "there is no run 'nope'"),
        ("report", {"step": 7}, 400, "there are no spans in step 7 of r1"),
        ("report", {"run": "nope"}, 404, "there is no run 'nope'"),
    ],
)
def test_wrong_questions_get_a_sentence(client, path, parameters, status, sentence):
    answer = client.get(f"/api/v1/{path}", params=parameters)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]


def test_a_report_is_one_page(client, services, monkeypatch, tmp_path):
    if not (_FOLDER / "report.js").is_file():
        (tmp_path / "report.js").write_text("1")
        (tmp_path / "report.css").write_text("b{}")
        monkeypatch.setattr("rl_insight.exchange.report.page.load_bundle.__defaults__", (tmp_path,))
    answer = client.get("/api/v1/report")
    assert answer.status_code == 200, answer.text
    assert answer.text.startswith("<!doctype html>")
    assert "attachment" in answer.headers["content-disposition"]
    assert [path.name for path in services.settings.directory.iterdir() if path.name.startswith(".transfer")] == []


def test_a_run_is_diagnosed_with_other_thresholds(client):
    answer = client.post("/api/v1/findings/replay", json={"only": ["straggler"]})
    assert answer.status_code == 200, answer.text
    assert {"findings", "coverage", "as_of_ns"} <= answer.json().keys()
    for body, sentence in (
        ({"only": ["stragler"]}, "did you mean 'straggler'?"),
        ({"rules": {"straggler": {"nonsense": 1}}}, "nonsense is unknown"),
        ({"at": 3}, "Extra inputs are not permitted"),
    ):
        refused = client.post("/api/v1/findings/replay", json=body)
        assert refused.status_code in {400, 422}
        assert sentence in refused.json()["error"]


def test_work_that_keeps_a_core_busy_is_done_twice_at_once_and_no_more(client):
    slots = [made_files._slots.acquire(blocking=False) for _ in range(2)]
    try:
        answers = [client.get("/api/v1/export", params={"format": "csv"}), client.get("/api/v1/report")]
        answers.append(client.post("/api/v1/findings/replay", json={}))
    finally:
        for _ in slots:
            made_files._slots.release()
    assert [answer.status_code for answer in answers] == [429, 429, 429]
    assert json.loads(answers[0].text)["error"].endswith("try again in a few seconds.")
