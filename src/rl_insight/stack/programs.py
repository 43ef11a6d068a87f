"""The three programs: their names, the supported versions, and where they are on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rl_insight.stack.errors import MissingProgramError

Version = tuple[int, int, int]

_VERSION = re.compile(r"version[:\s]*v?(\d+)\.(\d+)(?:\.(\d+))?", re.IGNORECASE)
_VERSION_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Program:
    """One of the programs."""

    name: str
    title: str
    executables: tuple[str, ...]
    """Its possible names, the preferred one first."""
    minimum: Version
    pinned: str
    """The version that is installed by default."""
    image: str
    """The container image, with `{version}`."""
    archive_url: str
    """The URL of a release, with `{version}`, `{system}` and `{machine}`."""
    checksums_url: str
    """The publisher's list of SHA-256 checksums of a release."""
    version_options: tuple[tuple[str, ...], ...] = (("--version",),)
    """Options that may print its version, tried in order."""

    def release(self, system: str, machine: str, version: str | None = None) -> tuple[str, str]:
        """Return the URLs of a release's archive and checksums; by default of the pinned version."""
        words = {"version": version or self.pinned, "system": system, "machine": machine}
        return self.archive_url.format(**words), self.checksums_url.format(**words)


PROGRAMS: Final[dict[str, Program]] = {
    program.name: program
    for program in (
        Program(
            "prometheus",
            "Prometheus",
            ("prometheus",),
            (2, 30, 0),
            "3.14.0",
            "prom/prometheus:v{version}",
            "https://github.com/prometheus/prometheus/releases/download/v{version}/"
            "prometheus-{version}.{system}-{machine}.tar.gz",
            "https://github.com/prometheus/prometheus/releases/download/v{version}/sha256sums.txt",
        ),
        Program(
            "tempo",
            "Tempo",
            ("tempo",),
            (2, 4, 0),  # the first that finds the newest traces: `with (most_recent=true)`
            "3.0.3",
            "grafana/tempo:{version}",
            "https://github.com/grafana/tempo/releases/download/v{version}/tempo_{version}_{system}_{machine}.tar.gz",
            "https://github.com/grafana/tempo/releases/download/v{version}/SHA256SUMS",
        ),
        Program(
            "grafana",
            "Grafana",
            ("grafana", "grafana-server"),
            (10, 0, 0),
            "13.2.2",
            "grafana/grafana:{version}",
            "https://dl.grafana.com/oss/release/grafana-{version}.{system}-{machine}.tar.gz",
            "https://dl.grafana.com/oss/release/grafana-{version}.{system}-{machine}.tar.gz.sha256",
            version_options=(("--version",), ("server", "-v"), ("-v",)),
        ),
    )
}
"""By name, in the order in which they are started."""


@dataclass(frozen=True, slots=True)
class FoundProgram:
    """A program on this machine that can be used."""

    program: Program
    path: Path
    version: Version

    @property
    def version_text(self) -> str:
        """The version with dots."""
        return _text(self.version)


def programs_directory(directory: Path, install_dir: str | Path | None = None) -> Path:
    """Return where `server install` installs programs: `stack.install_dir`, else a folder in the data directory."""
    return directory / "stack" / "programs" if install_dir is None else Path(install_dir).expanduser().absolute()


def parse_version(text: str) -> Version | None:
    """Return the version in a program's `--version` output; None if there is none.

    >>> parse_version("prometheus, version 2.42.0+ds (branch: debian/sid)"), parse_version("Version 10.4.1 (commit: 1)")
    ((2, 42, 0), (10, 4, 1))
    """
    match = _VERSION.search(text)
    if match is None:
        return None
    major, minor, patch = match.groups(default="0")
    return int(major), int(minor), int(patch)


def find_program(program: Program, binary_path: str | None, home: Path) -> FoundProgram:
    """Return a program: at `binary_path`, else in the folder of installed programs, else on PATH.

    Raises:
        MissingProgramError: it is missing or too old. A program given by path is never replaced by another.
    """
    if binary_path is not None:
        # Services are started in the stack's directory, where a relative path would mean another file.
        path = Path(binary_path).expanduser().absolute()
        if not _is_executable(path):
            raise MissingProgramError(
                f"{program.title} cannot be started: {path} is not an executable file. "
                f"Correct stack.{program.name}.binary_path, or leave it out."
            )
        return _checked(program, path)
    refusals = []
    for path in _candidates(program, home):
        try:
            return _checked(program, path)
        except MissingProgramError as error:
            refusals.append(str(error))
    if refusals:
        raise MissingProgramError(refusals[0])
    raise MissingProgramError(f"{program.title} {_text(program.minimum)} or newer is missing. {how_to_get(program)}")


def how_to_get(program: Program) -> str:
    """Return how to get a program, with and without internet access."""
    archive, sums = (url.rpartition("/")[2] for url in program.release("linux", "amd64"))
    return (
        f"Run `rl-insight server install`; without internet access, copy {archive} and {sums} to a directory and run "
        f"`rl-insight server install --local-archive DIRECTORY`; or set stack.{program.name}.binary_path; or "
        f"disable it with stack.{program.name}.enabled=false."
    )


def _candidates(program: Program, home: Path) -> list[Path]:
    installed = home / program.name
    found = [installed / place / name for name in program.executables for place in ("", "bin")]
    found += [Path(path) for name in program.executables if (path := shutil.which(name)) is not None]
    return [path.absolute() for path in found if _is_executable(path)]


def _checked(program: Program, path: Path) -> FoundProgram:
    versions = (parse_version(ask(path, *options)) for options in program.version_options)
    version = next(filter(None, versions), None)
    if version is None:
        raise MissingProgramError(
            f"{path} cannot be used as {program.title}: it does not print its version. {how_to_get(program)}"
        )
    if version < program.minimum:
        raise MissingProgramError(
            f"{path} cannot be used as {program.title}: it has version {_text(version)}, "
            f"{_text(program.minimum)} or newer is needed. {how_to_get(program)}"
        )
    return FoundProgram(program, path, version)


def ask(path: Path, *options: str) -> str:
    """Return a program's version output; empty if it cannot be run."""
    try:
        done = run_program([str(path), *options], _VERSION_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def run_program(command: Sequence[str], timeout_s: float | None) -> subprocess.CompletedProcess[str]:
    """Run one of the user's programs and return what it printed.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it takes too long.
    """
    return subprocess.run(  # noqa: S603 -- found on the user's PATH
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _text(version: Version) -> str:
    return ".".join(map(str, version))
