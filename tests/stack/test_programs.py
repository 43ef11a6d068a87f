"""Finding the programs, and checking their versions."""

from __future__ import annotations

import stat

import pytest

from rl_insight.stack.errors import MissingProgramError
from rl_insight.stack.programs import PROGRAMS, find_program, parse_version, programs_directory


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("prometheus, version 2.42.0+ds (branch: debian/sid, revision: 2.42.0+ds-5)", (2, 42, 0)),
        ("prometheus, version 3.5.0 (branch: HEAD, revision: 8be3a9)", (3, 5, 0)),
        ("tempo, version v3.0.3 (branch: HEAD)", (3, 0, 3)),
        ("tempo, version 2.10 (branch: HEAD)", (2, 10, 0)),
        ("Version 10.4.1 (commit: d3ca1c1d, branch: HEAD)", (10, 4, 1)),
        ("grafana version 13.0.1", (13, 0, 1)),
        ("grafana version: 12.1.0-pre", (12, 1, 0)),
        ("tempo, version  (branch: , revision: )", None),
        ("", None),
        ("usage: something else", None),
    ],
)
def test_versions_are_read_from_what_programs_say(text, version):
    assert parse_version(text) == version


def write_program(path, version_line, code=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{version_line}'\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_path_of_the_users_wins(tmp_path, monkeypatch):
    write_program(tmp_path / "bin" / "tempo", "tempo, version 2.5.0")
    mine = write_program(tmp_path / "mine", "tempo, version 3.1.0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    found = find_program(PROGRAMS["tempo"], str(mine), programs_directory(tmp_path))
    assert (found.path, found.version_text) == (mine, "3.1.0")


def test_an_installed_program_wins_over_the_path(tmp_path, monkeypatch):
    on_path = write_program(tmp_path / "bin" / "grafana", "grafana version 11.0.0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    assert find_program(PROGRAMS["grafana"], None, programs_directory(tmp_path)).path == on_path
    installed = write_program(programs_directory(tmp_path) / "grafana" / "bin" / "grafana", "grafana version 13.0.0")
    assert find_program(PROGRAMS["grafana"], None, programs_directory(tmp_path)).path == installed


def test_a_program_that_is_too_old_is_passed_over_for_one_that_will_do(tmp_path, monkeypatch):
    write_program(programs_directory(tmp_path) / "tempo" / "tempo", "tempo, version 1.5.0")
    good = write_program(tmp_path / "bin" / "tempo", "tempo, version 2.5.0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    assert find_program(PROGRAMS["tempo"], None, programs_directory(tmp_path)).path == good


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("prometheus", "prometheus, version 2.29.2", "it has version 2.29.2, 2.30.0 or newer is needed"),
        ("tempo", "tempo, version 2.3.1", "it has version 2.3.1, 2.4.0 or newer is needed"),
        ("grafana", "Version 9.5.0 (commit: 1)", "it has version 9.5.0, 10.0.0 or newer is needed"),
        ("tempo", "something else", "it does not print its version"),
    ],
)
def test_a_program_that_will_not_do_is_refused_with_a_reason(tmp_path, name, line, reason):
    path = write_program(tmp_path / name, line)
    with pytest.raises(MissingProgramError, match=reason):
        find_program(PROGRAMS[name], str(path), programs_directory(tmp_path))


@pytest.mark.parametrize("kind", ["absent", "directory", "not executable"])
def test_a_path_that_is_not_a_program_is_refused(tmp_path, kind):
    path = tmp_path / "tempo"
    if kind == "directory":
        path.mkdir()
    elif kind == "not executable":
        path.write_text("")
    with pytest.raises(MissingProgramError, match="is not an executable file"):
        find_program(PROGRAMS["tempo"], str(path), programs_directory(tmp_path))


@pytest.mark.parametrize("options", ["--version", "server -v", "-v"])
def test_grafana_reports_its_version_in_one_way_or_another(tmp_path, options):
    path = tmp_path / "grafana"
    path.write_text(f'#!/bin/sh\n[ "$*" = "{options}" ] && echo "Version 13.0.1 (commit: 1)" || exit 1\n')
    path.chmod(0o755)
    assert find_program(PROGRAMS["grafana"], str(path), programs_directory(tmp_path)).version == (13, 0, 1)


def test_what_is_missing_is_reported_with_the_way_to_get_it_without_internet(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingProgramError) as caught:
        find_program(PROGRAMS["tempo"], None, programs_directory(tmp_path))
    for word in ("Tempo 2.4.0 or newer is missing", "server install", "--local-archive", "tempo_", "SHA256SUMS"):
        assert word in str(caught.value)
