"""Puts a report's data into one HTML file that contains the components of the page and loads nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
from pathlib import Path

import msgspec

from rl_insight.exchange.errors import ExchangeError
from rl_insight.exchange.exporting.writers.output import output_file
from rl_insight.exchange.report.document import build_document
from rl_insight.exchange.report.model import ReportDocument
from rl_insight.store.connections import RunFile
from rl_insight.store.queries import Scope

# The policy allows only this script and this style sheet and no requests, whatever the data contains.
# The data is compressed and Base64-encoded, which leaves no character that could end the element around it.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{script_digest}'; \
style-src '{style_digest}'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This report needs JavaScript, which is turned off in this browser.</noscript>
<div id="root"></div>
<script type="application/octet-stream" id="report-data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""
_LEVEL = 6
_FOLDER = Path(__file__).parents[2] / "server" / "static" / "report"
"""Where the page is built, next to the live one; both use the same components."""


class Bundle(msgspec.Struct, frozen=True):
    """The parts of a report besides its data."""

    script: str
    style: str


def write_report(store: RunFile, path: Path, scope: Scope | None = None, *, transcripts: bool = False) -> None:
    """Write the report of a run; it includes the text of sessions only with `transcripts`.

    >>> write_report(store, Path("report.html"))  # doctest: +SKIP

    Raises:
        ExchangeError: the file cannot be written, or the package was built without the report page.
    """
    bundle = load_bundle()
    page = render(build_document(store, scope, transcripts=transcripts), bundle)
    with output_file(path) as stream:
        stream.write(page)


def load_bundle(folder: Path = _FOLDER) -> Bundle:
    """Return the built report page.

    Raises:
        ExchangeError: it is missing.
    """
    script, style = folder / "report.js", folder / "report.css"
    if not script.is_file() or not style.is_file():
        raise ExchangeError(
            "cannot write a report: this copy of rl-insight was built without the report page. In a checkout, "
            "build it with `make web`, which needs Node.js 20 or newer; or install a released wheel, which includes it."
        )
    # Only these two could end or change the script element around the text; escaped, they mean the same in strings.
    text = script.read_text("utf-8").replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return Bundle(text, style.read_text("utf-8"))


def render(document: ReportDocument, bundle: Bundle | None = None) -> bytes:
    """Return a report as HTML."""
    bundle = bundle or load_bundle()
    data = base64.b64encode(gzip.compress(msgspec.json.encode(document), _LEVEL, mtime=0)).decode()
    page = _PAGE.format(
        script_digest=_digest(bundle.script),
        style_digest=_digest(bundle.style),
        title=html.escape(f"{document.run.run_id or 'run'} · RL-Insight"),
        style=bundle.style,
        data=data,
        script=bundle.script,
    )
    return page.encode("utf-8", "replace")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
