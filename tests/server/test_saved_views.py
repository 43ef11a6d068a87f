"""Saved views and pins on the server."""

from __future__ import annotations

import pytest

from rl_insight.server.saved_views import MAX_PINS, MAX_VIEWS, VIEWS_FILE, ViewBook


def test_views_and_pins_are_kept_across_restarts(client, services):
    client.post("/api/v1/views", json={"name": "tools", "address": "?view=hotspots&name=toolcall"})
    client.post("/api/v1/views", json={"name": "loss", "address": "?view=metrics"})
    client.post("/api/v1/views", json={"name": "loss", "address": "?view=metrics&metric=loss"})
    client.post("/api/v1/views/pins?metric=reward_mean")
    client.post("/api/v1/views/pins?metric=kl")
    client.post("/api/v1/views/pins?metric=kl&pinned=false")
    expected = {
        "views": [
            {"name": "loss", "address": "?view=metrics&metric=loss"},
            {"name": "tools", "address": "?view=hotspots&name=toolcall"},
        ],
        "pins": ["reward_mean"],
    }
    assert client.get("/api/v1/views").json() == expected
    again = ViewBook(services.settings.directory / VIEWS_FILE).saved
    assert [view.name for view in again.views] == ["loss", "tools"]
    removed = client.post("/api/v1/views", json={"name": "loss"}).json()
    assert [view["name"] for view in removed["views"]] == ["tools"]


@pytest.mark.parametrize(
    "view",
    [
        {"name": "", "address": "?view=runs"},
        {"name": "x" * 101, "address": "?view=runs"},
        {"name": "evil", "address": "javascript:alert(1)"},
        {"name": "elsewhere", "address": "https://example.org/?view=runs"},
        {"name": "long", "address": "?" + "x" * 8001},
    ],
)
def test_what_is_not_a_view_is_refused(client, view):
    answer = client.post("/api/v1/views", json=view)
    assert answer.status_code == 400
    assert client.get("/api/v1/views").json() == {"views": [], "pins": []}


def test_views_and_pins_are_bounded(tmp_path):
    book = ViewBook(tmp_path / VIEWS_FILE)
    for number in range(MAX_VIEWS):
        book.save(str(number), "?view=runs")
    with pytest.raises(ValueError, match="at most"):
        book.save("one more", "?view=runs")
    for number in range(MAX_PINS):
        book.pin(str(number))
    with pytest.raises(ValueError, match="at most"):
        book.pin("one more")


def test_a_damaged_file_is_set_aside(tmp_path):
    (tmp_path / VIEWS_FILE).write_text("{")
    assert ViewBook(tmp_path / VIEWS_FILE).saved.views == []
    assert len(list(tmp_path.glob(f"{VIEWS_FILE}.unreadable-*"))) == 1
