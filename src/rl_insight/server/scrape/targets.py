"""The registered scrape targets, kept across restarts."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import msgspec

from rl_insight.errors import ConfigError
from rl_insight.files import read_or_set_aside, replace_file
from rl_insight.schema.names import RESERVED_LABELS, label_name

DEFAULT_JOB = "default"
MAX_TARGETS = 10_000
_MAX_TEXT = 500
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class Target(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An endpoint that serves metrics in Prometheus' format."""

    url: str
    """The full URL, unique among targets."""
    job_name: str = DEFAULT_JOB
    labels: dict[str, str] = {}
    """Attached to all its metrics."""
    run_id: str = ""
    """The run that stores its metrics; without one, only its health is checked."""
    project: str = ""
    experiment_name: str = ""
    owner: str = ""
    """The program that registered itself; a registration replaces its earlier ones."""
    lease_s: float = 0.0
    """Removed if its owner does not register it again within this time; 0 keeps it."""
    forwards: bool = False
    """It also sends its metrics here as batches: only its own health is stored, so that nothing is stored twice."""
    is_client: bool = False
    """A hub of rl-insight 0.3.0: its metrics have our namespace as prefix, and project and experiment as labels."""
    client_host: str = ""
    """The host of a client that named no run: the run is that of the experiment its data name, empty until known."""
    added_ns: int = 0

    @property
    def instance(self) -> str:
        """The target as ``host:port``: the label `instance` in Prometheus."""
        return urlsplit(self.url).netloc


class _TargetFile(msgspec.Struct):
    version: int = 1
    targets: list[Target] = []


def target_url(address: str) -> str:
    """Return the URL of a target given as `host:port` or as a URL.

    >>> target_url("node7:8000"), target_url("http://node7:8000/"), target_url("https://node7/custom")
    ('http://node7:8000/metrics', 'http://node7:8000/metrics', 'https://node7/custom')

    Raises:
        ConfigError: it is neither of them.
    """
    text = address.strip()
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        usable = parts.scheme in {"http", "https"} and _is_host(host) and port != 0 and not parts.fragment
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or not url.isprintable() or not url.isascii() or " " in url:
        raise ConfigError(
            f"{address[:_MAX_TEXT]!r} is not a scrape target: write host:port, or a URL with http or https."
        )
    if len(url) > _MAX_TEXT:
        raise ConfigError(f"a scrape target of {len(url)} characters is too long: the limit is {_MAX_TEXT}.")
    return parts._replace(path=parts.path if parts.path not in {"", "/"} else "/metrics").geturl()


def _is_host(host: str) -> bool:
    if _HOST.fullmatch(host):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class TargetBook:
    """The targets, in memory and in a file that is rewritten at each change.

    Leases are kept in memory only: they start over when the server restarts.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._changing = Lock()
        """Held while a change is written to the file."""
        self._lock = Lock()
        """Held for moments only: the event loop needs it, too."""
        self._targets: dict[str, Target] = {}
        self._renewed_s: dict[str, float] = {}
        for target in read_or_set_aside(path, _TargetFile()).targets:
            self._targets[target.url] = target
            self._renewed_s[target.url] = clock()

    def list(self) -> list[Target]:
        """Return all targets, the oldest first."""
        with self._lock:
            return list(self._targets.values())

    def add(self, targets: Sequence[Target], owner: str = "") -> int:
        """Register targets, replacing known ones; return how many are new.

        Args:
            targets: the targets to scrape.
            owner: the program that registers itself; its other targets are removed.

        Raises:
            ConfigError: there would be too many.
            OSError: the file cannot be written, and nothing has changed.
        """
        with self._changing:
            stays = {target.url for target in targets}
            changed = {
                url: known for url, known in self._targets.items() if url in stays or not owner or known.owner != owner
            }
            for target in targets:
                known = self._targets.get(target.url)
                since = known.added_ns if known else time.time_ns()
                changed[target.url] = msgspec.structs.replace(target, owner=owner, added_ns=since)
            if len(changed) > MAX_TARGETS:
                raise ConfigError(f"{len(changed)} scrape targets are too many: the limit is {MAX_TARGETS}.")
            new = len(stays - self._targets.keys())
            self._replace(changed)
            with self._lock:
                self._renewed_s.update(dict.fromkeys(stays, self._clock()))
            return new

    def assign(self, target: Target) -> None:
        """Set the run of a client's target, with its project and experiment, unless its registration was replaced."""
        with self._changing:
            known = self._targets.get(target.url)
            if known is None or known.client_host != target.client_host:
                return
            run = {"run_id": target.run_id, "project": target.project, "experiment_name": target.experiment_name}
            self._replace({**self._targets, target.url: msgspec.structs.replace(known, **run)})

    def renew(self, url: str) -> None:
        """Renew the lease of a target that answered."""
        with self._lock:
            if url in self._renewed_s:
                self._renewed_s[url] = self._clock()

    def remove(self, urls: Sequence[str]) -> int:
        """Remove targets; return how many there were."""
        with self._changing:
            return self._remove(set(urls))

    def forget_expired(self) -> int:
        """Remove the targets whose lease has expired; return how many."""
        with self._changing:
            now_s = self._clock()
            with self._lock:
                expired = {
                    url
                    for url, target in self._targets.items()
                    if target.lease_s and now_s - self._renewed_s[url] > target.lease_s
                }
            return self._remove(expired)

    def _remove(self, urls: set[str]) -> int:
        changed = {url: target for url, target in self._targets.items() if url not in urls}
        removed = len(self._targets) - len(changed)
        self._replace(changed)
        return removed

    def _replace(self, changed: dict[str, Target]) -> None:
        # A renewed lease is not written to the file: hubs renew theirs all the time.
        if changed == self._targets:
            return
        self._save(changed)
        with self._lock:
            self._targets = changed
            self._renewed_s = {url: self._renewed_s.get(url, self._clock()) for url in changed}

    def _save(self, targets: Mapping[str, Target]) -> None:
        content = msgspec.json.format(msgspec.json.encode(_TargetFile(targets=list(targets.values()))), indent=2)
        replace_file(self.path, content + b"\n", mode=0o600, durable=True)


def make_targets(
    addresses: Sequence[str],
    *,
    job_name: str | None = None,
    labels: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    run_id: str | None = None,
    project: str = "",
    experiment_name: str = "",
    **more: Any,
) -> list[Target]:
    """Return the targets of one registration; `more` are other fields of `Target`.

    Raises:
        ConfigError: an address is invalid, or the number of label sets differs from that of addresses.
    """
    sets: Sequence[Mapping[str, str]]
    sets = [labels or {}] * len(addresses) if labels is None or isinstance(labels, Mapping) else labels
    if len(sets) != len(addresses):
        raise ConfigError(
            f"{len(sets)} sets of labels do not match {len(addresses)} addresses: give one set, or one per address."
        )
    return [
        Target(
            url=target_url(address),
            job_name=(job_name or DEFAULT_JOB)[:_MAX_TEXT],
            labels={
                label_name(key): str(value)[:_MAX_TEXT] for key, value in own.items() if key not in RESERVED_LABELS
            },
            run_id=(run_id or "")[:_MAX_TEXT],
            project=project[:_MAX_TEXT],
            experiment_name=experiment_name[:_MAX_TEXT],
            **more,
        )
        for address, own in zip(addresses, sets, strict=True)
    ]
