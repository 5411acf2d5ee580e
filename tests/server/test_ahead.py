import threading
from collections.abc import Iterator

import numpy as np
import pytest

from asr.errors import TruncatedAudio
from asr.resample import Samples
from server.ahead import BLOCKS_AHEAD, ReadAhead


class Blocks:
    """Counts what was asked of it, and in which thread it was closed."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count, self.error = count, error
        self.given = 0
        self.closed: threading.Thread | None = None
        self.changed = threading.Condition()

    def __iter__(self) -> Iterator[Samples]:
        return self

    def __next__(self) -> Samples:
        with self.changed:
            if self.given == self.count:
                raise self.error or StopIteration
            self.given += 1
            self.changed.notify()
            return np.full(3, self.given, dtype=np.float32)

    def close(self) -> None:
        self.closed = threading.current_thread()


def test_the_blocks_come_in_order_and_to_the_end() -> None:
    blocks = Blocks(20)
    assert [int(block[0]) for block in ReadAhead(blocks)] == list(range(1, 21))
    assert blocks.closed is not None
    assert blocks.closed is not threading.current_thread(), "whoever reads it closes it"


def test_only_a_few_are_read_ahead() -> None:
    blocks = Blocks(50)
    ahead = ReadAhead(blocks)
    assert blocks.given == 0, "a file is opened in its turn"
    next(ahead)
    with blocks.changed:
        assert blocks.changed.wait_for(lambda: blocks.given == 1 + BLOCKS_AHEAD + 1, timeout=5)
        assert not blocks.changed.wait_for(lambda: blocks.given > 1 + BLOCKS_AHEAD + 1, timeout=0.2)
    ahead.close()
    assert blocks.closed is not None
    assert list(ahead) == []


def test_an_error_comes_in_its_place() -> None:
    ahead = ReadAhead(Blocks(2, TruncatedAudio("here")))
    assert [int(next(ahead)[0]), int(next(ahead)[0])] == [1, 2]
    with pytest.raises(TruncatedAudio, match="here"):
        next(ahead)
    assert list(ahead) == []


def test_closing_what_was_never_read_closes_it() -> None:
    blocks = Blocks(2)
    ahead = ReadAhead(blocks)
    ahead.close()
    ahead.close()
    assert (blocks.given, blocks.closed) == (0, threading.current_thread())
    assert list(ahead) == []
