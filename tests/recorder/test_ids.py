from __future__ import annotations

import re

from rl_insight.recorder.ids import IdSource, host_name, new_process_id


def test_span_ids_are_distinct_and_fit_64_bits():
    for seed in (None, b"\xff" * 16, b"\x00" * 16):
        source = IdSource(seed)
        ids = [source.next_span_id() for _ in range(1000)]
        assert len(set(ids)) == 1000
        assert all(0 < span_id < 2**63 for span_id in ids)
        assert 0 < source.trace_prefix < 2**64


def test_same_seed_makes_the_same_ids():
    assert IdSource(b"0123456789abcdef").next_span_id() == IdSource(b"0123456789abcdef").next_span_id()


def test_process_ids_are_unique_and_usable_as_file_names():
    names = {new_process_id() for _ in range(100)}
    assert len(names) == 100
    assert all(re.fullmatch(r"[\w-]+", name) for name in names)


def test_host_name_is_short_and_plain(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node 7.cluster.local")
    assert host_name() == "node_7"
