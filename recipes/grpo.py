"""Latency post-training: a recogniser learns from what it wrote, and how soon, in its own streams (GRPO).

`python -m recipes.grpo --config F.yaml --model M --data MANIFEST WORDS [--data …] [--noise NOISE.jsonl] --out DIR`

Each step draws recordings, lets the recogniser write each of them G times with its decisions drawn at random
(recipes/rollout.py), scores words and delays (recipes/grpo_reward.py), and raises the probability of what scored above
its group (Shao et al. 2024). A cross-family model with the attention gate is first given one that corrects it. Decoder
and gate learn, fully or by low-rank corrections; the encoder stays. WORDS is a folder of `recipes.spell`.
A killed run goes on from its last save with the same rollouts and losses. `DIR` gets metrics.jsonl, train.pt,
rollouts.jsonl (the best and the worst of a recording at every logged step) and a checkpoint.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import asr
from asr.config import ChunkSetting
from asr.cross_recogniser import CrossRecogniser
from asr.errors import ConfigError, EarlybirdError
from asr.gate import AttentionGate, LearnedGate
from asr.model import CrossConfig, Model, build_cross
from asr.units import STEP_MS
from recipes.data import Clip
from recipes.distributed import Processes
from recipes.grpo_metrics import MEASURES, averages, measured
from recipes.grpo_reward import Outcome, RewardRule, advantages, outcome_of, rewards, segment_scores
from recipes.lora import attach_lora, merge_lora
from recipes.rollout import Heard, RolledWord, Rollouts
from recipes.rollout_cross import policy_of
from recipes.runs import ROLLOUTS, above, add_outputs, check_same_run, follow, keep, shown_clips, train
from recipes.sessions import Plan, Session, SessionMaker, read_noises, taught_clips
from recipes.settings import read_settings
from recipes.teacher import TaughtWord
from recipes.updates import Trained, Updates

__all__ = ["Grpo", "GrpoConfig", "policy_loss", "with_correcting_gate"]


@dataclass(frozen=True, kw_only=True)
class GrpoConfig:
    """Settings of a run; configs/grpo.yaml says what each one is."""

    seed: int = 1
    steps: int = 100
    recordings: int = 4
    group: int = 6
    longest_ms: int = 8_000
    shortest_words: int = 2
    delay_min: int = 6
    delay_max: int = 6
    chunk_ms: int = 320
    tail_steps: int = 16
    temperature: float = 1.0
    delay_weight: float = 0.01
    least_matched: float = 0.5
    literal_reward: bool = False
    scaled_advantages: bool = True
    segment_credit: bool = False
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_weight: float = 0.04
    iterations: int = 1
    decoder_rate: float = 5e-6
    gate_rate: float = 3e-3
    gate_hidden: int = 32
    lora_rank: int = 0
    lora_alpha: float = 16.0
    weight_decay: float = 0.0
    warmup_steps: int = 5
    clip_norm: float = 1.0
    accumulation: int = 1
    average_decay: float = 0.0
    silent_bound: float = 0.2
    repeats_bound: float = 0.1
    log_every: int = 1
    save_every: int = 20

    def __post_init__(self) -> None:
        counts = ("steps", "recordings", "delay_min", "iterations", "gate_hidden", "log_every", "save_every")
        for name in (*counts, "warmup_steps", "shortest_words", "accumulation"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.group < 2:
            raise ConfigError(f"group is {self.group}; a rollout is compared with at least one other")
        if self.temperature <= 0 or self.clip_low <= 0 or self.clip_high <= 0 or self.clip_norm <= 0:
            raise ConfigError(f"temperature and clips must be above 0; got {self}")
        if min(self.decoder_rate, self.gate_rate, self.kl_weight, self.weight_decay, self.lora_rank) < 0:
            raise ConfigError(f"rates, weights and ranks must be 0 or more; got {self}")
        if self.delay_max < self.delay_min:
            raise ConfigError(f"delay_min ({self.delay_min}) must not exceed delay_max ({self.delay_max})")

    @property
    def rule(self) -> RewardRule:
        """How rollouts are scored."""
        return RewardRule(delay_weight=self.delay_weight, least_matched=self.least_matched, literal=self.literal_reward)


# -- the loss --------------------------------------------------------------------------------------------------------


def policy_loss(
    log_probs: Tensor,
    drawn: Tensor,
    reference: Tensor,
    advantage: Tensor,
    free: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    kl_weight: float,
) -> tuple[Tensor, dict[str, float]]:
    """The sum over rollouts of the mean over their decisions of -min(ρ A, clip(ρ) A) + β · k3.

    ρ is the probability now over the one it was drawn with; k3 = exp(d) - d - 1 with d = log ref - log now (Schulman
    2020), an estimate of the divergence from the reference that is never negative.

    Args:
        log_probs: [N, T] now, with gradients; drawn: as they were drawn; reference: the reference's.
        advantage: [N] of rollouts, or [N, T] of decisions.
        free: [N, T] the decisions; a rollout without one counts 0.
        clip_low, clip_high: ρ counts from 1 - clip_low to 1 + clip_high.
        kl_weight: β.
    Returns:
        The loss, and sums over rollouts as numbers: `kl`, `clipped` (share of decisions), `entropy` (-log now).
    """
    weight = free / free.sum(1, keepdim=True).clamp(min=1)
    advantage = advantage[:, None] if advantage.dim() == 1 else advantage
    ratio = (log_probs - drawn).exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    gain = torch.minimum(ratio * advantage, bounded * advantage)
    away = reference - log_probs
    divergence = away.exp() - away - 1
    loss = ((kl_weight * divergence - gain) * weight).sum()
    with torch.no_grad():
        clipped = ((ratio * advantage > bounded * advantage) * weight).sum()
        return loss, {
            "kl": float((divergence * weight).sum()),
            "clipped": float(clipped),
            "entropy": float((-log_probs * weight).sum()),
        }


# -- the run ---------------------------------------------------------------------------------------------------------


def with_correcting_gate(model: Model, *, hidden: int) -> Model:
    """The same model, deciding the same, with a gate that can learn; as it is where there is one."""
    if not isinstance(model.recogniser, CrossRecogniser) or not isinstance(model.config, CrossConfig):
        return model
    if isinstance(model.recogniser.gate, LearnedGate):
        return model
    if not isinstance(model.recogniser.gate, AttentionGate):
        raise ConfigError(f"{model.name} has a {type(model.recogniser.gate).__name__}, which nothing can correct")
    config = replace(model.config, gate_hidden=hidden, gate_corrects=True)
    recogniser = build_cross(config, model.vocabulary)
    recogniser.load_state_dict(model.recogniser.state_dict(), strict=False)
    return replace(model, config=config, recogniser=recogniser.eval())


@dataclass(frozen=True)
class Scored:
    """Rollouts and what they are worth.

    Attributes:
        rollouts: N of them, [N, T] decisions.
        outcomes, scores: of each.
        advantage: [N] of rollouts, or [N, T] of decisions.
        reference: [N, T] the reference's log-probabilities of what was drawn.
        shown: the best and the worst of the first recording.
    """

    rollouts: Rollouts
    outcomes: list[Outcome]
    scores: list[float]
    advantage: Tensor
    reference: Tensor
    shown: dict[str, object]


class Grpo:
    """One run: weights, optimiser and random state; `step` moves it on.

    Args:
        model: trained in place; `with_correcting_gate` where its gate has nothing to learn.
        clips, maker: what the recordings are made of; every clip has words.
        config: the settings.
        processes: that share the recordings of a step.

    Attributes:
        done: steps taken. shown: the best and the worst rollout of the last step's first recording.

    Raises:
        ConfigError: if no clip is short enough, nothing is to be trained, or the model was not made for the chunk and
            for a delay in the range.
    """

    def __init__(
        self,
        model: Model,
        clips: Sequence[Clip],
        maker: SessionMaker,
        config: GrpoConfig,
        processes: Processes | None = None,
    ) -> None:
        self.model, self.config, self.done = model, config, 0
        self.shown: dict[str, object] = {}
        self._clips = [clip for clip in clips if clip.duration_ms <= config.longest_ms]
        if not self._clips:
            raise ConfigError(f"none of {len(clips)} clips is {config.longest_ms} ms or shorter")
        self._maker, self._processes = maker, processes or Processes()
        self._delays = [d for d in model.config.limits.delays if config.delay_min <= d <= config.delay_max]
        if not self._delays:
            raise ConfigError(
                f"{model.name} offers delays of {model.config.limits.delays} steps; none is from "
                f"{config.delay_min} to {config.delay_max}"
            )
        chunk: ChunkSetting = model.settings(delay_ms=self._delays[0] * STEP_MS, chunk_ms=config.chunk_ms).chunk
        torch.manual_seed(config.seed)
        self.policy = policy_of(model, chunk, temperature=config.temperature)
        self._reference = copy.deepcopy(model.recogniser).eval().requires_grad_(False)
        self._rng = random.Random(config.seed)
        self._order: list[int] = []
        self._updates = Updates(
            self._trained(),
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            betas=(0.9, 0.999),
            average_decay=config.average_decay,
            processes=self._processes,
        )

    def _trained(self) -> list[Trained]:
        config, recogniser = self.config, self.model.recogniser
        recogniser.eval().requires_grad_(False)
        parts: list[Trained] = []
        if config.decoder_rate:
            decoder = recogniser.decoder
            if config.lora_rank:
                weights = attach_lora(decoder, rank=config.lora_rank, alpha=config.lora_alpha)
            else:
                decoder.requires_grad_(True)
                decoder.embedding.requires_grad_(False)
                if isinstance(recogniser, CrossRecogniser):
                    recogniser.decoder.positions.requires_grad_(False)
                weights = [p for p in decoder.parameters() if p.requires_grad]
            parts.append(Trained(weights=weights, rate=config.decoder_rate))
        if config.gate_rate and isinstance(recogniser, CrossRecogniser):
            gate = recogniser.gate
            assert isinstance(gate, LearnedGate)
            parts.append(Trained(weights=list(gate.requires_grad_(True).parameters()), rate=config.gate_rate))
        if not parts:
            raise ConfigError("neither the decoder nor a gate has a learning rate: nothing would be trained")
        return parts

    def _sessions(self) -> list[tuple[Session, int, int]]:
        """The next recordings, a delay and a seed each."""
        chosen: list[tuple[Session, int, int]] = []
        tried = 0
        while len(chosen) < self.config.recordings:
            if not self._order:
                self._order = self._rng.sample(range(len(self._clips)), len(self._clips))
            clip = self._clips[self._order.pop()]
            plan = Plan(clips=(clip,), pauses_ms=(0,), seed=self._rng.randrange(2**31))
            delay, seed = self._rng.choice(self._delays), self._rng.randrange(2**31)
            session = self._maker.make(plan)
            tried += 1
            if len(session.words) >= self.config.shortest_words:
                chosen.append((session, delay, seed))
            elif tried > 2 * len(self._clips) + self.config.recordings:
                raise ConfigError(f"hardly a clip has {self.config.shortest_words} words; lower shortest_words")
        return chosen

    def step(self) -> dict[str, float]:
        """One batch of rollouts, rolled and learnt from in `accumulation` parts, and its updates; the metrics.

        The numbers of the loss are those of the last update.

        Raises:
            ConfigError: if the loss is not finite. The weights have not moved by it then.
        """
        config = self.config
        mine = self._processes.share(self._sessions())
        total = config.recordings * config.group
        size = max(1, -(-len(mine) // config.accumulation))
        scored = [self._scored(mine[at : at + size]) for at in range(0, len(mine), size)]
        if scored:
            self.shown = scored[0].shown
        sums: dict[str, float] = {}
        for _ in range(config.iterations):
            self._updates.clear()
            sums = {"loss": 0.0, "kl": 0.0, "clipped": 0.0, "entropy": 0.0}
            for part in scored:
                loss, numbers = policy_loss(
                    self.policy.log_probs(part.rollouts),
                    part.rollouts.log_probs,
                    part.reference,
                    part.advantage,
                    part.rollouts.free,
                    clip_low=config.clip_low,
                    clip_high=config.clip_high,
                    kl_weight=config.kl_weight,
                )
                (loss / total).backward()  # type: ignore[no-untyped-call]
                sums = {name: sums[name] + value for name, value in ({"loss": float(loss.detach())} | numbers).items()}
            sums = dict(zip(sums, self._added(list(sums.values())), strict=True))
            if not math.isfinite(sums["loss"]):
                raise ConfigError(f"the loss of step {self.done + 1} is {sums['loss']}; lower the rates")
            gradient = self._updates.apply(min(1.0, (self.done + 1) / config.warmup_steps))
        self.done += 1
        here = torch.zeros(len(MEASURES), dtype=torch.float64)
        for part in scored:
            here += torch.tensor(measured(part.outcomes, part.scores, part.rollouts), dtype=torch.float64)
        everywhere = self._added(here.tolist())
        return {
            **{name: value / total for name, value in sums.items()},
            **averages(dict(zip(MEASURES, everywhere, strict=True))),
            "gradient_norm": gradient,
        }

    def _added(self, values: Sequence[float]) -> list[float]:
        found: list[float] = self._processes.add(torch.tensor(values, dtype=torch.float64)).tolist()
        return found

    def _scored(self, mine: Sequence[tuple[Session, int, int]]) -> Scored:
        """Rollouts of the recordings and what they are worth."""
        config = self.config
        heard = Heard.of(
            [session.heard for session, _, _ in mine],
            [delay for _, delay, _ in mine],
            chunk_steps=self.policy.chunk.chunk_steps,
            tail_steps=config.tail_steps,
        )
        rollouts = self.policy.roll(heard, config.group, [seed for _, _, seed in mine])
        outcomes: list[Outcome] = []
        scores: list[float] = []
        segments: list[Tensor] = []
        shown: dict[str, object] = {}
        for b, (session, _, _) in enumerate(mine):
            rows = rollouts.words[b * config.group : (b + 1) * config.group]
            group = [outcome_of(session.words, words) for words in rows]
            found = rewards(group, config.rule)
            if config.segment_credit:
                segments.append(segment_scores(session.words, rows, config.rule, steps=rollouts.tokens.shape[1]))
            if b == 0:
                shown = _shown(session.words, rows, found)
            outcomes += group
            scores += found
        with torch.no_grad():
            reference = self.policy.log_probs(rollouts, self._reference)
        if config.segment_credit:
            return Scored(rollouts, outcomes, scores, torch.cat(segments), reference, shown)
        groups = torch.tensor(scores).view(-1, config.group)
        advantage = advantages(groups, scaled=config.scaled_advantages).flatten()
        return Scored(rollouts, outcomes, scores, advantage, reference, shown)

    def trained_model(self) -> Model:
        """A copy of the model as it is now, low-rank corrections added to its weights, averaged where that is kept."""
        with self._updates.averaged():
            recogniser = copy.deepcopy(self.model.recogniser)
        merge_lora(recogniser.decoder)
        return replace(self.model, recogniser=recogniser.eval().requires_grad_(False))

    def state_dict(self) -> dict[str, Any]:
        """All that the steps to come depend on, beside the data."""
        return {
            "config": asdict(self.config),
            "clips": len(self._clips),
            "done": self.done,
            "weights": self.model.recogniser.state_dict(),
            "reference": self._reference.state_dict(),
            "updates": self._updates.state_dict(),
            "order": self._order,
            "random": self._rng.getstate(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`.

        Raises:
            CheckpointError: if it is of a run with other settings or another number of clips.
        """
        check_same_run(state, {"config": asdict(self.config), "clips": len(self._clips)})
        self.model.recogniser.load_state_dict(state["weights"])
        self._reference.load_state_dict(state["reference"])
        self._updates.load_state_dict(state["updates"])
        self.done, self._order = state["done"], list(state["order"])
        self._rng.setstate(state["random"])


def _shown(
    reference: Sequence[TaughtWord], rows: Sequence[Sequence[RolledWord]], scores: Sequence[float]
) -> dict[str, object]:
    order = sorted(range(len(rows)), key=lambda i: scores[i])
    shown = {
        name: {"reward": round(scores[i], 4), "text": " ".join(word.text for word in rows[i])}
        for name, i in (("best", order[-1]), ("worst", order[0]))
    }
    return {"reference": " ".join(word.text for word in reference), **shown}


def build_parser() -> argparse.ArgumentParser:
    """The command line of `python -m recipes.grpo`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, nargs=2, action="append", required=True, metavar=("MANIFEST", "WORDS"))
    parser.add_argument("--noise", type=Path)
    add_outputs(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when trained, 2 when a setting or a file is wrong."""
    args = build_parser().parse_args(argv)
    processes = Processes.start()
    try:
        config = GrpoConfig() if args.config is None else read_settings(GrpoConfig, args.config)
        clips, words = taught_clips(args.data)
        model = with_correcting_gate(asr.load(args.model), hidden=config.gate_hidden)
        run = Grpo(model, clips, SessionMaker(words, read_noises(args.noise)), config, processes)
        shown = shown_clips(args.show)

        def saved() -> None:
            if not processes.first:
                return
            keep(
                run.trained_model(),
                args.out,
                step=run.done,
                stage="GRPO",
                settings=asdict(config),
                shown=shown,
                every=args.keep_all,
            )

        alarms = (
            above("silent", config.silent_bound, "rollouts write nothing"),
            above("repeats", config.repeats_bound, "words repeat the one before"),
        )
        options = {"saved": saved, "processes": processes, "plot": args.plot, "tensorboard": args.tensorboard}
        for line in follow(train(run, args.out, alarms=alarms, **options), config.steps):
            if "alarm" not in line:
                with (args.out / ROLLOUTS).open("a", encoding="utf-8") as out:
                    out.write(json.dumps({"step": line["step"], **run.shown}, ensure_ascii=False) + "\n")
    except (EarlybirdError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        processes.end()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
