"""The wheel and the source distribution, actually built and installed."""

from __future__ import annotations

import doctest
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from tests.packaging.interpreters import interpreters, new_environment

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


ADDRESS = "https://example.org/team/rl-insight"


def _metadata(source, **environment):
    """The metadata of a distribution built from these sources."""
    variables = {name: value for name, value in os.environ.items() if name != "RL_INSIGHT_PROJECT_URL"}
    done = _run(sys.executable, "-m", "hatchling", "metadata", cwd=source, env=variables | environment)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def test_links_of_the_description_lead_into_the_repository():
    metadata = _metadata(ROOT, RL_INSIGHT_PROJECT_URL=f"{ADDRESS}/")
    links = re.findall(r"\]\(([^)]+)\)", metadata["readme"]["text"])
    assert f"{ADDRESS}/raw/HEAD/docs/pictures/timeline-dark.png" in links
    for link in [*links, *metadata["urls"].values()]:
        path = re.sub(f"^{ADDRESS}/?(issues|(blob|raw)/HEAD/)?", "", link)
        assert (ROOT / path).exists(), link
    assert len(links) == len(re.findall(r"\]\([^)]+\)", (ROOT / "README.md").read_text())) > 30


def test_without_an_address_the_description_is_the_readme_and_none_is_invented():
    metadata = _metadata(ROOT)
    assert "urls" not in metadata
    assert metadata["readme"]["text"] == (ROOT / "README.md").read_text()
    assert "give the address of the repository" in _metadata(ROOT, RL_INSIGHT_PROJECT_URL="rl-insight")


def test_a_wheel_made_of_the_source_distribution_has_its_links(tmp_path):
    options = {"RL_INSIGHT_PROJECT_URL": ADDRESS, "RL_INSIGHT_WITHOUT_PAGE": "1"}
    built = _build("sdist", ROOT, tmp_path, **options)
    assert built.returncode == 0, built.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    ours = _metadata(ROOT, RL_INSIGHT_PROJECT_URL=ADDRESS)
    assert [_metadata(source)[key] for key in ("urls", "readme")] == [ours["urls"], ours["readme"]]


def _module(path):
    loader = SourceFileLoader(path.stem, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.stem, loader))
    loader.exec_module(module)
    return module


def test_links_are_made_absolute_as_documented():
    results = doctest.testmod(_module(ROOT / "hatch_build.py"))
    assert results.attempted > results.failed == 0


def test_a_release_says_what_is_missing_before_an_upload():
    advice = _module(ROOT / "scripts" / "release").advice
    assert "NO PROJECT ADDRESS" in next(advice("1.0.0", ""))
    assert "development version" in " ".join(advice("1.0.0.dev0", ADDRESS))
    assert [line for line in advice("1.0.0", ADDRESS) if "v1.0.0" not in line] == []


def _release(directory, address=""):
    program = [sys.executable, ROOT / "scripts" / "release", "--allow-changes", "--directory", directory]
    return _run(*program, env={**os.environ, "RL_INSIGHT_PROJECT_URL": address})


@pytest.mark.slow
@pytest.mark.usefixtures("report_bundle")
def test_two_releases_of_one_commit_are_equal_and_pass_the_checks_of_the_index(tmp_path):
    for module in ("twine", "check_wheel_contents"):
        pytest.importorskip(module)
    first, second = (_release(tmp_path / name, ADDRESS) for name in ("first", "second"))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    wheel, sdist = sorted((tmp_path / "first").iterdir())
    for file in (wheel, sdist):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert f"{digest}  {file.name}" in first.stdout
        assert f"{digest}  {file.name}" in second.stdout
    assert f"twine upload {wheel} {sdist}" in first.stdout
    assert "NO PROJECT ADDRESS" not in first.stdout
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        assert f"Project-URL: Homepage, {ADDRESS}\n" in archive.read(name).decode()


@pytest.mark.parametrize("parent", ["build", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tmp", "dist"))])
def test_sdist_is_small_wherever_it_is_built(tmp_path, parent):
    """A pattern of .gitignore that matches the path of the checkout must not include ignored folders."""
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


def test_build_without_npm_fails_unless_the_page_is_optional(tmp_path):
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
# What a Ray job's hub runs, in an environment like this.
from rl_insight.collector import Collector
from rl_insight.errors import InsightError
assert b"rl_insight_monitor_collector_processes" in Collector().metrics_page()[0]
try:
    insight.open_run("none", data_dir="nowhere")
except InsightError as error:
    assert 'pip install "rl-insight[server]"' in str(error)
else:
    raise AssertionError("run files are read without DuckDB")
"""


INTERPRETERS = interpreters()
BETWEEN = INTERPRETERS[1:-1]
"""`make soak` takes these too."""


@pytest.mark.parametrize(
    ("version", "program"),
    [pytest.param(*one, id=one[0], marks=[pytest.mark.slow] if one in BETWEEN else []) for one in INTERPRETERS],
)
def test_training_side_installs_and_records_on_every_interpreter(tmp_path, wheel, version, program):
    programs = new_environment(tmp_path / "environment", program, wheel)
    used = _run(programs / "python", "-c", _USES_EVERYTHING, cwd=tmp_path)
    assert used.returncode == 0, used.stderr
    assert list((tmp_path / "events").rglob("*"))
    # Only the training side is installed: the command line says so in one sentence.
    command = _run(programs / "rl-insight", "--version")
    assert command.returncode == 2
    assert 'pip install "rl-insight[server]"' in command.stderr
    assert "Traceback" not in command.stderr
    packages = tmp_path / "environment" / "lib" / f"python{version}" / "site-packages"
    assert sum(file.stat().st_size for file in packages.rglob("*") if file.is_file()) <= 25 * MEGABYTE


_IMPORTS_EVERY_MODULE = """
import importlib, pkgutil
import rl_insight
for found in pkgutil.walk_packages(rl_insight.__path__, "rl_insight.", onerror=lambda name: None):
    if not found.name.startswith("rl_insight.demo.") and not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            assert not error.name.startswith("rl_insight"), error
"""


def test_python_3_10_has_all_but_run_files_and_the_server_and_says_so(tmp_path, wheel):
    program = dict(INTERPRETERS).get("3.10") or pytest.skip("there is no Python 3.10 here")
    # Of the extra `server`, what the command line is made of; the rest takes a minute, and DuckDB is not there anyway.
    programs = new_environment(tmp_path / "environment", program, wheel, "typer>=0.20", "rich>=13")
    imported = _run(programs / "python", "-c", _IMPORTS_EVERY_MODULE)
    assert imported.returncode == 0, imported.stderr
    assert _run(programs / "rl-insight", "--version").returncode == 0
    for words in (["runs", "list"], ["server", "start"], ["hotspots"]):
        refused = _run(programs / "rl-insight", *words, "--data-dir", tmp_path)
        assert refused.returncode == 2, refused.stderr
        assert "need Python 3.11 or newer" in refused.stderr
        assert "Traceback" not in refused.stderr


def _run(*words, **options):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, **options)


def test_the_demo_runs_from_an_installed_wheel(tmp_path, wheel):
    """In a folder without a checkout; dependencies come from this interpreter."""
    environment = tmp_path / "environment"
    python = new_environment(environment, sys.executable, "--no-deps", wheel) / "python"
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
    origin = [str(python), "-c", "import rl_insight; print(rl_insight.__file__)"]
    assert str(packages) in subprocess.run(origin, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
