"""What is answered to plain HTTP: the caption page, health, metrics. Names are looked up, never made into paths."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import urlsplit

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/captions.js": ("captions.js", "text/javascript; charset=utf-8"),
    "/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
    "/audio.js": ("audio.js", "text/javascript; charset=utf-8"),
    "/stream.js": ("stream.js", "text/javascript; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/recorder.js": ("recorder.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An HTTP answer: its status, the type of its body, its body."""

    status: HTTPStatus
    content_type: str
    body: bytes


def text_answer(status: HTTPStatus, text: str) -> Answer:
    """A line of text."""
    return Answer(status=status, content_type="text/plain; charset=utf-8", body=f"{text}\n".encode())


def page_answer(target: str) -> Answer | None:
    """The file of the caption page that a request names; None if it names none."""
    name, content_type = FILES.get(path_of(target), (None, ""))
    if name is None:
        return None
    body = (files("server") / "page" / name).read_bytes()
    return Answer(status=HTTPStatus.OK, content_type=content_type, body=body)


def path_of(target: str) -> str:
    """The path of a request's target, the query left out; empty if it is no target.

    >>> path_of("/metrics?x=1"), path_of("http://[")
    ('/metrics', '')
    """
    try:
        return urlsplit(target).path
    except ValueError:
        return ""
