"""Names across the package: a class name means one thing, and what is private stays in its package."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import rl_insight

ROOT = Path(rl_insight.__file__).parent
DOCUMENTS = Path(__file__).parents[1] / "docs"


def parsed():
    for path in sorted(ROOT.rglob("*.py")):
        yield ".".join(("rl_insight", *path.relative_to(ROOT).with_suffix("").parts)), ast.parse(path.read_text())


def test_a_class_name_is_defined_once_even_without_its_underscore():
    homes = defaultdict(list)
    for module, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name.removeprefix("_")].append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_private_modules_are_imported_by_their_own_package_alone():
    strangers = []
    for module, tree in parsed():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            for target in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                package, _, name = target.rpartition(".")
                is_private = name.startswith("_") and not name.startswith("__") and is_module(target)
                if is_private and not module.startswith(f"{package}."):
                    strangers.append(f"{module} imports {target}")
    assert strangers == []


def is_module(name):
    path = ROOT.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def test_what_documents_import_is_listed_as_public():
    documents = {path.name: path.read_text(encoding="utf-8") for path in DOCUMENTS.glob("*.md")}
    section = documents["architecture.md"].split("## What other programs may import")[1].split("\n## ")[0]
    listed = set(re.findall(r"`(rl_insight[\w.]*)`", section))
    shown = re.findall(r"^ *(?:>>> )?(?:from|import) (rl_insight[\w.]*)", "\n".join(documents.values()), re.MULTILINE)
    assert set(shown) == listed
