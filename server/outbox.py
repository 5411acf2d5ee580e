"""What one session has for its client: committed messages in order, each once, and the newest of what is volatile."""

from __future__ import annotations

from collections import deque

from asr.errors import ProtocolError
from server.messages import encode

KEPT = 2_048
"""Messages that stay for a client that comes back and never says what it has; about half an hour of speech."""
FULL_BYTES = 256 * 1024
"""So much unsent, and the session is not decoded further."""


class Outbox:
    """Messages of one session.

    Committed ones carry `seq`, counted from 1, are never dropped before they were sent, and stay until the client has
    acknowledged them. Of volatile ones only the newest of each kind is there, behind all committed ones.

    Attributes:
        seq: of the newest committed message.
        unsent_bytes: of committed messages.
    """

    def __init__(self) -> None:
        self.seq = 0
        self.unsent_bytes = 0
        self._kept: deque[str] = deque()
        self._sent = 0  # how many of those have been
        self._volatile: dict[str, str] = {}
        self._shown: str | None = None

    @property
    def full(self) -> bool:
        """Whether the client takes less than it gets."""
        return self.unsent_bytes > FULL_BYTES

    def commit(self, kind: str, fields: dict[str, object]) -> None:
        """A message that must arrive."""
        self.seq += 1
        text = encode(kind, seq=self.seq, **fields)
        self._kept.append(text)
        self.unsent_bytes += len(text)

    def replace(self, kind: str, fields: dict[str, object]) -> None:
        """A message that makes the one before of its kind out of date."""
        self._volatile[kind] = encode(kind, **fields)
        if kind == "tail":
            self._shown = self._volatile[kind]

    def take(self) -> str | None:
        """The next message to be sent, None if there is none."""
        if self._sent < len(self._kept):
            text = self._kept[self._sent]
            self._sent += 1
            self.unsent_bytes -= len(text)
            while self._sent > KEPT:
                self._kept.popleft()
                self._sent -= 1
            return text
        if self._volatile:
            return self._volatile.pop(next(iter(self._volatile)))
        return None

    def acknowledge(self, seq: int) -> None:
        """The client has all messages up to `seq`.

        Raises:
            ProtocolError: if there is no such message yet.
        """
        self._check(seq)
        while self._kept and self.seq - len(self._kept) < seq and self._sent:
            self._kept.popleft()
            self._sent -= 1

    def rewind(self, seq: int) -> None:
        """All messages behind `seq` are to be sent again, and the tail.

        Raises:
            ProtocolError: if some of them are gone, or there is no such message yet.
        """
        self._check(seq)
        gone = self.seq - len(self._kept)
        if seq < gone:
            raise ProtocolError(
                "resume_lost",
                f"messages behind seq {seq} were asked for; those up to {gone} were acknowledged or are too old",
            )
        for _ in range(seq - gone):
            self._kept.popleft()
        self._sent = 0
        self.unsent_bytes = sum(len(text) for text in self._kept)
        if self._shown is not None:
            self._volatile["tail"] = self._shown

    def _check(self, seq: int) -> None:
        if seq > self.seq:
            raise ProtocolError("bad_message", f"seq is {seq}; the newest message of this session has {self.seq}")
