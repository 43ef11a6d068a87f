"""The wheel and the source distribution, built and installed for real."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.interpreters import interpreters

ROOT = Path(__file__).parents[2]
MEGABYTE = 1_000_000


def _build(kind, source, directory, **environment):
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)],
        cwd=source,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, report_bundle):
    directory = tmp_path_factory.mktemp("wheel")
    built = _build("wheel", ROOT, directory)
    assert built.returncode == 0, built.stderr
    return next(directory.glob("*.whl"))


def test_wheel_carries_the_page_and_the_licenses_of_what_is_bundled(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert "rl_insight/server/static/index.html" in names
        assert "rl_insight/server/static/report/report.js" in names
        assert "rl_insight/py.typed" in names
        notices = archive.read("rl_insight/server/static/third-party-licenses.md").decode()
    for package in ("react", "react-dom", "scheduler", "uplot"):
        assert f"## {package}" in notices
    assert notices.count("Permission is hereby granted") >= 3


def test_published_extras_are_those_that_users_install(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()
    assert set(re.findall(r"^Provides-Extra: (.+)$", metadata, re.MULTILINE)) == {
        "fast",
        "grpc",
        "mcp",
        "ray",
        "server",
        "warehouse",
        "zstd",
    }
    assert "Classifier: Typing :: Typed" in metadata
    for minor in range(11, 15):
        assert f"Classifier: Programming Language :: Python :: 3.{minor}" in metadata


def _release(directory):
    program = [sys.executable, str(ROOT / "scripts" / "release"), "--allow-changes", "--directory", str(directory)]
    return subprocess.run(program, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("report_bundle")
def test_two_releases_of_one_commit_are_equal_and_pass_the_checks_of_the_index(tmp_path):
    for module in ("twine", "check_wheel_contents"):
        pytest.importorskip(module)
    first, second = _release(tmp_path / "first"), _release(tmp_path / "second")
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    wheel, sdist = sorted((tmp_path / "first").iterdir())
    for file in (wheel, sdist):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert f"{digest}  {file.name}" in first.stdout
        assert f"{digest}  {file.name}" in second.stdout
    assert f"twine upload {wheel} {sdist}" in first.stdout


@pytest.mark.parametrize("parent", ["tmp", "build", "dist"])
def test_sdist_is_small_wherever_it_is_built(tmp_path, parent):
    """A pattern of .gitignore that matches the path of the checkout must not let ignored folders in."""
    checkout = tmp_path / parent / "checkout"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", str(checkout)], check=True)
    for name in ("pyproject.toml", "hatch_build.py"):
        shutil.copy(ROOT / name, checkout / name)
    (checkout / "web" / "node_modules" / "react").mkdir(parents=True)
    (checkout / "web" / "node_modules" / "react" / "index.js").write_bytes(os.urandom(6 * MEGABYTE))
    # Without npm: building the page takes 20 s, and another test builds it.
    built = _build("sdist", checkout, tmp_path / "out", PATH="/nonexistent", RL_INSIGHT_WITHOUT_PAGE="1")
    assert built.returncode == 0, built.stderr
    archive = next((tmp_path / "out").glob("*.tar.gz"))
    with tarfile.open(archive) as opened:
        names = opened.getnames()
    assert not [name for name in names if "node_modules" in name]
    assert [name for name in names if name.endswith("/src/rl_insight/__init__.py")]
    assert archive.stat().st_size <= 5 * MEGABYTE


def test_build_without_npm_fails_unless_it_is_told_to_do_without_the_page(tmp_path):
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", str(checkout)], check=True)
    for name in ("pyproject.toml", "hatch_build.py"):
        shutil.copy(ROOT / name, checkout / name)
    refused = _build("wheel", checkout, tmp_path / "out", PATH="/nonexistent")
    assert refused.returncode != 0
    assert "npm was not found" in refused.stdout + refused.stderr
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    allowed = _build("wheel", checkout, tmp_path / "out", PATH="/nonexistent", RL_INSIGHT_WITHOUT_PAGE="1")
    assert allowed.returncode == 0, allowed.stderr


_USES_EVERYTHING = """
import rl_insight as insight
insight.init("math", "wheel", {"server": {"backend": "file"}, "file": {"directory": "events"}})
with insight.step(1), insight.trace_state("rollout"), insight.session(task_id="a") as sample:
    with insight.phase("generate"):
        insight.metric_count("tokens", 512, model="policy")
    sample.finalize("accepted", reward=1)
insight.finish()
from rl_insight.hardware.exposition import SeriesReader
assert SeriesReader(["up"]).read(b'up{a="b"} 1 1700000000000')
import sys
heavy = {"duckdb", "numpy", "pyarrow", "fastapi", "typer", "grpc"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize(("version", "program"), interpreters())
def test_training_side_installs_and_records_on_every_interpreter(tmp_path, wheel, version, program):
    environment = tmp_path / "environment"
    subprocess.run([program, "-m", "venv", str(environment)], check=True)
    install = [environment / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel]
    installed = subprocess.run(list(map(str, install)), capture_output=True, text=True, check=False)
    if "Could not find a version" in installed.stderr or "No matching distribution" in installed.stderr:
        pytest.skip(f"the package index does not answer for Python {version}: {installed.stderr[-200:]}")
    assert installed.returncode == 0, installed.stderr
    python = str(environment / "bin" / "python")
    used = subprocess.run([python, "-c", _USES_EVERYTHING], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert used.returncode == 0, used.stderr
    assert list((tmp_path / "events").rglob("*"))
    # Only the training side is installed: the command line says so in one sentence.
    command = subprocess.run(
        [environment / "bin" / "rl-insight", "--version"], capture_output=True, text=True, check=False
    )
    assert command.returncode == 2
    assert 'pip install "rl-insight[server]"' in command.stderr
    assert "Traceback" not in command.stderr
    packages = environment / "lib" / f"python{version}" / "site-packages"
    ours = sum(
        file.stat().st_size
        for file in packages.rglob("*")
        if file.is_file() and file.relative_to(packages).parts[0].split("-")[0] not in {"pip", "setuptools"}
    )
    assert ours <= 25 * MEGABYTE


def test_the_demo_runs_from_an_installed_wheel(tmp_path, wheel):
    """In a folder without a checkout; what the wheel depends on is that of this interpreter."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", str(wheel)]
    subprocess.run(install, check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(shared))
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("RL_INSIGHT_", "PYTHON"))}
    ran = subprocess.run(
        [environment / "bin" / "rl-insight", "demo", "--steps", "3", "--speed", "20", "--exit"],
        cwd=tmp_path,
        env=variables | {"RL_INSIGHT_DATA_DIR": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Live page: http" in ran.stdout
    origin = [python, "-c", "import rl_insight; print(rl_insight.__file__)"]
    assert str(packages) in subprocess.run(origin, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
