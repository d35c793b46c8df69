"""The gate before a web application of this machine: a token, the machine's own names, and nothing but reading."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from jointopt.core.quote import header_value, local_url

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_READING = ("GET", "HEAD")


class Gate:
    """Lets requests through that bear the token and name this machine; others get 403, and change nothing.

    The token comes once in the URL and stays in a cookie, so that it is in no address that a browser keeps. A page of
    another site can neither read (its Origin, and its Host where a name of its own leads here, are foreign) nor write.
    """

    def __init__(self, app: WSGIApplication, token: str, port: int, edit: bool = False) -> None:
        self._app, self._token, self._edit = app, token, edit
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._cookie = f"jointopt-{port}"  # cookies are those of a host, whatever the port

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        if reason := self._refusal(environ):
            start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
            return [f"{reason}\n".encode()]
        query = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        if environ["REQUEST_METHOD"] == "GET" and any(name == "token" for name, _ in query):
            return self._without_token(environ, query, start)
        return self._app(environ, _without_line_ends(start))

    def _refusal(self, environ: WSGIEnvironment) -> str:
        """Why a request is not let through; blank where it is."""
        if environ.get("HTTP_HOST", "") not in self._hosts:
            return "This page is served to this machine only, by the address that `jointopt dashboard` printed."
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and origin.partition("://")[2] not in self._hosts:
            return "Requests of other sites are not answered."
        if not any(hmac.compare_digest(given.encode(), self._token.encode()) for given in self._tokens(environ)):
            return "The token is missing or wrong; open the address that `jointopt dashboard` printed."
        if environ["REQUEST_METHOD"] not in _READING and not self._edit:
            return "Studies are only shown; `jointopt dashboard --edit` lets them be changed."
        return ""

    def _tokens(self, environ: WSGIEnvironment) -> list[str]:
        given = [value for name, value in parse_qsl(environ.get("QUERY_STRING", "")) if name == "token"]
        try:
            cookie = SimpleCookie(environ.get("HTTP_COOKIE", "")).get(self._cookie)
        except CookieError:
            cookie = None
        return [*given, *([cookie.value] if cookie else [])]

    def _without_token(
        self, environ: WSGIEnvironment, query: list[tuple[str, str]], start: StartResponse
    ) -> list[bytes]:
        """Send the browser to the same page without the token, which it keeps as a cookie."""
        rest = [(name, value) for name, value in query if name != "token"]
        cookie = f"{self._cookie}={self._token}; HttpOnly; SameSite=Lax; Path=/"
        place = local_url(environ.get("PATH_INFO", "/"), rest)
        start("303 See Other", [("Location", place), ("Set-Cookie", cookie), ("Cache-Control", "no-store")])
        return []


def _without_line_ends(start: StartResponse) -> StartResponse:
    """``start`` for headers of the application, of which none ends early and goes on as another one."""

    def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
        return start(status, [(name, header_value(value)) for name, value in headers], *more)

    return started
