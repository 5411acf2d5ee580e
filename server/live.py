"""The sessions that clients have, connected or not: tokens, limits, what is kept for one that comes back. No I/O."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from asr.errors import ProtocolError
from server.messages import Start, error_code, error_text, summary_fields, words_fields
from server.outbox import Outbox
from streaming.batcher import Said
from streaming.events import Closed, Flushed, Heartbeat, Segment, Tail, Words

HEARTBEAT_MS = 1_000
CAUGHT_UP = 0.8
"""Below this real-time factor a session that was behind no longer is."""


@dataclass
class LiveSession:
    """One session as the connections see it.

    Attributes:
        key: its name on the worker; token: what its client resumes it with.
        start: what was asked for; settings: what holds; phrases: what became of each of its phrases.
        opened_ms, heard_ms: when it began, and when its client last said something that keeps it.
        received_bytes: audio taken from the client, all connections together; received_messages: of audio, update,
            flush and end; inbox_bytes, inbox_items: of it and of
            messages, what the worker has not taken yet.
        received_ms: of audio, as far as the worker has told.
        connection: that of its client; None while it is away. away_ms: since when.
        closed: whether its last message has been written into the outbox; ending: whether it has been asked for.
        held: whether it is not decoded, because its client does not read.
        errors: how many messages of the client could not be used.
    """

    key: str
    token: str
    start: Start
    settings: dict[str, object]
    phrases: list[dict[str, object]]
    opened_ms: int
    heard_ms: int
    outbox: Outbox = field(default_factory=Outbox)
    received_bytes: int = 0
    received_messages: int = 0
    inbox_bytes: int = 0
    inbox_items: int = 0
    received_ms: int = 0
    connection: Any = None
    away_ms: int | None = None
    closed: bool = False
    ending: bool = False
    held: bool = False
    errors: int = 0
    _beat_ms: int | None = None
    _processed_ms: int = 0
    _factor: float = 0.0
    _warned: bool = False

    def note(self, said: Said, now_ms: int, *, real_time_factor: float = 0.0) -> None:
        """Writes what the session said into its outbox."""
        event = said.event
        if said.error is not None:
            self.outbox.commit(
                "error", {"code": error_code(said.error), "text": error_text(said.error), "fatal": False}
            )
        if said.changed is not None:
            self._change(said)
        if isinstance(event, Words):
            self.outbox.commit("words", words_fields(event, said.wall_ms, timestamps=self.start.timestamps))
        elif isinstance(event, Tail):
            self.outbox.replace("tail", {"text": event.text})
        elif isinstance(event, Segment):
            self.outbox.commit("segment", _segment_fields(event))
        elif isinstance(event, Heartbeat):
            self._beat(event, now_ms, real_time_factor)
        elif isinstance(event, Flushed):
            self.outbox.commit("flushed", {"id": said.flush_id, "audio_ms": event.audio_ms})
        elif isinstance(event, Closed):
            self._close(event, said)

    def _change(self, said: Said) -> None:
        changed = dict(said.changed or {})
        self.outbox.commit("updated", {"audio_ms": said.audio_ms, **changed})
        if isinstance(phrases := changed.pop("phrases", None), list):
            self.phrases = phrases
        self.settings |= changed

    def _beat(self, beat: Heartbeat, now_ms: int, real_time_factor: float) -> None:
        decoded = self.received_bytes - self.inbox_bytes
        # What waits in the inbox is not decoded to samples yet: its length is that of as many bytes so far.
        self.received_ms = beat.received_ms * self.received_bytes // max(1, decoded)
        self._processed_ms, self._factor = beat.processed_ms, real_time_factor
        if self._beat_ms is None or now_ms - self._beat_ms >= HEARTBEAT_MS:
            self._write_beat(now_ms)
        behind = real_time_factor > 1.0
        if behind and not self._warned:
            self.outbox.commit(
                "warning",
                {
                    "code": "behind",
                    "text": f"steps take {real_time_factor:.2f} of the time of their audio: words come later and later",
                },
            )
        self._warned = behind or (self._warned and real_time_factor > CAUGHT_UP)

    def quiet_beat(self, now_ms: int, quiet_ms: int) -> bool:
        """Writes a heartbeat if there was none for so long; whether it did."""
        quiet = not self.closed and now_ms - (self._beat_ms or self.opened_ms) >= quiet_ms
        if quiet:
            self._write_beat(now_ms)
        return quiet

    def _write_beat(self, now_ms: int) -> None:
        self._beat_ms = now_ms
        self.outbox.replace(
            "heartbeat",
            {
                "received_bytes": self.received_bytes,
                "received_messages": self.received_messages,
                "received_ms": self.received_ms,
                "processed_ms": self._processed_ms,
                "lag_ms": self.received_ms - self._processed_ms,
                "real_time_factor": round(self._factor, 3),
            },
        )

    def _close(self, event: Closed, said: Said) -> None:
        for warning in event.warnings:
            self.outbox.commit("warning", {"code": "audio", "text": warning})
        self.outbox.replace("tail", {"text": ""})
        self.outbox.commit(
            "closed",
            {
                "reason": said.reason,
                "audio_ms": event.audio_ms,
                "delay_ms": {"audio": summary_fields(said.audio), "wall": summary_fields(said.wall)},
                "stats": event.stats.to_json(),
            },
        )
        self.closed = True


def _segment_fields(event: Segment) -> dict[str, object]:
    return {
        "text": event.text,
        "first": event.first,
        "count": event.count,
        "start_ms": event.start_ms,
        "end_ms": event.end_ms,
        "reason": event.reason,
    }


class Registry:
    """All sessions of a server.

    Args:
        resume_ms: how long one is kept whose client is away.
    """

    def __init__(self, *, resume_ms: int) -> None:
        self.resume_ms = resume_ms
        self._by_key: dict[str, LiveSession] = {}
        self._by_token: dict[str, LiveSession] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(list(self._by_key.values()))

    def new_key(self) -> str:
        """A name for the next session."""
        self._count += 1
        return f"s{self._count}"

    def add(
        self,
        key: str,
        start: Start,
        *,
        settings: dict[str, object],
        phrases: list[dict[str, object]],
        now_ms: int,
    ) -> LiveSession:
        """A session that has just begun."""
        token = secrets.token_urlsafe(24)
        session = LiveSession(
            key=key,
            token=token,
            start=start,
            settings=settings,
            phrases=phrases,
            opened_ms=now_ms,
            heard_ms=now_ms,
            away_ms=now_ms,
        )
        self._by_key[key] = self._by_token[token] = session
        return session

    def get(self, key: str) -> LiveSession | None:
        """By its name; None if it is gone."""
        return self._by_key.get(key)

    def find(self, token: str, start: Start) -> LiveSession:
        """The session that a client wants to go on with.

        Raises:
            ProtocolError: if there is none, or its audio was another.
        """
        session = self._by_token.get(token)
        if session is None:
            raise ProtocolError(
                "resume_unknown", f"no such session; one without a client is kept for {self.resume_ms / 1000:g} s"
            )
        mine, its = _audio_format(start), _audio_format(session.start)
        if mine != its:
            raise ProtocolError("resume_differs", f"the session's audio is {its}; {mine} was declared")
        return session

    def remove(self, key: str) -> None:
        """Forgets one; harmless if it is gone."""
        if (session := self._by_key.pop(key, None)) is not None:
            del self._by_token[session.token]

    def away(self) -> list[LiveSession]:
        """Those without a client, the longest away first."""
        found = [session for session in self._by_key.values() if session.away_ms is not None]
        return sorted(found, key=lambda session: session.away_ms or 0)

    def expired(self, now_ms: int) -> list[LiveSession]:
        """Those whose client has been away too long."""
        return [session for session in self.away() if now_ms - (session.away_ms or 0) >= self.resume_ms]


def _audio_format(start: Start) -> str:
    return f"{start.encoding}, {start.sample_rate} Hz, {start.channels} channels, channel {start.channel}"
