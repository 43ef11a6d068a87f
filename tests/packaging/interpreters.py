"""The Python interpreters on this machine, and their environments."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@functools.cache
def interpreters():
    """Every CPython that can be found, as (version, path)."""
    found = {}
    for minor in range(10, 15):
        program = shutil.which(f"python3.{minor}")
        candidates = [Path(program)] if program else []
        candidates += sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        for candidate in candidates:
            probe = subprocess.run([str(candidate), "-m", "venv", "--help"], capture_output=True, check=False)
            if probe.returncode == 0:
                found[f"3.{minor}"] = str(candidate)
                break
    return sorted(found.items())


def run_program(*words, **environment):
    """Run a program that must succeed; returns its output."""
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def uv_program():
    """The path of uv, which creates an environment in a second; pip takes half a minute."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return found or pytest.skip("uv is not installed: `make setup` installs it")


def new_environment(directory, python, *packages):
    """Create an environment with packages, compiled as by pip; returns its folder of executables."""
    uv = uv_program()
    run_program(uv, "venv", "-q", "--python", python, directory)
    programs = directory / "bin"
    run_program(uv, "pip", "install", "-q", "--compile-bytecode", "--python", programs / "python", *packages)
    return programs
