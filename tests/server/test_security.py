"""Access control, and security headers for browsers."""

import re

import pytest

from rl_insight.server.http.pages import add_page
from rl_insight.server.http.security import cookie_name
from rl_insight.transport.ingest_client import CONTENT_TYPE

TOKEN = "t0ken-for-tests-0123456789"


@pytest.fixture
def guarded(make_services, client_of):
    return client_of(make_services(token=TOKEN), base_url="http://node7:18080")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer "},
        {"Authorization": b"Bearer \xff\xfe"},
        {"Cookie": f"{cookie_name(TOKEN)}=wrong"},
        {"Cookie": f"other={TOKEN}"},
        {"Cookie": "\x01;;=="},
    ],
)
@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/status", "/api/v1/targets", "/openapi.json", "/docs"])
def test_without_the_token_nothing_is_reported(guarded, path, headers):
    answer = guarded.get(path, headers=headers)
    assert answer.status_code == 401
    assert "token" in answer.json()["error"]
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/api/v1/ingest", "/v1/traces", "/v1/metrics", "/v1/logs", "/api/v1/targets"])
def test_without_the_token_nothing_is_taken(guarded, path):
    assert guarded.post(path, content=b"", headers={"Content-Type": CONTENT_TYPE}).status_code == 401


def test_with_the_token_everything_is_answered(guarded):
    for path in ("/", "/metrics", "/api/v1/status", "/openapi.json", "/docs"):
        assert guarded.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_whether_the_server_lives_is_not_a_secret(guarded):
    assert guarded.get("/healthz").status_code == guarded.get("/readyz").status_code == 200


def test_the_page_opened_with_the_token_keeps_it_in_a_cookie_and_out_of_the_address(guarded):
    answer = guarded.get("/runs/7", params={"token": TOKEN, "view": "timeline"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/7?view=timeline")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    shown = {"Cookie": f"{cookie_name(TOKEN)}={TOKEN}"}
    assert guarded.get("/api/v1/status", headers=shown).status_code == 200


def test_a_token_in_the_address_cannot_lead_to_another_host(guarded):
    answer = guarded.get("http://node7:18080//evil.example/", params={"token": TOKEN})
    assert answer.headers["location"].startswith("/evil.example")


def test_a_wrong_token_in_the_address_is_refused(guarded):
    assert guarded.get("/", params={"token": "wrong"}).status_code == 401


@pytest.mark.parametrize("host", ["localhost:18080", "127.0.0.1:18080", "[::1]:18080", "127.9.9.9", "LOCALHOST"])
def test_a_loopback_server_answers_to_its_own_names(services, client_of, host):
    assert client_of(services).get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:18080", "[::"])
def test_a_loopback_server_refuses_a_name_bent_to_it(services, client_of, host):
    answer = client_of(services).get("/api/v1/status", headers={"Host": host})
    assert answer.status_code == 403
    assert "allowed_hosts" in answer.json()["error"]


def test_further_names_can_be_allowed(make_services, client_of):
    client = client_of(make_services("allowed_hosts=[insight.example.org]"))
    assert client.get("/healthz", headers={"Host": "insight.example.org:443"}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:9999", "null", "http://["])
def test_a_page_of_another_origin_changes_nothing(client, origin):
    answer = client.post("/api/v1/targets", json={"addresses": ["a:1"]}, headers={"Origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert client.get("/api/v1/targets").json() == {"targets": []}


def test_our_own_page_can_change_things(client):
    answer = client.post("/api/v1/targets", json={"addresses": ["a:1"]}, headers={"Origin": "http://127.0.0.1"})
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/", "/healthz", "/nothing", "/api/v1/nothing", "/docs"])
def test_every_answer_carries_the_headers_that_protect(client, path):
    headers = client.get(path).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_nothing_is_loaded_from_elsewhere(client, path):
    page = client.get(path).text
    assert "<html" in page
    assert re.findall(r"""(?:src|href)=["']?(?:[a-z]+:)?//[^"'> ]*""", page) == []


@pytest.fixture
def with_page(tmp_path):
    from fastapi import FastAPI

    built = tmp_path / "static"
    (built / "assets").mkdir(parents=True)
    (built / "index.html").write_text("<title>the page</title>")
    (built / "assets" / "app.js").write_text("1")
    (tmp_path / "secret.txt").write_text("secret")
    app = FastAPI()
    add_page(app, built)
    return app


@pytest.fixture
def page_client(with_page):
    import asyncio

    import httpx

    def get(path):
        async def ask():
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(with_page), base_url="http://localhost"
            ) as client:
                return await client.get(path)

        return asyncio.run(ask())

    return get


def test_the_built_page_is_served_and_its_views_lead_to_it(page_client):
    assert page_client("/").text == page_client("/runs/7/timeline").text == "<title>the page</title>"
    assert "immutable" in page_client("/assets/app.js").headers["cache-control"]
    assert page_client("/api/v1/nothing").status_code == 404


@pytest.mark.parametrize(
    "path", ["/../secret.txt", "/..%2fsecret.txt", "/assets/../../secret.txt", "/%2e%2e/secret.txt", "//etc/passwd"]
)
def test_no_path_leads_out_of_the_page(page_client, path):
    assert "secret" not in page_client(path).text
    assert "root:" not in page_client(path).text


def test_an_unknown_route_is_reported_in_a_sentence(client):
    answer = client.get("/api/v1/nothing")
    assert (answer.status_code, answer.json()["error"]) == (
        404,
        "there is nothing at /api/v1/nothing: see /docs for the routes.",
    )
