from importlib.resources import files

import pytest

from server.metrics import Metrics
from server.pages import FILES
from server.routes import Routes

TOKEN = "0123456789abcdef"


def routes(*, tokens: tuple[str, ...] = (), reason: str | None = None) -> Routes:
    return Routes(metrics=Metrics(), tokens=tokens, ready=lambda: reason)


@pytest.mark.parametrize("target", [*FILES, "/?x=1", "/style.css?v=2"])
def test_the_page_and_its_parts(target: str) -> None:
    status, _, headers, body = routes().answer(target, None)
    assert status == 200
    assert len(body) == int(headers["Content-Length"]) > 100
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'self'" in headers["Content-Security-Policy"]


def test_everything_that_lies_there_is_served_and_nothing_else() -> None:
    there = {entry.name for entry in (files("server") / "page").iterdir()}
    assert there == {name for name, _ in FILES.values()}


@pytest.mark.parametrize(
    "target",
    ["/../routes.py", "/page/index.html", "//etc/passwd", "/%2e%2e/cli.py", "/index.html", "http://[", "", "/v1", "*"],
)
def test_paths_are_looked_up_and_never_opened(target: str) -> None:
    status, _, _, body = routes().answer(target, None)
    assert (status, body) == (404, b"there is no such page\n")


def test_no_page_loads_anything_from_elsewhere() -> None:
    for name, content_type in FILES.values():
        text = (files("server") / "page" / name).read_text(encoding="utf-8")
        found = [part for part in text.split() if "//" in part and "http" in part]
        allowed = ("www.w3.org/2000/svg", "http://localhost:${location.port")
        assert all(any(one in part for one in allowed) for part in found), (name, content_type, found)


def test_health_and_readiness() -> None:
    assert routes(reason="warming up").answer("/healthz", None)[0] == 200
    assert routes().answer("/readyz", None)[::3] == (200, b"ready\n")
    assert routes(reason="warming up").answer("/readyz", None)[::3] == (503, b"warming up\n")


def test_metrics_want_a_token_where_there_are_any() -> None:
    assert routes().answer("/metrics", None)[0] == 200
    guarded = routes(tokens=(TOKEN,))
    status, _, headers, _ = guarded.answer("/metrics", "wrong")
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    status, _, headers, body = guarded.answer("/metrics", TOKEN)
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert b"# TYPE earlybird_word_delay_seconds histogram" in body


def test_streams_are_told_from_pages() -> None:
    assert routes().is_stream("/v1/stream?x=1", "/v1/stream")
    assert not routes().is_stream("/v1/streams", "/v1/stream")
    assert routes().forbidden("http://evil.com")[0] == 403
    assert b"more than 7 connections" in routes().too_many(7)[3]
