"""Answers to plain HTTP requests: status, reason, headers, body. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus

from server.metrics import CONTENT_TYPE, Metrics
from server.pages import HEADERS, Answer, page_answer, path_of, text_answer
from server.settings import token_fits

Wire = tuple[int, str, dict[str, str], bytes]


class Routes:
    """What each path answers.

    Args:
        metrics: the server's.
        tokens: with some, `/metrics` wants one of them.
        ready: why the server cannot work; None if it can.
    """

    def __init__(self, *, metrics: Metrics, tokens: Sequence[str], ready: Callable[[], str | None]) -> None:
        self._metrics, self._tokens, self._ready = metrics, tokens, ready

    def is_stream(self, target: str, path: str) -> bool:
        """Whether a request is for the websocket."""
        return path_of(target) == path

    def answer(self, target: str, token: str | None) -> Wire:
        """The answer to any other request."""
        return _wire(self._answer(target, token))

    def forbidden(self, origin: str | None) -> Wire:
        """To a page that may not connect."""
        return _wire(text_answer(HTTPStatus.FORBIDDEN, f"origin {origin} may not connect; see serve --origin"))

    def too_many(self, most: int) -> Wire:
        """To a connection above the limit."""
        return _wire(text_answer(HTTPStatus.SERVICE_UNAVAILABLE, f"more than {most} connections; try again later"))

    def _answer(self, target: str, token: str | None) -> Answer:
        path = path_of(target)
        if path == "/healthz":
            return text_answer(HTTPStatus.OK, "alive")
        if path == "/readyz":
            reason = self._ready()
            return text_answer(HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE, reason or "ready")
        if path == "/metrics":
            if self._tokens and not token_fits(token, self._tokens):
                return text_answer(HTTPStatus.UNAUTHORIZED, "a bearer token of this server is needed")
            return Answer(status=HTTPStatus.OK, content_type=CONTENT_TYPE, body=self._metrics.text())
        return page_answer(target) or text_answer(HTTPStatus.NOT_FOUND, "there is no such page")


def _wire(answer: Answer) -> Wire:
    headers = {
        **HEADERS,
        "Content-Type": answer.content_type,
        "Content-Length": str(len(answer.body)),
        "Connection": "close",
    }
    if answer.status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return answer.status.value, answer.status.phrase, headers, answer.body
