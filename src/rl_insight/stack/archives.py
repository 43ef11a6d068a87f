"""Archives of programs: checked against their checksums, and unpacked without trusting what they say about paths."""

from __future__ import annotations

import hashlib
import re
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from rl_insight.stack.errors import StackError

_SUM_LINE = re.compile(r"^([0-9a-fA-F]{64})(?:\s+[ *]?(\S.*?))?\s*$")
_CHUNK = 1024 * 1024
_MAX_UNPACKED_BYTES = 4 * 1024**3
_MAX_MEMBERS = 100_000
_CHECKSUM_FILES = ("SHA256SUMS", "sha256sums.txt", "SHA256SUMS.txt", "checksums.txt")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 sum of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def parse_checksums(text: str) -> dict[str, str]:
    """Return file names with their sums from a list as `sha256sum` writes it; a lone sum stands under "".

    >>> parse_checksums("a" * 64 + "  ./tempo.tar.gz")["tempo.tar.gz"] == "a" * 64
    True
    """
    matches = (_SUM_LINE.match(line) for line in text.splitlines())
    return {(match[2] or "").rpartition("/")[2]: match[1].lower() for match in matches if match is not None}


def checksum_beside(archive: Path) -> str | None:
    """Return the sum of an archive as the files that lie beside it have it; None when none of them knows it."""
    own = archive.with_name(archive.name + ".sha256")
    for path in (own, *(archive.with_name(name) for name in _CHECKSUM_FILES)):
        if not path.is_file():
            continue
        sums = parse_checksums(path.read_text(encoding="utf-8", errors="replace"))
        found = sums.get(archive.name) or (sums.get("") if path == own else None)
        if found is not None:
            return found
    return None


def verify(archive: Path, expected: str) -> None:
    """Compare an archive with its checksum.

    Raises:
        StackError: they differ.
    """
    actual = sha256_of(archive)
    if actual != expected.lower():
        raise StackError(
            f"{archive.name} is not what its publisher made: its SHA-256 sum is {actual}, not {expected.lower()}. "
            "Delete it and get it again."
        )


def unpack(archive: Path, target: Path) -> None:
    """Unpack a `.tar.gz` into a new directory, without the one directory that usually stands at its top.

    Raises:
        StackError: it cannot be read, or something in it would land outside of `target`, is a device, or is too much.
    """
    try:
        with tarfile.open(archive, "r:*") as tar:
            members = _checked_members(archive, tar)
            target.mkdir(parents=True)
            tar.extractall(target, members=members, **_filter_argument())  # noqa: S202 -- every member was checked
    except (tarfile.TarError, EOFError, OSError) as error:
        raise StackError(f"{archive} cannot be unpacked: {error}.") from error
    _drop_top_directory(target)


def _filter_argument() -> dict[str, Any]:
    # The second line of defence, where this Python has it.
    return {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def _checked_members(archive: Path, tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    members: list[tarfile.TarInfo] = []
    size = 0
    links: set[str] = set()
    for member in tar:
        _check_member(archive, member, links)
        size += member.size
        members.append(member)
        if size > _MAX_UNPACKED_BYTES or len(members) > _MAX_MEMBERS:
            raise StackError(f"{archive} cannot be unpacked: it is larger than any release of these programs.")
    return members


def _check_member(archive: Path, member: tarfile.TarInfo, links: set[str]) -> None:
    path = _normal(member.name)
    inside = path is not None
    if inside and member.issym():
        inside = _normal(str(PurePosixPath(member.name).parent / member.linkname)) is not None
    elif inside and member.islnk():
        inside = _normal(member.linkname) is not None
    # A link may not lead a later member out of the target either.
    if path is not None and any(parent in links for parent in _parents(path)):
        inside = False
    if not inside or member.linkname.startswith("/"):
        raise StackError(f"{archive} cannot be unpacked: {member.name!r} in it points outside of its own directory.")
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise StackError(f"{archive} cannot be unpacked: {member.name!r} in it is neither a file nor a directory.")
    if member.issym() and path is not None:
        links.add(path)


def _normal(name: str) -> str | None:
    """Return a path without `.` and `..`; None when it leaves the directory it starts in."""
    if name.startswith("/") or "\\" in name or "\0" in name:
        return None
    parts: list[str] = []
    for part in PurePosixPath(name).parts:
        if part == "..":
            if not parts:
                return None
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _drop_top_directory(target: Path) -> None:
    entries = list(target.iterdir())
    if len(entries) != 1 or not entries[0].is_dir() or entries[0].is_symlink():
        return
    top = entries[0].rename(target / ".top")
    for entry in list(top.iterdir()):
        entry.rename(target / entry.name)
    top.rmdir()
