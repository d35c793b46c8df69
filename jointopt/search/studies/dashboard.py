"""optuna-dashboard on the storage of our studies."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.util import setup_testing_defaults

import optuna

from jointopt.core.errors import UsageError, nearest
from jointopt.runs.database import has_table, without_password
from jointopt.runs.outages import wait_out
from jointopt.search.studies.gate import Gate
from jointopt.search.studies.storage import open_storage, study_errors

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

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
    storage, (name, study_id) = wait_out(url, lambda: _storage_and_study(url, study))
    with study_errors(url):
        app = wsgi(storage)
        _warm(app, study_id)
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


def _warm(app: WSGIApplication, study_id: int) -> None:
    """Request the study once, so that its trials are read before a user waits for them."""
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    environ["PATH_INFO"] = f"/api/studies/{study_id}"
    for _ in app(environ, lambda *_: lambda __: None):
        pass


def _storage_and_study(url: str, study: str | None) -> tuple[optuna.storages.BaseStorage, tuple[str, int]]:
    """The storage, and name and id of the study of that name or the newest."""
    with study_errors(url):
        return _found(url, study)


def _found(url: str, study: str | None) -> tuple[optuna.storages.BaseStorage, tuple[str, int]]:
    storage = open_storage(url) if has_table(url, "studies") else None
    ids = {one.study_name: one._study_id for one in storage.get_all_studies()} if storage else {}
    place = repr(without_password(url))
    if storage is None or not ids:
        raise UsageError(f"There is no study in {place}; `jointopt propose JOB --storage URL` makes one.")
    if study is None:
        return storage, max(ids.items(), key=lambda item: item[1])
    if study not in ids:
        raise UsageError(f"There is no study {study!r} in {place}{nearest(study, ids)}.")
    return storage, (study, ids[study])
