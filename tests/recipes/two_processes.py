"""One of the processes that tests/recipes/test_distributed.py starts: two steps of two recipes, and what came of it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from recipes.distributed import Processes
from recipes.grpo import Grpo, GrpoConfig
from recipes.sessions import SessionMaker
from recipes.sft import Trainer
from tests.recipes.test_grpo import CONFIG, WORDS, read_manifest
from tests.recipes.test_rollout import open_minded
from tests.recipes.test_sft import CONFIG as SFT
from tests.recipes.test_sft import EXAMPLES, tiny

STEPS = 2


def trained(folder: Path, processes: Processes, config: GrpoConfig = CONFIG) -> tuple[list[dict[str, float]], Grpo]:
    """Metrics of two steps on the clips in `folder`."""
    torch.set_num_threads(1)
    scratch = folder / str(processes.rank)
    scratch.mkdir(exist_ok=True)
    clips = read_manifest(folder / "clips.jsonl")
    maker = SessionMaker({clip.audio: WORDS for clip in clips}, [])
    run = Grpo(open_minded(scratch), clips, maker, config, processes)
    return [run.step() for _ in range(STEPS)], run


def supervised(folder: Path, processes: Processes) -> list[dict[str, float]]:
    """Metrics of two steps of supervised training, two batches a step; and of two with a clip a batch."""
    scratch = folder / f"sft-{processes.rank}"
    scratch.mkdir(exist_ok=True)
    found = []
    for config in (replace(SFT, batch_size=3, accumulation=2), replace(SFT, batch_seconds=1.3, longest_ms=1300)):
        trainer = Trainer(tiny(scratch), EXAMPLES, config, processes)
        found += [trainer.step() for _ in range(STEPS)]
    return found


def sharded(folder: Path, processes: Processes) -> tuple[Trainer, list[dict[str, float]]]:
    """Two steps with the decoder's layers spread over the processes, an average kept; what is saved after them."""
    scratch = folder / f"sharded-{processes.rank}"
    scratch.mkdir(exist_ok=True)
    config = replace(SFT, sharded=True, average_decay=0.5, accumulation=2, clip_norm=0.5)
    trainer = Trainer(tiny(scratch), EXAMPLES, config, processes)
    return trainer, [trainer.step() for _ in range(STEPS)]


if __name__ == "__main__":
    joined = Processes.start()
    metrics, run = trained(Path(sys.argv[1]), joined)
    weights = torch.cat([w.flatten() for w in run.model.recogniser.state_dict().values() if w.is_floating_point()])
    sft = supervised(Path(sys.argv[1]), joined)
    spread, steps = sharded(Path(sys.argv[1]), joined)
    held = sum(w.to_local().numel() for w in spread.recogniser.decoder.layers.parameters())  # type: ignore[operator]
    state = spread.state_dict()
    if joined.first:
        torch.save(state, Path(sys.argv[1]) / "sharded.pt")
    third, trained = spread.step(), spread.trained_weights()
    mean = float(sum(w.double().abs().sum() for w in trained.values() if w.is_floating_point()))
    gathered = joined.gather([joined.rank, joined.rank + 10])
    result = {"metrics": metrics, "weights": float(weights.double().abs().sum()), "gathered": gathered, "sft": sft}
    result |= {"sharded": [*steps, third], "held": held, "mean": mean}
    (Path(sys.argv[1]) / f"result-{joined.rank}.json").write_text(json.dumps(result))
    joined.end()
