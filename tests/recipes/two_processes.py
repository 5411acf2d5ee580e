"""One of the processes that tests/recipes/test_distributed.py starts: two steps of GRPO, and what came of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from recipes.distributed import Processes
from recipes.grpo import Grpo, GrpoConfig
from recipes.sessions import SessionMaker
from tests.recipes.test_grpo import CONFIG, WORDS, read_manifest
from tests.recipes.test_rollout import open_minded

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


if __name__ == "__main__":
    joined = Processes.start()
    metrics, run = trained(Path(sys.argv[1]), joined)
    weights = torch.cat([w.flatten() for w in run.model.recogniser.state_dict().values() if w.is_floating_point()])
    gathered = joined.gather([joined.rank, joined.rank + 10])
    result = {"metrics": metrics, "weights": float(weights.double().abs().sum()), "gathered": gathered}
    (Path(sys.argv[1]) / f"result-{joined.rank}.json").write_text(json.dumps(result))
    joined.end()
