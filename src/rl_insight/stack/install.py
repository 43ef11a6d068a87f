"""Installs the programs in the data directory: from local archives, or from their publishers."""

from __future__ import annotations

import platform
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_insight.stack.archives import checksum_beside, parse_checksums, unpack, verify
from rl_insight.stack.download import fetch, fetch_text, forget_partial
from rl_insight.stack.errors import MissingProgramError, StackError
from rl_insight.stack.programs import PROGRAMS, FoundProgram, Program, find_program, programs_directory

_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}

ProgressOf = Callable[[str, int, int | None], None]
"""Called with a program's title, the bytes downloaded, and the total if it is known."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The result for one program."""

    title: str
    version: str
    path: Path
    is_new: bool


def platform_words() -> tuple[str, str]:
    """Return this machine as releases name it, such as ("linux", "amd64").

    Raises:
        StackError: there are no releases for it.
    """
    machine = _MACHINES.get(platform.machine().lower())
    if machine is None or sys.platform not in {"linux", "darwin"}:
        raise StackError(
            f"there are no archives for {sys.platform} on {platform.machine()}: install the programs yourself and set "
            "stack.<name>.binary_path."
        )
    return sys.platform, machine


def install_programs(
    directory: Path,
    *,
    install_dir: str | Path | None = None,
    names: Iterable[str] = tuple(PROGRAMS),
    local_archive: Path | None = None,
    force: bool = False,
    versions: Mapping[str, str] | None = None,
    mirror: str | None = None,
    allow_unverified: bool = False,
    progress: ProgressOf | None = None,
) -> list[Installation]:
    """Install programs below a data directory; those already installed are kept.

    Args:
        directory: the server's data directory.
        install_dir: where to install them instead.
        names: the programs to install.
        local_archive: a directory with their archives and checksums; without it they are downloaded.
        force: also replace programs that are installed already.
        versions: the versions to download, by name, if not the defaults.
        mirror: a base URL for archives and checksum files.
        allow_unverified: also accept a local archive without a checksum.
        progress: called during downloads.

    Raises:
        MissingProgramError: archives are missing; the message lists all of them.
        StackError: an archive is damaged, or cannot be downloaded.
    """
    home = programs_directory(directory, install_dir)
    chosen = [PROGRAMS[name] for name in names]
    done = {} if force else {program.name: found for program in chosen if (found := _installed(program, home))}
    wanted = [program for program in chosen if program.name not in done]
    archives = _local_archives(wanted, local_archive) if local_archive is not None else {}
    results = []
    for program in chosen:
        if program.name in done:
            found = done[program.name]
            results.append(Installation(program.title, found.version_text, found.path, is_new=False))
            continue
        if local_archive is not None:
            archive = archives[program.name]
            _verify_local(archive, allow_unverified=allow_unverified)
        else:
            archive = _download(program, home, (versions or {}).get(program.name), mirror, progress)
        results.append(_install(program, archive, home))
        if local_archive is None:
            archive.unlink()
    return results


def _installed(program: Program, home: Path) -> FoundProgram | None:
    if not (home / program.name).is_dir():
        return None
    try:
        found = find_program(program, None, home)
    except MissingProgramError:
        return None
    return found if found.path.is_relative_to(home / program.name) else None


def _local_archives(programs: list[Program], place: Path) -> dict[str, Path]:
    if not place.is_dir():
        raise MissingProgramError(f"{place} is not a directory: pass the one that contains the archives.")
    system, machine = platform_words()
    found: dict[str, Path] = {}
    missing = []
    for program in programs:
        pattern = re.compile(rf"{program.name}[-_]v?\d.*{system}.{machine}\.(tar\.gz|tgz)")
        matches = sorted(path for path in place.iterdir() if pattern.fullmatch(path.name) and path.is_file())
        if matches:
            found[program.name] = max(matches, key=_version_key)
        else:
            url, _ = program.release(system, machine)
            missing.append(f"{program.title}, such as {url.rpartition('/')[2]} from {url}")
    if missing:
        raise MissingProgramError(
            f"archives are missing in {place}: {'; '.join(missing)}. Copy them there, each with its checksum file."
        )
    return found


def _version_key(path: Path) -> tuple[tuple[int, ...], str]:
    return tuple(int(number) for number in re.findall(r"\d+", path.name)), path.name


def _verify_local(archive: Path, *, allow_unverified: bool) -> None:
    expected = checksum_beside(archive)
    if expected is not None:
        verify(archive, expected)
    elif not allow_unverified:
        raise StackError(
            f"{archive} cannot be verified: no checksum file is next to it. Save its publisher's list as "
            f"{archive.name}.sha256 or SHA256SUMS, or use --allow-unverified if you trust the archive."
        )


def _download(
    program: Program, home: Path, version: str | None, mirror: str | None, progress: ProgressOf | None
) -> Path:
    url, sums_url = program.release(*platform_words(), version)
    if mirror is not None:
        url, sums_url = (f"{mirror.rstrip('/')}/{one.rpartition('/')[2]}" for one in (url, sums_url))
    archive = home / "downloads" / url.rpartition("/")[2]
    sums = parse_checksums(fetch_text(sums_url))
    expected = sums.get(archive.name) or sums.get("")
    if expected is None:
        raise StackError(f"{archive.name} cannot be verified: {sums_url} does not list it.")
    fetch(url, archive, progress=None if progress is None else lambda *counts: progress(program.title, *counts))
    try:
        verify(archive, expected)
    except StackError:
        archive.unlink()
        forget_partial(archive)
        raise
    return archive


def _install(program: Program, archive: Path, home: Path) -> Installation:
    home.mkdir(parents=True, exist_ok=True)
    fresh = home / f".{program.name}-{uuid.uuid4().hex}"
    old = fresh.with_name(fresh.name + "-old")
    target = home / program.name
    try:
        unpack(archive, fresh)
        if not any((fresh / place / name).is_file() for name in program.executables for place in ("", "bin")):
            raise StackError(f"{archive} does not contain {program.title}: there is no {program.executables[0]} in it.")
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    found = find_program(program, None, home)
    return Installation(program.title, found.version_text, found.path, is_new=True)
