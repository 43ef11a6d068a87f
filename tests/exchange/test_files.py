"""Portions of files: everything once, in order, and the same on each read."""

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.exchange.importing import _files as files
from rl_insight.exchange.importing._cuts import CutBook
from rl_insight.exchange.importing._files import identity_of, portions

LINES = st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"") + b"\n"), max_size=60)


@pytest.fixture(autouse=True, scope="module")
def small_portions():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "PORTION_BYTES", 64)
        patch.setattr(files, "MAX_LINE_BYTES", 256)
        yield


@given(LINES, st.binary(max_size=20).map(lambda rest: rest.replace(b"\n", b"")))
def test_portions_are_the_file_in_order(lines, rest):
    content = b"".join(lines) + rest
    found = list(portions(BytesIO(content)))
    assert b"".join(portion.data for portion in found) == content
    assert [portion.is_partial for portion in found] == [False] * (len(found) - bool(rest)) + [True] * bool(rest)
    end = 0
    for portion in found:
        end += len(portion.data)
        assert portion.end == end


@given(LINES, st.lists(st.integers(0, 60), max_size=5))
def test_a_file_read_while_it_grew_gives_the_same_portions_again(lines, pauses):
    cuts, seen, offset = [], [], 0
    for length in [*sorted(pauses), len(lines)]:
        content = b"".join(lines[:length])
        stream = BytesIO(content)
        stream.seek(offset)
        for portion in portions(stream, offset, cuts):
            if portion.is_last:
                cuts.append(portion.end)
            seen.append(portion.data)
            offset = portion.end
    again = [portion.data for portion in portions(BytesIO(b"".join(lines)), 0, cuts)]
    assert again == seen


def test_a_line_that_is_too_long_is_left_out():
    content = b"a\n" + b"x" * 1000 + b"\n" + b"b\n" * 3
    found = list(portions(BytesIO(content)))
    assert b"".join(portion.data for portion in found) == b"a\n" + b"b\n" * 3
    assert sum(portion.skipped for portion in found) == 1


def test_identity_stays_when_a_file_grows_and_is_rotated():
    first = identity_of("a.jsonl", b'{"ts":1}\n', by_line=True)
    assert first == identity_of("a.jsonl.2", b'{"ts":1}\n{"ts":2}\n', by_line=True)
    assert first != identity_of("b.jsonl", b'{"ts":1}\n', by_line=True)
    assert first != identity_of("a.jsonl", b'{"ts":2}\n', by_line=True)
    assert identity_of("a.jsonl", b'{"ts":', by_line=True) is None
    metadata = b'{"ph": "M", "name": "process_name"}\n'
    assert identity_of("t", metadata, by_line=True) is None
    assert identity_of("t", metadata + b'{"ts":1}\n', by_line=True) != identity_of(
        "t", metadata + b'{"ts":2}\n', by_line=True
    )


def test_cuts_survive_and_a_broken_line_does_not_matter(tmp_path):
    book = CutBook(tmp_path, "../odd run")
    for offset in (30, 10, 30):
        book.add("f", offset)
    (file,) = (tmp_path / "imports").iterdir()
    file.write_bytes(file.read_bytes() + b'{"file":"f","off')
    again = CutBook(tmp_path, "../odd run")
    assert (again.of("f"), again.of("g")) == ([10, 30], [])
