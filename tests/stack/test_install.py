"""Installing the programs: from a directory, and by download."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rl_insight.stack import MetricsEndpointOfServer, MissingProgramError, StackError, install_programs, start_stack
from rl_insight.stack.download import fetch
from rl_insight.stack.install import platform_words
from rl_insight.stack.programs import PROGRAMS, find_program, programs_directory

SYSTEM, MACHINE = platform_words()


def release_name(name, version):
    url = PROGRAMS[name].archive_url.format(version=version, system=SYSTEM, machine=MACHINE)
    return url.rpartition("/")[2]


def pack(archive, source, top):
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(source, arcname=top)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    sums = archive.parent / "SHA256SUMS"
    with sums.open("a") as stream:
        stream.write(f"{digest}  {archive.name}\n")
    return archive


@pytest.fixture
def archives(tmp_path, stand_in):
    """A directory with archives of fake Tempo and Grafana programs, and their checksums."""
    place = tmp_path / "archives"
    stand_in(tmp_path / "t", "tempo", "3.0.3")
    pack(place / release_name("tempo", "3.0.3"), tmp_path / "t", "tempo_3.0.3")
    stand_in(tmp_path / "g", "grafana", "12.0.2")
    pack(place / release_name("grafana", "12.0.2"), tmp_path / "g", "grafana-v12.0.2")
    return place


def test_prometheus_from_an_archive_is_installed_and_runs(
    tmp_path, settings, live_collector, query, wait_until, prometheus_program, monkeypatch
):
    source = tmp_path / "release"
    source.mkdir()
    for name in ("prometheus", "promtool"):
        shutil.copy(shutil.which(name), source / name)
    pack(tmp_path / "archives" / release_name("prometheus", "2.42.0"), source, "prometheus-2.42.0.linux-amd64")
    shutil.rmtree(source)
    data = tmp_path / "data"
    (done,) = install_programs(data, names=["prometheus"], local_archive=tmp_path / "archives")
    assert (done.version, done.is_new) == ("2.42.0", True)
    assert done.path == programs_directory(data) / "prometheus" / "prometheus"
    assert subprocess.run([done.path, "--version"], capture_output=True, check=False).returncode == 0
    monkeypatch.setenv("PATH", "/nowhere")
    with start_stack(settings(), data, MetricsEndpointOfServer(live_collector.url)) as stack:
        assert wait_until(lambda: query(stack.urls["prometheus"], "rl_insight_monitor_steps_total"))


def test_what_is_installed_is_left_alone_unless_forced(tmp_path, archives):
    data = tmp_path / "data"
    first = install_programs(data, names=["tempo", "grafana"], local_archive=archives)
    assert [done.is_new for done in first] == [True, True]
    mark = programs_directory(data) / "tempo" / "mark"
    mark.touch()
    second = install_programs(data, names=["tempo", "grafana"], local_archive=archives)
    assert [done.is_new for done in second] == [False, False]
    assert mark.exists()
    third = install_programs(data, names=["tempo"], local_archive=archives, force=True)
    assert third[0].is_new
    assert not mark.exists()
    assert find_program(PROGRAMS["grafana"], None, programs_directory(data)).version == (12, 0, 2)


def test_the_newest_archive_is_taken(tmp_path, archives, stand_in):
    stand_in(tmp_path / "newer", "tempo", "3.10.0")
    pack(archives / release_name("tempo", "3.10.0"), tmp_path / "newer", "tempo")
    (done,) = install_programs(tmp_path / "data", names=["tempo"], local_archive=archives)
    assert done.version == "3.10.0"


def test_archives_that_are_missing_are_listed_together(tmp_path, archives):
    for path in archives.glob("tempo*"):
        path.unlink()
    with pytest.raises(MissingProgramError) as caught:
        install_programs(tmp_path / "data", local_archive=archives)
    assert release_name("prometheus", PROGRAMS["prometheus"].pinned) in str(caught.value)
    assert release_name("tempo", PROGRAMS["tempo"].pinned) in str(caught.value)
    assert "Grafana, such as" not in str(caught.value)


def test_a_directory_that_is_none_is_refused(tmp_path):
    with pytest.raises(MissingProgramError, match="is not a directory"):
        install_programs(tmp_path, local_archive=tmp_path / "absent")


def test_an_archive_with_another_sum_is_refused_and_what_is_installed_stays(tmp_path, archives):
    data = tmp_path / "data"
    install_programs(data, names=["tempo"], local_archive=archives)
    archive = archives / release_name("tempo", "3.0.3")
    archive.write_bytes(archive.read_bytes() + b"x")
    with pytest.raises(StackError, match="is damaged or was changed"):
        install_programs(data, names=["tempo"], local_archive=archives, force=True)
    assert find_program(PROGRAMS["tempo"], None, programs_directory(data)).version == (3, 0, 3)


def test_an_archive_without_a_sum_needs_trust(tmp_path, archives):
    (archives / "SHA256SUMS").unlink()
    with pytest.raises(StackError, match="no checksum file is next to it"):
        install_programs(tmp_path / "data", names=["tempo"], local_archive=archives)
    assert install_programs(tmp_path / "data", names=["tempo"], local_archive=archives, allow_unverified=True)


def test_an_archive_of_something_else_is_refused_and_leaves_nothing(tmp_path, archives):
    other = tmp_path / "other"
    other.mkdir()
    (other / "readme").write_text("")
    (archives / "SHA256SUMS").unlink()
    pack(archives / release_name("tempo", "3.0.3"), other, "other")
    with pytest.raises(StackError, match="does not contain Tempo"):
        install_programs(tmp_path / "data", names=["tempo"], local_archive=archives)
    assert list(programs_directory(tmp_path / "data").iterdir()) == []


class FileServer:
    """Serves files with ranges; disconnects after `break_after` bytes a given number of times; also acts as a proxy."""

    def __init__(self, directory):
        self.requests = []
        self.ranges = []
        self.break_after = []
        self.refuse = []
        self.ignore_ranges = False
        self.etag = '"v1"'
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.requests.append(self.path)
                server.ranges.append(self.headers.get("Range"))
                if server.refuse:
                    self.send_error(server.refuse.pop(0))
                    return
                path = directory / self.path.rpartition("/")[2]
                if not path.is_file():
                    self.send_error(404)
                    return
                content = path.read_bytes()
                start = 0
                wanted = self.headers.get("Range")
                if wanted and not server.ignore_ranges and self.headers.get("If-Range") == server.etag:
                    start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                    if start >= len(content):
                        self.send_error(416)
                        return
                rest = content[start:]
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(rest)))
                self.send_header("ETag", server.etag)
                self.end_headers()
                limit = server.break_after.pop(0) if server.break_after and len(rest) > 1000 else len(rest)
                self.wfile.write(rest[:limit])

            def log_message(self, *words):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def mirror(tmp_path):
    directory = tmp_path / "mirror"
    directory.mkdir()
    (directory / "big").write_bytes(bytes(range(256)) * 4000)
    server = FileServer(directory)
    server.directory = directory
    yield server
    server.close()


def test_an_interrupted_download_is_resumed(tmp_path, mirror):
    mirror.break_after = [300_000, 400_000]
    seen = []
    fetch(f"{mirror.url}/big", tmp_path / "got", progress=lambda *counts: seen.append(counts), pause_s=0.01)
    assert (tmp_path / "got").read_bytes() == (mirror.directory / "big").read_bytes()
    assert mirror.ranges == [None, "bytes=300000-", "bytes=700000-"]
    assert seen[-1] == (1_024_000, 1_024_000)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["got", "mirror"]


def test_a_later_call_continues_where_an_earlier_one_gave_up(tmp_path, mirror):
    mirror.break_after = [300_000]
    with pytest.raises(StackError, match=r"cannot be downloaded.*was closed after.*--local-archive"):
        fetch(f"{mirror.url}/big", tmp_path / "got", attempts=1)
    fetch(f"{mirror.url}/big", tmp_path / "got")
    assert mirror.ranges[-1] == "bytes=300000-"
    assert (tmp_path / "got").read_bytes() == (mirror.directory / "big").read_bytes()


@pytest.mark.parametrize("change", ["another file", "no ranges", "grown past the end"])
def test_a_download_starts_over_where_it_cannot_be_resumed(tmp_path, mirror, change):
    mirror.break_after = [300_000]
    with pytest.raises(StackError):
        fetch(f"{mirror.url}/big", tmp_path / "got", attempts=1)
    if change == "another file":
        mirror.etag = '"v2"'
        (mirror.directory / "big").write_bytes(b"new" * 100_000)
    elif change == "no ranges":
        mirror.ignore_ranges = True
    else:
        with (tmp_path / "got.partial").open("ab") as stream:
            stream.write(bytes(2_000_000))
    fetch(f"{mirror.url}/big", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == (mirror.directory / "big").read_bytes()


def test_an_overloaded_server_is_asked_again_and_a_refusal_is_final(tmp_path, mirror):
    mirror.refuse = [503, 502]
    fetch(f"{mirror.url}/big", tmp_path / "got", pause_s=0.01)
    assert len(mirror.requests) == 3
    with pytest.raises(StackError, match="responded with 404"):
        fetch(f"{mirror.url}/absent", tmp_path / "other", pause_s=0.01)
    assert len(mirror.requests) == 4


def test_downloads_go_through_the_users_proxy(tmp_path, mirror, monkeypatch):
    monkeypatch.setenv("http_proxy", mirror.url)
    fetch("http://releases.example/big", tmp_path / "got")
    assert mirror.requests == ["http://releases.example/big"]
    assert (tmp_path / "got").stat().st_size == 1_024_000


def test_programs_are_downloaded_verified_and_installed_from_a_mirror(tmp_path, mirror, stand_in):
    stand_in(tmp_path / "t", "tempo", "3.0.3")
    pack(mirror.directory / release_name("tempo", "3.0.3"), tmp_path / "t", "tempo")
    stand_in(tmp_path / "g", "grafana", "11.6.0")
    archive = pack(mirror.directory / release_name("grafana", "11.6.0"), tmp_path / "g", "grafana")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    archive.with_name(archive.name + ".sha256").write_text(digest + "\n")
    seen = set()
    done = install_programs(
        tmp_path / "data",
        names=["tempo", "grafana"],
        versions={"grafana": "11.6.0"},
        mirror=mirror.url,
        progress=lambda title, have, total: seen.add((title, have == total)),
    )
    assert [one.version for one in done] == ["3.0.3", "11.6.0"]
    assert {("Tempo", True), ("Grafana", True)} <= seen
    assert list((programs_directory(tmp_path / "data") / "downloads").iterdir()) == []


def test_a_download_that_is_not_what_was_published_is_deleted(tmp_path, mirror, stand_in):
    stand_in(tmp_path / "t", "tempo", "3.0.3")
    archive = pack(mirror.directory / release_name("tempo", "3.0.3"), tmp_path / "t", "tempo")
    (mirror.directory / "SHA256SUMS").write_text("0" * 64 + f"  {archive.name}\n")
    with pytest.raises(StackError, match="is damaged or was changed"):
        install_programs(tmp_path / "data", names=["tempo"], mirror=mirror.url)
    (mirror.directory / "SHA256SUMS").write_text("0" * 64 + "  another.tar.gz\n")
    with pytest.raises(StackError, match="does not list it"):
        install_programs(tmp_path / "data", names=["tempo"], mirror=mirror.url)
    assert not list((programs_directory(tmp_path / "data") / "downloads").iterdir())
