"""The files of the page: what is served when the page is rebuilt under a running server."""

from __future__ import annotations

import os

from fastapi import FastAPI
from starlette.testclient import TestClient

from rl_insight.server.http.pages import add_page


def _build(folder, name, *, second):
    for old in folder.rglob("*.js"):
        old.unlink()
    (folder / "assets").mkdir(exist_ok=True)
    (folder / "assets" / f"{name}.js").write_text(f"// {name}")
    (folder / "index.html").write_text(f'<script type="module" src="/assets/{name}.js"></script>')
    os.utime(folder / "index.html", (second, second))


def test_a_page_that_is_built_again_is_served_with_its_new_files(tmp_path):
    _build(tmp_path, "first", second=1)
    app = FastAPI()
    add_page(app, tmp_path)
    with TestClient(app) as client:
        assert client.get("/assets/first.js").text == "// first"
        _build(tmp_path, "second", second=2)
        assert "second.js" in client.get("/").text
        assert client.get("/assets/second.js").text == "// second"
        # Not the index: a browser would take it for the script, and the page would stay blank.
        assert client.get("/assets/first.js").status_code == 404
        assert "second.js" in client.get("/timeline").text
