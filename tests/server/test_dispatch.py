import random
from pathlib import Path

import pytest

from server.dispatch import Dispatcher, Task


def tasks(count: int) -> list[Task]:
    return [Task(index=n, path=Path(f"{n}.wav")) for n in range(count)]


def index(task: Task | None) -> int | None:
    return None if task is None else task.index


def test_files_go_out_in_order_up_to_the_room_of_a_worker() -> None:
    dispatcher = Dispatcher(tasks(9), room=2)
    for worker in "ab":
        dispatcher.join(worker)
    assert [index(dispatcher.next_for(worker)) for worker in "aabbab"] == [0, 1, 2, 3, None, None]
    dispatcher.finished("b", 2)
    assert [index(dispatcher.next_for("b")) for _ in range(2)] == [4, None]
    assert dispatcher.waiting == 4


def test_few_files_are_shared_evenly() -> None:
    dispatcher = Dispatcher(tasks(4), room=9)
    for worker in "ab":
        dispatcher.join(worker)
    assert [index(dispatcher.next_for(worker)) for worker in "aaabbb"] == [0, 1, None, 2, 3, None]


def test_the_files_of_a_worker_that_dies_are_tried_alone_at_the_end() -> None:
    dispatcher = Dispatcher(tasks(5), room=2)
    for worker in "ab":
        dispatcher.join(worker)
    assert [index(dispatcher.next_for(worker)) for worker in "aab"] == [0, 1, 2]
    assert dispatcher.died("a") == []
    dispatcher.join("c")
    assert [index(dispatcher.next_for(worker)) for worker in "bcc"] == [3, 4, None], "first what nobody has tried"
    dispatcher.finished("b", 2)
    assert index(dispatcher.next_for("b")) is None, "a suspect is for a worker that has nothing else"
    dispatcher.finished("b", 3)
    assert [index(dispatcher.next_for(worker)) for worker in "bb"] == [0, None]
    assert [task.index for task in dispatcher.died("b")] == [0], "given up: it was alone"
    dispatcher.finished("c", 4)
    assert index(dispatcher.next_for("c")) == 1
    assert not dispatcher.over
    dispatcher.finished("c", 1)
    assert dispatcher.over


@pytest.mark.parametrize("seed", range(20))
def test_whatever_dies_every_file_ends_once_and_only_killers_are_given_up(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randrange(1, 30)
    killers = {n for n in range(count) if chance.random() < 0.15}
    dispatcher = Dispatcher(tasks(count), room=chance.randrange(1, 5))
    ended: list[int] = []
    given_up: list[int] = []
    workers: dict[int, list[Task]] = {}
    born = 0
    while not dispatcher.over:
        while len(workers) < 3:
            workers[born] = []
            dispatcher.join(born)
            born += 1
        for worker, held in workers.items():
            while (task := dispatcher.next_for(worker)) is not None:
                held.append(task)
        worker = chance.choice([w for w, held in workers.items() if held])
        task = chance.choice(workers[worker])
        accident = chance.random() < 0.05 and len(workers[worker]) > 1
        if task.index in killers or accident:
            given_up += [lost.index for lost in dispatcher.died(worker)]
            del workers[worker]
        else:
            workers[worker].remove(task)
            dispatcher.finished(worker, task.index)
            ended.append(task.index)
    assert sorted(ended + given_up) == list(range(count))
    assert set(given_up) == killers
