"""optuna-dashboard on the storage of our studies."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.util import setup_testing_defaults

import optuna

from jointopt.core.errors import UsageError, nearest_hint
from jointopt.core.quote import header_value, local_url
from jointopt.core.secrets import masked
from jointopt.runs.database import has_table
from jointopt.search.studies.storage import on_studies, open_storage, study_errors

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


HOST = "127.0.0.1"


class _Server(ThreadingMixIn, WSGIServer):
    """A request does not wait for another one; none outlives the server."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log no request."""


def serve(url: str, port: int, study: str | None, ready: Callable[[str, str], None], edit: bool = False) -> None:
    """Serves the studies of a database to browsers of this machine that bear a token, until interrupted.

    ``port`` 0 is any that is free. ``ready`` receives the name and the page of ``study``, by default the newest one;
    only with ``edit`` may that change or delete anything. Raises UsageError where optuna-dashboard is missing, the
    storage cannot be opened or has no such study, or the port is taken.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError as error:
        raise UsageError(
            "The dashboard needs optuna-dashboard; install it with pip install 'jointopt[dashboard]'."
        ) from error
    storage, (name, study_id) = _found(url, study)
    with study_errors(url):
        app = wsgi(storage)
        # the study is requested once, so that its trials are read before a user waits for them
        environ: dict[str, Any] = {}
        setup_testing_defaults(environ)
        environ["PATH_INFO"] = f"/api/studies/{study_id}"
        for _ in app(environ, lambda *_: lambda __: None):
            pass
    token = secrets.token_urlsafe(32)
    try:
        server = make_server(HOST, port, app, _Server, _Quiet)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"--port: {port} cannot be listened on ({reason}); give another one, or 0 for any.") from error
    server.set_app(Gate(app, token, server.server_port, edit))
    with server:
        ready(name, f"http://{HOST}:{server.server_port}/dashboard/studies/{study_id}?token={token}")
        server.serve_forever()


@on_studies
def _found(url: str, study: str | None) -> tuple[optuna.storages.BaseStorage, tuple[str, int]]:
    """The storage, and name and id of the study of that name or the newest."""
    storage = open_storage(url) if has_table(url, "studies") else None
    ids = {one.study_name: one._study_id for one in storage.get_all_studies()} if storage else {}
    place = repr(masked(url))
    if storage is None or not ids:
        raise UsageError(f"There is no study in {place}; `jointopt propose JOB --storage URL` makes one.")
    if study is None:
        return storage, max(ids.items(), key=lambda item: item[1])
    if study not in ids:
        raise UsageError(f"There is no study {study!r} in {place}{nearest_hint(study, ids)}.")
    return storage, (study, ids[study])


# The gate before a web application of this machine: a token, the machine's own names, and nothing but reading.


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
        query = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        try:
            cookie = SimpleCookie(environ.get("HTTP_COOKIE", "")).get(self._cookie)
        except CookieError:
            cookie = None
        given = [value for name, value in query if name == "token" and value]
        if reason := self._refusal(environ, [*given, *([cookie.value] if cookie else [])]):
            start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
            return [f"{reason}\n".encode()]
        if environ["REQUEST_METHOD"] == "GET" and any(name == "token" for name, _ in query):
            # to the same page without the token, which the browser keeps as a cookie
            place = local_url(environ.get("PATH_INFO", "/"), [(name, v) for name, v in query if name != "token"])
            keep = f"{self._cookie}={self._token}; HttpOnly; SameSite=Lax; Path=/"
            start("303 See Other", [("Location", place), ("Set-Cookie", keep), ("Cache-Control", "no-store")])
            return []

        def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            # no header of the application ends early and goes on as another one
            return start(status, [(name, header_value(value)) for name, value in headers], *more)

        return self._app(environ, started)

    def _refusal(self, environ: WSGIEnvironment, tokens: list[str]) -> str:
        """Why a request with these tokens is not let through; blank where it is."""
        if environ.get("HTTP_HOST", "") not in self._hosts:
            return "This page is served to this machine only, by the address that `jointopt dashboard` printed."
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and origin.partition("://")[2] not in self._hosts:
            return "Requests of other sites are not answered."
        if not any(hmac.compare_digest(token.encode(), self._token.encode()) for token in tokens):
            return "The token is missing or wrong; open the address that `jointopt dashboard` printed."
        if environ["REQUEST_METHOD"] not in _READING and not self._edit:
            return "Studies are only shown; `jointopt dashboard --edit` lets them be changed."
        return ""
