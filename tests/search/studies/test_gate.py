"""The gate of the dashboard: what a request's path may make of an answer."""

from __future__ import annotations

from http.client import HTTPConnection
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import make_server

import pytest

from jointopt.search.studies.dashboard import HOST, Gate, _Quiet, _Server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIEnvironment


def reflecting(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
    """An application that puts a request's path into a header, as one that redirects does."""
    start("302 Found", [("Location", environ["PATH_INFO"])])
    return []


@pytest.fixture
def port() -> Iterator[int]:
    with make_server(HOST, 0, reflecting, _Server, _Quiet) as server:
        server.set_app(Gate(reflecting, "right", server.server_port))
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def headers_of(port: int, path: str, cookie: str = "") -> tuple[int, dict[str, str]]:
    connection = HTTPConnection(HOST, port, timeout=10)
    connection.request("GET", path, headers={"Cookie": cookie})
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders())


@pytest.mark.parametrize(
    "path", ["/%0d%0aX-Added:%20yes", "/%5chost", "//host", "/%09/host", "/%5c%5chost/%0aX-Added:1"]
)
@pytest.mark.parametrize("query", ["?token=right", "?token=right&a=%0d%0aX-Added:%20yes"])
def test_a_path_with_the_right_token_adds_no_header_and_leads_to_no_other_host(
    port: int, path: str, query: str
) -> None:
    status, headers = headers_of(port, path + query)
    assert (status, "X-Added" in headers) == (303, False)
    place = headers["Location"]
    assert place[0] == "/"
    assert place[1:2] not in ("/", "\\")


def test_no_header_of_the_application_is_ended_by_a_path(port: int) -> None:
    status, headers = headers_of(port, "/a%0d%0aX-Added:%20yes", f"jointopt-{port}=right")
    assert (status, headers["Location"]) == (302, "/aX-Added: yes")
    assert "X-Added" not in headers
