"""Puts a report's data, style and script into one HTML file that asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import html
from importlib.resources import files
from pathlib import Path

import msgspec

from rl_insight.exchange.report.document import build_document
from rl_insight.exchange.report.model import ReportDocument
from rl_insight.exchange.writers.output import output_file
from rl_insight.store import RunStore
from rl_insight.store.queries import Scope

# The policy lets this one script run and nothing be fetched, whatever a name in the data tries.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'sha256-{digest}'">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<noscript>This report draws itself with JavaScript, which is switched off here.</noscript>
<main id="report"></main>
<script type="application/json" id="report-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def write_report(store: RunStore, path: Path, scope: Scope | None = None) -> None:
    """Write the report of a run.

    >>> write_report(store, Path("report.html"))  # doctest: +SKIP

    Raises:
        ExchangeError: the file cannot be written.
    """
    page = render(build_document(store, scope))
    with output_file(path) as stream:
        stream.write(page)


def render(document: ReportDocument) -> bytes:
    """Return a report as HTML."""
    script = _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Inside a script element only "<" can end or change anything: it stands as its escape.
    data = msgspec.json.encode(document).decode().replace("<", "\\u003c")
    title = html.escape(f"{document.run.run_id or 'run'} · RL-Insight")
    return _PAGE.format(digest=digest, title=title, style=_asset("report.css"), data=data, script=script).encode(
        "utf-8", "replace"
    )


def _asset(name: str) -> str:
    return files("rl_insight.exchange.report").joinpath(name).read_text("utf-8")
