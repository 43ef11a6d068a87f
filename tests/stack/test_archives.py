"""Archives: verified against their checksums, and unpacked only inside their directory."""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.stack import archives
from rl_insight.stack.archives import checksum_beside, parse_checksums, sha256_of, unpack, verify
from rl_insight.stack.errors import StackError


def make_archive(path, *members):
    """Write a `.tar.gz`; a member is (name, content) or (name, type, link)."""
    with tarfile.open(path, "w:gz") as tar:
        for name, *rest in members:
            info = tarfile.TarInfo(name)
            if len(rest) == 1:
                content = rest[0]
                info.size = len(content)
                info.mode = 0o755
                tar.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = rest
                tar.addfile(info)
    return path


def test_the_top_directory_is_dropped(tmp_path):
    archive = make_archive(
        tmp_path / "a.tar.gz", ("tempo-3.0.3/tempo", b"program"), ("tempo-3.0.3/conf/x.yml", b"text")
    )
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "tempo").read_bytes() == b"program"
    assert (tmp_path / "out" / "conf" / "x.yml").is_file()
    assert (tmp_path / "out" / "tempo").stat().st_mode & 0o100


def test_an_archive_without_a_top_directory_stays_as_it_is(tmp_path):
    archive = make_archive(tmp_path / "a.tar.gz", ("tempo", b"program"), ("LICENSE", b"text"))
    unpack(archive, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["LICENSE", "tempo"]


def test_links_inside_are_kept(tmp_path):
    archive = make_archive(
        tmp_path / "a.tar.gz", ("g/bin/grafana", b"program"), ("g/bin/grafana-server", tarfile.SYMTYPE, "grafana")
    )
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "bin" / "grafana-server").read_bytes() == b"program"


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", b"x")],
        [("a/../../evil", b"x")],
        [("a/link", tarfile.SYMTYPE, "../../evil")],
        [("link", tarfile.SYMTYPE, "/etc")],
        [("a/link", tarfile.LNKTYPE, "../evil")],
        [("a/link", tarfile.LNKTYPE, "/etc/passwd")],
        [("a/link", tarfile.SYMTYPE, "b"), ("a/link/evil", b"x")],
        [("a/device", tarfile.CHRTYPE, "")],
        [("a/pipe", tarfile.FIFOTYPE, "")],
    ],
)
def test_what_would_leave_its_directory_is_refused_and_nothing_stays(tmp_path, members):
    archive = make_archive(tmp_path / "a.tar.gz", ("good", b"x"), *members)
    with pytest.raises(StackError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz"]


@pytest.mark.parametrize("name", ["/etc/evil", "a\\..\\evil"])
def test_names_that_only_look_absolute_stay_inside(tmp_path, name):
    unpack(make_archive(tmp_path / "a.tar.gz", ("good", b"x"), (name, b"x")), tmp_path / "out")
    assert len([path for path in (tmp_path / "out").rglob("*") if path.is_file()]) == 2


@given(st.lists(st.sampled_from(["..", "a", "b", ".", "c..", "..d"]), min_size=1, max_size=6))
def test_no_path_leaves_its_directory(parts):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        archive = make_archive(root / "a.tar.gz", ("/".join(parts), b"x"))
        with contextlib.suppress(StackError):
            unpack(archive, root / "out")
        assert {path.name for path in root.iterdir()} <= {"a.tar.gz", "out"}


def test_an_archive_of_unlikely_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_MAX_UNPACKED_BYTES", 100)
    archive = make_archive(tmp_path / "a.tar.gz", ("x", b"x" * 101))
    with pytest.raises(StackError, match="larger than any release"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\x1f\x8b\x08\x00broken"])
def test_what_is_not_an_archive_is_refused(tmp_path, content):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(content)
    with pytest.raises(StackError, match="cannot be unpacked"):
        unpack(path, tmp_path / "out")


def test_a_truncated_archive_is_refused(tmp_path):
    archive = make_archive(tmp_path / "a.tar.gz", ("x", bytes(range(256)) * 400))
    archive.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(StackError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "out")


def test_sums_are_compared(tmp_path):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(b"content")
    good = hashlib.sha256(b"content").hexdigest()
    assert sha256_of(path) == good
    verify(path, good.upper())
    with pytest.raises(StackError, match="is damaged or was changed"):
        verify(path, "0" * 64)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("SHA256SUMS", "{sum}  a.tar.gz\n{other}  b.tar.gz\n"),
        ("sha256sums.txt", "{other}  b.tar.gz\n{sum} *./dist/a.tar.gz\n"),
        ("a.tar.gz.sha256", "{sum}\n"),
        ("a.tar.gz.sha256", "{sum}  a.tar.gz\n"),
    ],
)
def test_the_sum_is_found_beside_the_archive(tmp_path, file, text):
    (tmp_path / file).write_text(text.format(sum="A" * 64, other="b" * 64))
    assert checksum_beside(tmp_path / "a.tar.gz") == "a" * 64


def test_checksum_lists_without_an_archive_are_ignored(tmp_path):
    (tmp_path / "SHA256SUMS").write_text("b" * 64 + "  b.tar.gz\n" + "c" * 64 + "\nnonsense\n")
    assert checksum_beside(tmp_path / "a.tar.gz") is None
    assert parse_checksums("zz  a\n" + "d" * 63 + "  a\n") == {}
