"""The page and its files, and the API documentation; nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, Response

STATIC = Path(__file__).parent.parent / "static"
_NOT_PAGES = ("api/", "v1/", "assets/")
_FOREVER = "public, max-age=31536000, immutable"

_SHELL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
code {{ font-family: ui-monospace, monospace }}
td, th {{ text-align: left; padding: .1rem 1rem .1rem 0; vertical-align: top }}
h2 {{ font-size: 1rem; margin: 1.5rem 0 .2rem }}
</style></head><body>{body}</body></html>"""

_NOT_BUILT = """<h1>RL-Insight is running</h1>
<p>The web page is not included in this installation. Everything else works: ingest, the API and the metrics.</p>
<p>A release installed with <code>pip</code> includes it. In a source checkout it is built from the directory
<code>web</code>.</p>
<ul><li><a href="/docs">API documentation</a></li><li><a href="/metrics">Metrics</a></li>
<li><a href="/openapi.json">OpenAPI document</a></li></ul>"""


def add_page(app: FastAPI, directory: Path) -> None:
    """Serve the built page; unknown paths return its index, so that every view has a URL."""
    folder = _Folder(directory)

    @app.get("/{path:path}", include_in_schema=False)
    def page(path: str) -> Response:
        # A lookup: request text never becomes a path.
        files = folder.files()
        found = files.get(path)
        if found is not None:
            caching = _FOREVER if path.startswith("assets/") else "no-cache"
            return FileResponse(found, headers={"Cache-Control": caching})
        if path.startswith(_NOT_PAGES):
            raise HTTPException(404)
        if "index.html" in files:
            return FileResponse(files["index.html"], headers={"Cache-Control": "no-cache"})
        if path:
            raise HTTPException(404)
        return HTMLResponse(_SHELL.format(title="RL-Insight", body=_NOT_BUILT))


class _Folder:
    """The files of the page by path, listed again if the page is rebuilt while the server runs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._built_ns = -1
        self._files: dict[str, Path] = {}

    def files(self) -> dict[str, Path]:
        """Return the files as of the last build."""
        try:
            built_ns = (self._directory / "index.html").stat().st_mtime_ns
        except OSError:
            built_ns = 0
        if built_ns != self._built_ns:
            found = self._directory.rglob("*") if self._directory.is_dir() else ()
            self._files = {path.relative_to(self._directory).as_posix(): path for path in found if path.is_file()}
            self._built_ns = built_ns
        return self._files


def docs_page(document: dict[str, Any]) -> str:
    """Return an OpenAPI document as an HTML page."""
    parts = [f"<h1>{escape(document['info']['title'])} API</h1>"]
    parts.append('<p>Machine-readable: <a href="/openapi.json">openapi.json</a></p>')
    for path, methods in document.get("paths", {}).items():
        for method, operation in methods.items():
            parts.append(_operation(path, method, operation))
    return _SHELL.format(title="RL-Insight API", body="".join(parts))


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    text = escape(operation.get("description") or operation.get("summary") or "")
    rows = "".join(_parameter(parameter) for parameter in operation.get("parameters", ()))
    table = f"<table>{rows}</table>" if rows else ""
    body, answer = content_text(operation.get("requestBody", {})), content_text(operation["responses"].get("200", {}))
    ends = [f"<p>{title}: {escape(kind)}.</p>" for title, kind in (("Body", body), ("Answer", answer)) if kind]
    return f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{text}</p>{table}{''.join(ends)}"


def _parameter(parameter: dict[str, Any]) -> str:
    kind = type_text(parameter.get("schema", {}))
    needed = "required" if parameter.get("required") else ""
    cells = (
        f"<code>{escape(parameter['name'])}</code>",
        escape(kind),
        needed,
        escape(parameter.get("description", "")),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def type_text(schema: Mapping[str, Any], named: Callable[[str], str] = str) -> str:
    """Return a type in words; `named` formats the name of a type with its own description.

    >>> type_text({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/components/schemas/Span"}}]})
    'list of Span or null'
    """
    if "$ref" in schema:
        return named(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        options = sorted(schema["anyOf"], key=lambda option: option.get("type") == "null")
        return " or ".join(dict.fromkeys(type_text(option, named) for option in options))
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {type_text(schema.get('items', {}), named)}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {type_text(schema['additionalProperties'], named)}"
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def content_text(described: Mapping[str, Any], named: Callable[[str], str] = str) -> str:
    """Return the type of a body: its JSON type, else its media type; empty for any."""
    content: Mapping[str, Any] = described.get("content", {})
    kinds = [
        type_text(one.get("schema", {}), named) if media == "application/json" else media
        for media, one in content.items()
    ]
    return " or ".join(kind for kind in kinds if kind != "any")
