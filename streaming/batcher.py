"""Many sessions on one pool, a batch at a time: whoever has a block ready takes part in the next step.

Pure and for one thread; time is an argument. Each session has an inbox, whose items take effect in order: audio is
taken from it only as it can be decoded, and what stands behind a flush waits for the flush's end. A session that fails
leaves alone: the step is made again for each of its companions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from asr.errors import AudioFormatError, ConfigError, EarlybirdError
from asr.resample import Samples
from streaming.emission_delay import DelaySummary
from streaming.events import Closed, Event, Flushed, Words
from streaming.session import Session, advance_sessions

__all__ = ["Audio", "Batcher", "Finish", "FinishReason", "FlushRequest", "Inbox", "Said", "Setting"]

FinishReason = str
"""Why a session ended: `end`, `idle`, `length`, `shutdown`, `error`."""
LIVE_MS = 2_000
"""So long behind its newest audio a session still counts as live."""
AHEAD_MS = 1_000
"""A session whose decoded audio is so much longer than the time since it began is fed faster than anybody speaks."""
SMOOTHING = 0.2


@dataclass(frozen=True, kw_only=True)
class Audio:
    """Bytes as they came in at `at_ms`."""

    bytes: bytes
    at_ms: int


@dataclass(frozen=True, kw_only=True)
class FlushRequest:
    """A flush; `id` comes back with its answer."""

    id: str | int | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Another setting from here on: called with the session, says what holds now, or refuses with an EarlybirdError."""

    apply: Callable[[Session], Mapping[str, object]]


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The end, after all that stands before it; `error`: what made it necessary."""

    reason: FinishReason
    error: EarlybirdError | None = None


Taken = tuple[int, int]
"""Bytes of audio and items that left an inbox."""
Inbox = Audio | FlushRequest | Setting | Finish


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a session said or met.

    Attributes:
        event: of the session; None where only an error is told.
        wall_ms: for `Words`, each word's delay on the caller's clock.
        flush_id: for `Flushed`, that of its request.
        changed: what a setting's call said; it holds from `audio_ms` on.
        error: what went wrong; the session goes on unless a `Closed` comes.
        reason: for `Closed`, why; audio, wall: its delays.
    """

    event: Event | None = None
    wall_ms: tuple[int | None, ...] = ()
    flush_id: str | int | None = None
    changed: Mapping[str, object] | None = None
    audio_ms: int = 0
    error: BaseException | None = None
    reason: FinishReason | None = None
    audio: DelaySummary | None = None
    wall: DelaySummary | None = None


@dataclass
class _Member:
    session: Session
    decode: Callable[[bytes], bytes | Samples]
    chunk_ms: int
    inbox: deque[Inbox] = field(default_factory=deque)
    flush_ids: deque[str | int | None] = field(default_factory=deque)
    finish: Finish | None = None
    said: list[Said] = field(default_factory=list)
    taken: Taken = (0, 0)
    first_ms: int | None = None
    newest_ms: int = 0
    held: bool = False
    real_time_factor: float = 0.0

    def take(self, item: Inbox) -> None:
        """Counts an item that has left the inbox."""
        size, items = self.taken
        self.taken = (size + (len(item.bytes) if isinstance(item, Audio) else 0), items + 1)

    def live(self, now_ms: int) -> bool:
        """Whether audio comes as it is spoken."""
        return self.first_ms is not None and now_ms - self.newest_ms <= LIVE_MS and not self.ahead(now_ms)

    def ahead(self, now_ms: int) -> bool:
        """Whether it has been decoded faster than anybody speaks."""
        return self.first_ms is not None and self.session.processed_ms > now_ms - self.first_ms + AHEAD_MS


class Batcher:
    """The sessions of one pool, by key."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._members)

    @property
    def keys(self) -> tuple[str, ...]:
        """Of all sessions."""
        return tuple(self._members)

    def add(self, key: str, session: Session, *, chunk_ms: int, decode: Callable[[bytes], bytes | Samples]) -> None:
        """A new session.

        Args:
            key: not yet in use.
            session: of the pool that all share.
            chunk_ms: its chunk.
            decode: bytes as they come in to what the session takes.
        """
        assert key not in self._members
        self._members[key] = _Member(session=session, decode=decode, chunk_ms=chunk_ms)

    def put(self, key: str, item: Inbox) -> None:
        """An item for a session's inbox; nothing happens if it has ended."""
        if (member := self._members.get(key)) is not None and member.finish is None:
            member.inbox.append(item)

    def hold(self, key: str, held: bool) -> None:
        """Whether a session shall not be decoded, because nobody takes what it says."""
        if (member := self._members.get(key)) is not None:
            member.held = held

    def drop(self, key: str) -> None:
        """Ends a session at once; nothing more is said, its slot is free."""
        if (member := self._members.pop(key, None)) is not None:
            member.session.close(decode_rest=False)

    def real_time_factor(self, key: str) -> float:
        """Time that steps take with this session among them, over the audio that they decode of it; lately."""
        member = self._members.get(key)
        return 0.0 if member is None else member.real_time_factor

    def taken(self) -> Mapping[str, Taken]:
        """What left each inbox since the last call."""
        taken = {key: member.taken for key, member in self._members.items() if member.taken[1]}
        for member in self._members.values():
            member.taken = (0, 0)
        return taken

    def choose(self, now_ms: int) -> list[str]:
        """Whose block is decoded next: all that have one, but while somebody speaks, one at a time of those that are
        fed faster than that."""
        for key in self._members:
            self._pump(key)
        due = [key for key, member in self._members.items() if member.session.due and not member.held]
        if not any(member.live(now_ms) for member in self._members.values()):
            return due
        quick = [key for key in due if self._members[key].ahead(now_ms)]
        if len(quick) < 2:
            return due
        self._turn += 1
        mine = quick[self._turn % len(quick)]
        return [key for key in due if key == mine or key not in quick]

    def step(self, keys: Iterable[str], now_ms: int) -> None:
        """Decodes one block of each of `keys`, in one batch."""
        members = {key: self._members[key] for key in keys}
        try:
            advance_sessions([member.session for member in members.values()], now_ms)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the sessions of others
            if len(members) == 1:
                self._fail(next(iter(members)), error)
                return
            for key in members:
                self.step([key], now_ms)

    def _fail(self, key: str, error: Exception) -> None:
        member = self._members[key]
        member.said.append(Said(error=error))
        self._close(member, "error")

    def collect(self, now_ms: int, *, took_ms: float = 0.0, stepped: Iterable[str] = ()) -> dict[str, list[Said]]:
        """What every session has said since the last call; the sessions that ended are gone then.

        Args:
            now_ms: the clock as it is handed on.
            took_ms: what the last step took; stepped: who took part in it.
        """
        for key in stepped:
            if (member := self._members.get(key)) is not None:
                factor = took_ms / member.chunk_ms
                member.real_time_factor += SMOOTHING * (factor - member.real_time_factor)
        found = {}
        for key, member in list(self._members.items()):
            self._drain(member, now_ms)
            if member.said:
                found[key], member.said = member.said, []
            if key in found and found[key][-1].reason is not None:
                del self._members[key]
        return found

    def _drain(self, member: _Member, now_ms: int) -> None:
        meter = member.session.delays
        for event in member.session.events(now_ms):
            if isinstance(event, Words):
                wall = tuple(meter.wall_delay_ms(word, now_ms=now_ms) for word in event.words)
                member.said.append(Said(event=event, wall_ms=wall))
            elif isinstance(event, Flushed) and member.flush_ids:
                member.said.append(Said(event=event, flush_id=member.flush_ids.popleft()))
            elif isinstance(event, Flushed):
                pass  # the end's own
            elif isinstance(event, Closed):
                reason = member.finish.reason if member.finish is not None else "error"
                member.said.append(Said(event=event, reason=reason, audio=meter.audio(), wall=meter.wall()))
            else:
                member.said.append(Said(event=event))

    def _pump(self, key: str) -> None:
        """Takes from an inbox what can be decoded now."""
        member = self._members[key]
        session = member.session
        while not session.flushing:
            if member.finish is not None:
                self._close(member, member.finish.reason)
                return
            if not member.inbox or (session.due and isinstance(member.inbox[0], Audio)):
                return
            self._take(member, member.inbox.popleft())

    def _take(self, member: _Member, item: Inbox) -> None:
        session = member.session
        member.take(item)
        if isinstance(item, Audio):
            member.first_ms = item.at_ms if member.first_ms is None else member.first_ms
            member.newest_ms = item.at_ms
            try:
                session.take_audio(member.decode(item.bytes), item.at_ms)
            except (AudioFormatError, ConfigError) as error:
                self._end(member, Finish(reason="error", error=error))
        elif isinstance(item, FlushRequest):
            member.flush_ids.append(item.id)
            session.begin_flush()
        elif isinstance(item, Setting):
            try:
                changed = item.apply(session)
                member.said.append(Said(changed=changed, audio_ms=session.received_ms))
            except EarlybirdError as error:
                member.said.append(Said(error=error))
        else:
            self._end(member, item)

    def _end(self, member: _Member, finish: Finish) -> None:
        """The words of what was heard come first."""
        if finish.error is not None:
            member.said.append(Said(error=finish.error))
        member.finish = finish
        while member.inbox:
            member.take(member.inbox.popleft())
        member.session.begin_flush()

    def _close(self, member: _Member, reason: FinishReason) -> None:
        member.finish = Finish(reason=reason)
        member.session.close(decode_rest=False)
