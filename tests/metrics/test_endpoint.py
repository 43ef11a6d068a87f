from __future__ import annotations

import gzip
import http.client
import socket
import urllib.error
import urllib.request

import pytest

from rl_insight.metrics.endpoint import MetricsEndpoint


def render(accept):
    return f"asked for {accept}\n".encode(), "text/plain"


@pytest.fixture
def endpoint():
    endpoint = MetricsEndpoint(render)
    yield endpoint
    endpoint.close()


def fetch(endpoint, path="/metrics", method="GET", **headers):
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=10)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_page_is_made_for_the_accept_header(endpoint):
    response, body = fetch(endpoint, Accept="text/special")
    assert (response.status, body) == (200, b"asked for text/special\n")
    assert endpoint.url == f"http://127.0.0.1:{endpoint.port}/metrics"


def test_page_is_compressed_when_asked(endpoint):
    response, body = fetch(endpoint, **{"Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == b"asked for \n"


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/healthz", "GET", 200), ("/metrics?x=1", "GET", 200), ("/", "GET", 404), ("/metrics", "POST", 501)],
)
def test_routes(endpoint, path, method, status):
    assert fetch(endpoint, path, method)[0].status == status


def test_head_has_no_body(endpoint):
    response, body = fetch(endpoint, method="HEAD")
    assert (response.status, body) == (200, b"")


def test_failing_page_is_an_error_and_the_next_is_served():
    answers = [ValueError("broken"), (b"fine", "text/plain")]

    def render(accept):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    endpoint = MetricsEndpoint(render)
    assert fetch(endpoint)[0].status == 500
    assert fetch(endpoint)[1] == b"fine"
    endpoint.close()


def test_taken_port_is_left_alone_and_another_is_used(endpoint, caplog):
    other = MetricsEndpoint(lambda accept: (b"other", "text/plain"), port=endpoint.port)
    assert other.port != endpoint.port
    assert fetch(endpoint)[1] == b"asked for \n"
    assert fetch(other)[1] == b"other"
    assert f"port {endpoint.port} is in use" in caplog.text
    other.close()


def test_address_that_is_not_ours_is_an_error():
    with pytest.raises(OSError):
        MetricsEndpoint(render, host="192.0.2.1")


def test_idle_connections_do_not_delay_the_close_and_are_bounded():
    endpoint = MetricsEndpoint(render)
    idle = [socket.create_connection((endpoint.host, endpoint.port), timeout=10) for _ in range(16)]
    refused = socket.create_connection((endpoint.host, endpoint.port), timeout=10)
    assert refused.recv(1) == b""
    endpoint.close()
    endpoint.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(endpoint.url, timeout=10)
    for connection in [*idle, refused]:
        connection.close()
