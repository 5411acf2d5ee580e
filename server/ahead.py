"""Audio is read by a thread while the model works on what was read before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Full, Queue

from asr.resample import Samples

BLOCKS_AHEAD = 2
POLL_SECONDS = 0.05


class ReadAhead:
    """The blocks of an iterator, taken from it by a thread of its own, a few ahead.

    Args:
        blocks: read from the first `next` on; what it raises is raised here in its place; closed by its thread.
    """

    def __init__(self, blocks: Iterator[Samples]) -> None:
        self._blocks = blocks
        self._queue: Queue[Samples | Exception | None] = Queue(maxsize=BLOCKS_AHEAD)
        self._closed = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[Samples]:
        return self

    def __next__(self) -> Samples:
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._read, name="read-ahead", daemon=True)
            self._thread.start()
        if self._ended or self._closed.is_set():
            raise StopIteration
        item = self._queue.get()
        if isinstance(item, Exception) or item is None:
            self._ended = True
            self.close()
            raise StopIteration if item is None else item
        return item

    def close(self) -> None:
        """Stop reading; the file is closed when this returns."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        else:
            self._close_blocks()

    def _close_blocks(self) -> None:
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()

    def _read(self) -> None:
        last: Exception | None = None
        try:
            for samples in self._blocks:
                if not self._put(samples):
                    break
        except Exception as error:  # noqa: BLE001 - raised again where the blocks are taken
            last = error
        self._close_blocks()
        self._put(last)

    def _put(self, item: Samples | Exception | None) -> bool:
        """Whether it was taken; not any more once this is closed."""
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=POLL_SECONDS)
            except Full:
                continue
            return True
        return False
