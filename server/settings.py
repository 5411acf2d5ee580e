"""How a server behaves: its addresses, its limits, who may use it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path
from urllib.parse import urlsplit

from asr.errors import ConfigError

SHORTEST_TOKEN = 16


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Settings of a server; durations in milliseconds.

    Attributes:
        host, port: where it listens; port 0 takes a free one.
        max_sessions: sessions that may live at once.
        delay_ms, chunk_ms: of sessions that do not ask for others; longest_chunk_ms: the longest they may ask for.
        tokens: whoever has one of them may use the server; empty: everybody may.
        origins: web pages of other hosts that may use it.
        idle_ms: so long without a word from its client, and a session ends; session_ms: so much audio, None is endless.
        resume_ms: so long a session is kept whose connection broke.
        start_ms: time for the first message; stall_ms: for a message to be taken by the client; quiet_ms: without any
            sign of life a connection is dead.
        message_bytes: the largest message.
        inbox_bytes, inbox_items: what may wait to be decoded before no more is read.
        grace_ms: time for sessions to end when the server is stopped.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    max_sessions: int = 2
    delay_ms: int = 480
    chunk_ms: int = 320
    longest_chunk_ms: int = 1_280
    tokens: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    idle_ms: int = 300_000
    session_ms: int | None = None
    resume_ms: int = 30_000
    start_ms: int = 10_000
    stall_ms: int = 60_000
    quiet_ms: int = 60_000
    message_bytes: int = 1024 * 1024
    inbox_bytes: int = 512 * 1024
    inbox_items: int = 1_000
    grace_ms: int = 5_000

    def __post_init__(self) -> None:
        for token in self.tokens:
            if len(token) < SHORTEST_TOKEN or not token.isascii():
                raise ConfigError(
                    f"a bearer token has {len(token)} characters; at least {SHORTEST_TOKEN}, all ASCII, are needed"
                )
        for origin in self.origins:
            parts = urlsplit(origin)
            if parts.scheme not in ("http", "https") or not parts.netloc or parts.path:
                raise ConfigError(f"origin is {origin!r}; scheme and host are needed, such as https://example.org")
        if self.max_sessions < 1:
            raise ConfigError(f"max_sessions is {self.max_sessions}; it must be at least 1")

    @property
    def max_connections(self) -> int:
        """Open websockets, those that have not started a session included."""
        return 2 * self.max_sessions + 32


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(settings: ServeSettings, *, open_to_all: bool) -> None:
    """Refuses to be open to a network by mistake.

    Raises:
        ConfigError: if others can reach the server, it has no tokens, and `open_to_all` was not said.
    """
    if not is_loopback(settings.host) and not settings.tokens and not open_to_all:
        raise ConfigError(
            f"host {settings.host} can be reached by others; give --tokens FILE, or --open to let everybody use it"
        )


def read_tokens(path: Path) -> tuple[str, ...]:
    """Bearer tokens, one a line; empty lines and those that begin with # are left out.

    Raises:
        ConfigError: if the file cannot be read or has none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: tokens cannot be read: {error}") from None
    tokens = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not tokens:
        raise ConfigError(f"{path}: has no token")
    return tokens


def token_fits(token: str | None, tokens: Iterable[str]) -> bool:
    """Whether a client's token is one of the server's; the time taken tells nothing about them."""
    given = (token or "").encode()
    return any([compare_digest(given, known.encode()) for known in tokens])  # noqa: C419 - all of them are compared


def bearer(authorization: str | None) -> str | None:
    """The token of an Authorization header.

    >>> bearer("Bearer abc"), bearer("Basic abc")
    ('abc', None)
    """
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def origin_fits(origin: str | None, host: str | None, origins: Iterable[str]) -> bool:
    """Whether a page may connect. Programs that are no browser send no origin and may.

    A page may if it is listed, or comes from the very host that it connects to, where that host is a plain address or
    this machine: a name could be anybody's, pointed here.

    >>> origin_fits("http://127.0.0.1:8765", "127.0.0.1:8765", ()), origin_fits("http://evil.com", "evil.com", ())
    (True, False)
    """
    if origin is None or origin in tuple(origins):
        return True
    try:
        parts = urlsplit(origin)
        name = parts.hostname or ""
    except ValueError:
        return False
    if not host or parts.netloc != host:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True
