"""What a site demands, from every kind of source, and sources that die or never were one."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from jointopt.core.errors import UsageError
from jointopt.measure import demand
from jointopt.measure.demand import NONE, Demand
from jointopt.runs.site_signal import SiteSignal


def half(signal: SiteSignal) -> SiteSignal:
    """Limits of a signal of prices, for tests."""
    return SiteSignal(signal.source, "limit_kw", signal.bounds_s, signal.values / 2)


DemandSource = partial(demand.DemandSource, limits_of=half)


@pytest.fixture
def served() -> Iterator[tuple[str, list[bytes]]]:
    """The URL of a server on loopback, and the list whose last text it answers with."""
    texts = [b""]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(texts[-1])

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/api/v1/query?query=limit", texts
    server.shutdown()
    server.server_close()


def waited(what: Callable[[], bool]) -> bool:
    until = time.monotonic() + 20.0
    while not what() and time.monotonic() < until:
        time.sleep(0.02)
    return what()


def prometheus(name: str, value: str) -> bytes:
    result = [{"metric": {"__name__": name}, "value": [1.7e9, value]}]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


@pytest.mark.parametrize(
    ("text", "found"),
    [(b"12.5", Demand("limit_kw", 12.5)), (b'{"reduce_percent": 20}', Demand("reduce_percent", 20.0)),
     (prometheus("site_limit_kw", "9.5"), Demand("limit_kw", 9.5)),
     (prometheus("grid:reduce_percent", "15"), Demand("reduce_percent", 15.0)),
     (b"time_s,limit_kw\n0,7\n3600,7\n", Demand("limit_kw", 7.0)),
     (b"time_s,price_per_kwh\n0,0.5\n3600,0\n", Demand("limit_kw", 0.25))],
)  # fmt: skip
def test_a_url_answers_with_a_number_a_mapping_a_query_of_prometheus_or_a_table(served, text, found) -> None:
    url, texts = served
    texts.append(text)
    source = DemandSource(url)
    assert source.now() == found
    texts.append(b"3")
    assert waited(lambda: source.now() == Demand("limit_kw", 3.0))
    source.stop()


def test_a_socket_is_read_to_its_end(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "limit"))
        server.listen()

        def answer() -> None:
            link, _ = server.accept()
            link.sendall(b'{"limit_kw": 4.5}')
            link.close()

        threading.Thread(target=answer, daemon=True).start()
        source = DemandSource(f"unix:{tmp_path / 'limit'}")
        assert source.now() == Demand("limit_kw", 4.5)
        source.stop()


def test_steps_of_a_file_follow_the_clock_and_nothing_is_demanded_after_the_last(tmp_path: Path) -> None:
    file, now_s = tmp_path / "s.csv", time.time()
    file.write_text(f"time_s,reduce_percent\n{now_s - 100:.0f},10\n{now_s - 50:.0f},30\n{now_s + 50:.0f},0\n")
    source = DemandSource(str(file))
    assert source.now() == Demand("reduce_percent", 30.0)
    assert source.now().limit_kw(10.0) == 7.0
    assert Demand("reduce_percent", 0.0).limit_kw(10.0) == math.inf
    file.write_text(f"time_s,limit_kw\n{now_s - 100:.0f},10\n{now_s - 50:.0f},30\n")
    assert waited(lambda: source.now() == NONE)
    source.stop()


@pytest.mark.parametrize("ending", ["removed", "garbage"])
def test_a_source_that_is_gone_or_unreadable_is_dead_until_it_comes_back(tmp_path, monkeypatch, ending: str) -> None:
    monkeypatch.setattr(demand, "PATIENCE_S", 0.2)
    monkeypatch.setattr(demand, "_POLL_S", 0.05)
    file = tmp_path / "limit.json"
    file.write_text("5")
    source = DemandSource(str(file))
    file.unlink() if ending == "removed" else file.write_text("{")
    assert waited(lambda: source.now() is None)
    assert str(file) in source.fault
    file.write_text("6")
    assert waited(lambda: source.now() == Demand("limit_kw", 6.0))
    source.stop()


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "--follow"), ("-3", "its limit_kw is '-3'"), ('{"limit": 3}', "limit_kw"), ("true", "is 'true'"),
     ("time_s,limit_kw\n0,5\n0,6\n", "is not after"), ("time_s,limit\n0,1\n9,1\n", "expected time_s and one of")],
)  # fmt: skip
def test_what_is_no_signal_is_refused_in_one_sentence_before_the_run(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(UsageError, match=words) as refused:
        DemandSource(str(tmp_path / "s.csv"))
    assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="cannot be read"):
        DemandSource("http://127.0.0.1:9/limit")
