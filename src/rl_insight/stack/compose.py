"""The stack as containers, through Docker Compose."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_insight.stack.errors import StackError
from rl_insight.stack.programs import PROGRAMS, run_program
from rl_insight.stack.render import Layout, fill, write_marked
from rl_insight.stack.service import ServiceSpec

_PROBE_TIMEOUT_S = 10.0
_NOBODY = 65534
CONTAINER_ROOT = Path("/rl-insight-stack")
"""Where containers see the stack's directory: their user could not access it below /root."""


def engine_answers() -> bool:
    """Return whether `docker compose` is installed and a container engine responds to it."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    for command in ([docker, "version", "--format", "{{.Server.Version}}"], [docker, "compose", "version"]):
        try:
            if run_program(command, _PROBE_TIMEOUT_S).returncode != 0:
                return False
        except (OSError, subprocess.TimeoutExpired):
            return False
    return True


def project_name(root: Path) -> str:
    """Return the name of the Compose project of a stack, one per data directory."""
    return f"rl-insight-{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:10]}"


def container_user() -> str:
    """Return the user that containers run as: the caller, or uid 65534 if the caller is root."""
    return f"{os.getuid()}:{os.getgid()}" if os.getuid() else f"{_NOBODY}:{_NOBODY}"


def render_compose(layout: Layout, specs: Sequence[ServiceSpec], extra_mounts: Sequence[Path] = ()) -> None:
    """Write the Compose file; the containers see the stack's directory at `CONTAINER_ROOT`."""
    root = layout.root.resolve()
    volumes: list[dict[str, Any]] = [{"type": "bind", "source": str(root), "target": str(CONTAINER_ROOT)}]
    volumes += [
        {"type": "bind", "source": str(mount), "target": str(mount), "read_only": True} for mount in extra_mounts
    ]
    services = []
    before: list[str] = []
    for spec in specs:
        program = PROGRAMS[spec.name]
        services.append(
            _service(
                spec.name,
                image=program.image.format(version=program.pinned),
                entrypoint=spec.command[:1],
                command=spec.command[1:],
                environment=dict(spec.environment),
                volumes=volumes + (_var_tempo(layout) if spec.name == "tempo" else []),
                healthcheck=_healthcheck(spec),
                depends_on={name: {"condition": "service_healthy"} for name in before},
            )
        )
        before.append(spec.name)
    head = fill("compose.yaml", project=project_name(layout.root))
    write_marked(layout.compose_file, head + "".join(services))


def _var_tempo(layout: Layout) -> list[dict[str, Any]]:
    # Some parts of Tempo write there by default, and the rest of the image is read-only.
    return [{"type": "bind", "source": str(layout.data("tempo").resolve()), "target": "/var/tempo"}]


def _service(name: str, **values: Any) -> str:
    text = fill("compose-service.yaml", raw={"name": name}, user=container_user(), **values)
    # Compose would treat a dollar sign as a variable.
    return text.replace("$", "$$")


def _healthcheck(spec: ServiceSpec) -> dict[str, Any]:
    ready = f"{spec.url}{spec.ready_path}"
    # Tempo's image has neither a shell nor wget, but since 3.0 the program has a health check.
    ask = (
        ["/tempo", "-health", f"-health.url={ready}"]
        if spec.name == "tempo"
        else ["wget", "-q", "-O", "/dev/null", ready]
    )
    return {
        "test": ["CMD", *ask],
        "interval": "5s",
        "timeout": "5s",
        "retries": 24,
        "start_period": "10s",
    }


def own_directories(layout: Layout) -> None:
    """Change the owner of the stack's directory to uid 65534 if the caller is root: containers never run as root."""
    if os.getuid():
        return
    for path in (layout.root, *layout.root.rglob("*")):
        os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)


@dataclass(frozen=True, slots=True)
class ComposeProject:
    """The containers of one stack."""

    file: Path
    name: str

    def up(self, timeout_s: float) -> None:
        """Start the containers and wait until all are healthy.

        Raises:
            StackError: they do not become healthy.
        """
        self._run("up", "--detach", "--wait", "--wait-timeout", str(int(timeout_s)), timeout_s=None)

    def down(self, timeout_s: float) -> None:
        """Stop and remove the containers; their data is kept."""
        self._run("down", "--timeout", str(int(timeout_s)), timeout_s=timeout_s * 6 + 60)

    def states(self) -> dict[str, str]:
        """Return the state of each container by service, such as `running`."""
        text = self._run("ps", "--all", "--format", "json", timeout_s=_PROBE_TIMEOUT_S)
        rows: list[dict[str, Any]] = []
        # Newer versions print one object per line, older ones a list.
        for line in text.splitlines():
            if line.strip():
                row = json.loads(line)
                rows += row if isinstance(row, list) else [row]
        return {row["Service"]: str(row["State"]) for row in rows}

    def _run(self, *words: str, timeout_s: float | None) -> str:
        command = ["docker", "compose", "--project-name", self.name, "--file", str(self.file), *words]
        try:
            done = run_program(command, timeout_s)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StackError(f"`docker compose {words[0]}` failed: {error}.") from error
        if done.returncode != 0:
            raise StackError(f"`docker compose {words[0]}` failed: {done.stderr.strip()[-2000:]}")
        return done.stdout
