"""Several processes take the steps that one process takes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recipes.distributed import Processes
from tests.recipes.test_grpo import recorded
from tests.recipes.two_processes import sharded, supervised, trained

ROOT = Path(__file__).parents[2]


def test_one_process_needs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    alone = Processes.start()
    assert (alone.first, alone.share([1, 2, 3]), alone.gather([4, 5])) == (True, [1, 2, 3], [4, 5])
    value = torch.tensor([1.0])
    assert alone.add(value) is value
    parameter = torch.nn.Parameter(torch.zeros(1))
    alone.add_gradients([parameter])
    assert parameter.grad is None
    alone.end()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_shares_are_all_items_once(size: int) -> None:
    parts = [Processes(rank=rank, size=size).share(list(range(7))) for rank in range(size)]
    assert sorted(item for part in parts for item in part) == list(range(7))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def sizes(weights: dict[str, torch.Tensor]) -> float:
    return float(sum(weight.double().abs().sum() for weight in weights.values() if weight.is_floating_point()))


def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    """Of post-training and of supervised training, also with weights of which each process holds a part.

    Batches of three and of one are shared unevenly. What two processes saved, one goes on from.
    """
    recorded(tmp_path)
    environment = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.recipes.two_processes", str(tmp_path)],
            env=environment | {"RANK": str(rank)},
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    expected, run = trained(tmp_path, Processes())
    expected += supervised(tmp_path, Processes())
    alone, steps = sharded(tmp_path, Processes())
    again, _ = sharded(tmp_path, Processes())
    assert [process.wait() for process in running] == [0, 0]
    weights = [w.flatten() for w in run.model.recogniser.state_dict().values() if w.is_floating_point()]
    total = float(torch.cat(weights).double().abs().sum())
    steps.append(alone.step())
    expected += steps
    again.load_state_dict(torch.load(tmp_path / "sharded.pt", weights_only=True))
    assert again.step() == pytest.approx(steps[-1], rel=1e-4, abs=1e-6)
    assert sizes(again.trained_weights()) == pytest.approx(sizes(alone.trained_weights()), rel=1e-5)
    layers = sum(weight.numel() for weight in alone.recogniser.decoder.layers.parameters())
    held = []
    for rank in range(2):
        result = json.loads((tmp_path / f"result-{rank}.json").read_text())
        assert result["gathered"] == [0, 1, 10, 11]
        assert result["weights"] == pytest.approx(total, rel=1e-6)
        for mine, theirs in zip(expected, result["metrics"] + result["sft"] + result["sharded"], strict=True):
            assert theirs == pytest.approx(mine, rel=1e-4, abs=1e-6)
        assert result["mean"] == pytest.approx(sizes(alone.trained_weights()), rel=1e-5)
        held.append(result["held"])
    assert sum(held) == layers
    assert max(held) < 0.6 * layers
