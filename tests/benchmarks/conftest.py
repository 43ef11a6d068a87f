import itertools
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable_benchmarks(monkeypatch):
    """The benchmarks are not an installed package: they run from the root of the repository."""
    monkeypatch.syspath_prepend(str(ROOT))


_numbers = itertools.count()


@pytest.fixture
def make_package(tmp_path, monkeypatch):
    """Make a package of fake benchmarks from `module=source`; returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(**modules):
        name = f"fake_benchmarks_{next(_numbers)}"
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        for module, source in modules.items():
            (folder / f"{module}.py").write_text(
                "from benchmarks.harness import Figure, SkipBenchmark\n" + textwrap.dedent(source)
            )
        return name

    yield make
    for name in [name for name in sys.modules if name.startswith("fake_benchmarks_")]:
        del sys.modules[name]
