"""The prose of the project is plain American technical English: phrases that readers stumble over stay out.

Each pattern has a replacement. Docstrings, comments, messages, help text and docs are searched.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

AVOID = {
    r"\bTells? (whether|what|how|when|where|which|who|if)\b": "Return ...",
    r"(?<!here )\b(is|are|was|were) no (?!longer\b|more\b|different\b|other\b|such\b|later\b|earlier\b|less\b|fewer\b|better\b|worse\b)[a-z]+\b": "is not a ...",  # noqa: E501
    r"\bstands? (on|in|at|for every|beside|before|behind|once|there)\b": "is in, is attached to",
    r"\b(goes|go|going) on\b(?! to\b)": "continues",
    r"\b(given|gives|give|gave) up\b": "dropped",
    r"\bin work\b(?!\[)": "in flight",
    r"\bof (its|our|their) own\b": "name the thing: separate, dedicated, private",
    r"\b([Nn]obody|[Ss]omebody|[Ww]hoever)\b": "name the component",
    r"\broads? (out|in)\b": "transport",
    r"\btakes? (the|a|its) turn\b": "acquires the lock",
    r"\bone (?!that|of|for|if|in|to|with|is|has)[a-z]+ a (run|second|process|batch|file|session|step|node|job|minute|row|series|sample|task|rank|lane)\b": "per",  # noqa: E501
    r"\b(two|three|four|\b\d+) (?!for|of|in|to)[a-z]+ a (second|minute|run|process|batch|step|node|job)\b": "per",
    r"\bhas (it )?told\b|\bwas told\b|\bis told\b": "reported",
    r"\bprocessor time\b": "CPU time",
    r"\bpictures (a|per) second\b": "frames per second",
    r"\bone a (request|call|line|second)\b": "one per ...",
    r"\bby (itself|themselves)\b": "automatically, on its own",
    r"\b(anew|lately|in vain|at hand)\b": "again, recently, without success, available",
    r"\bstands? for\b": "represents, replaces",
    r"\bhand(s|ed) over\b": "delivers, passes",
    r"\bsaid (no )?goodbye\b": "shut down cleanly",
    r"\b[Nn]o \w+ fits?\b": "no matching ...",
}
"""Pattern to what to write instead."""


def _files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    wanted = re.compile(
        r"^(src/.*\.(py|yaml|yml)|docs/.*\.md|README\.md|CHANGELOG\.md|CONTRIBUTING\.md|web/src/.*\.tsx?)$"
    )
    return [name for name in listed if wanted.match(name) and (ROOT / name).is_file()]


@pytest.mark.parametrize("pattern", AVOID)
def test_phrases_to_avoid_stay_out(pattern):
    found = []
    expression = re.compile(pattern)
    for name in _files():
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            if expression.search(line):
                found.append(f"{name}:{number}: {line.strip()[:110]}")
    assert not found, f"write {AVOID[pattern]!r} instead:\n" + "\n".join(found)
