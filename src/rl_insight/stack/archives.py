"""Archives of programs: verified against their checksums, and unpacked without trusting their paths."""

from __future__ import annotations

import hashlib
import re
import shutil
import tarfile
from pathlib import Path

from rl_insight.stack.errors import StackError

_SUM_LINE = re.compile(r"^([0-9a-fA-F]{64})(?:\s+[ *]?(\S.*?))?\s*$")
_CHUNK = 1024 * 1024
_MAX_UNPACKED_BYTES = 4 * 1024**3
_MAX_MEMBERS = 100_000
_CHECKSUM_FILES = ("SHA256SUMS", "sha256sums.txt", "SHA256SUMS.txt", "checksums.txt")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 checksum of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def parse_checksums(text: str) -> dict[str, str]:
    """Return checksums by file name from the output of `sha256sum`; a checksum without a name has the key "".

    >>> parse_checksums("a" * 64 + "  ./tempo.tar.gz")["tempo.tar.gz"] == "a" * 64
    True
    """
    matches = (_SUM_LINE.match(line) for line in text.splitlines())
    return {(match[2] or "").rpartition("/")[2]: match[1].lower() for match in matches if match is not None}


def checksum_beside(archive: Path) -> str | None:
    """Return the checksum of an archive from the checksum files next to it; None if none of them lists it."""
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
            f"{archive.name} is damaged or was changed: its SHA-256 checksum is {actual}, not {expected.lower()}. "
            "Delete it and download it again."
        )


def unpack(archive: Path, target: Path) -> None:
    """Unpack a `.tar.gz` into a new directory, without its top-level directory if it has only one.

    Raises:
        StackError: it cannot be read, is too large, or contains a device or a path outside `target`.
    """
    if not hasattr(tarfile, "data_filter"):
        raise StackError(f"{archive} cannot be unpacked safely by this Python: update it to 3.11.4 or newer.")
    try:
        with tarfile.open(archive, "r:*") as tar:
            _check_size(archive, tar)
            target.mkdir(parents=True)
            tar.extractall(target, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        shutil.rmtree(target, ignore_errors=True)
        raise StackError(f"{archive} cannot be unpacked: {error}.") from error
    _drop_top_directory(target)


def _check_size(archive: Path, tar: tarfile.TarFile) -> None:
    size = 0
    for count, member in enumerate(tar, 1):
        size += member.size
        if size > _MAX_UNPACKED_BYTES or count > _MAX_MEMBERS:
            raise StackError(f"{archive} cannot be unpacked: it is larger than any release of these programs.")


def _drop_top_directory(target: Path) -> None:
    entries = list(target.iterdir())
    if len(entries) != 1 or not entries[0].is_dir() or entries[0].is_symlink():
        return
    top = entries[0].rename(target / ".top")
    for entry in list(top.iterdir()):
        entry.rename(target / entry.name)
    top.rmdir()
