"""Supervised training of the additive family on delayed-stream targets.

`python -m recipes.sft --config F.yaml --model CHECKPOINT --manifest DATA/train.jsonl --alignments A.jsonl --out DIR
[--teacher M]`
Each clip's words are placed on the step clock by the builder that drafting uses, at a delay drawn for the clip. An
encoder that was taken from a Whisper and made causal can learn from the frames of a full-context `--teacher` as well
(`feature_weight`). A run that was killed goes on from its last save with the same batches and losses: call it again
with the same arguments.
`DIR` gets metrics.jsonl, train.pt (weights, optimiser, random state) and a checkpoint.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import asr
from asr.additive_config import AdditiveConfig
from asr.additive_recogniser import AdditiveRecogniser, build_additive
from asr.cross_recogniser import CrossRecogniser
from asr.errors import ConfigError, EarlybirdError
from asr.model import Model
from asr.units import FRAMES_PER_STEP, STEP_SAMPLES
from recipes import runs
from recipes.align import read_alignments
from recipes.cuts import BucketedOrder
from recipes.data import read_manifest
from recipes.distributed import Processes
from recipes.examples import AlignedExamples, Batch, Example, durations_ms, make_batch
from recipes.settings import read_settings
from recipes.sharding import shard, spread_as, whole
from recipes.teacher import full_context_features
from recipes.updates import Trained, Updates

__all__ = ["SftConfig", "Trainer", "objective", "train"]

LEAST_RATE = 0.1
"""The learning rate falls to this share of its height."""


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """Settings of a run; configs/sft.yaml says what each one is. Times in steps unless the name says otherwise."""

    seed: int = 1
    steps: int = 2000
    batch_size: int = 8
    batch_seconds: float = 0.0
    longest_ms: int = 16_000
    delay_min: int = 1
    delay_max: int = 30
    trailing_waits: int = 8
    learning_rate: float = 3e-4
    encoder_scale: float = 1.0
    decoder_scale: float = 1.0
    warmup_steps: int = 100
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    wait_weight: float = 0.3
    z_loss: float = 1e-4
    feature_weight: float = 0.0
    accumulation: int = 1
    bf16: bool = False
    sharded: bool = False
    average_decay: float = 0.0
    wait_rate_bound: float = 0.98
    repeats_bound: float = 0.2
    log_every: int = 10
    save_every: int = 200

    def __post_init__(self) -> None:
        counts = ("steps", "batch_size", "longest_ms", "delay_min", "warmup_steps", "log_every", "save_every")
        for name in (*counts, "accumulation"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("learning_rate", "clip_norm", "wait_weight", "encoder_scale", "decoder_scale"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.batch_seconds and 1000 * self.batch_seconds < self.longest_ms:
            raise ConfigError(f"batches of {self.batch_seconds} s cannot hold clips of longest_ms={self.longest_ms}")
        if self.delay_max < self.delay_min:
            raise ConfigError(f"delay_min ({self.delay_min}) must not exceed delay_max ({self.delay_max})")
        least = min(self.z_loss, self.weight_decay, self.trailing_waits, self.feature_weight)
        if least < 0 or not 0 < self.wait_rate_bound <= 1:
            raise ConfigError(
                f"z_loss, weight_decay, trailing_waits, feature_weight >= 0 and 0 < wait_rate_bound <= 1; got {self}"
            )

    @classmethod
    def read(cls, path: Path) -> SftConfig:
        """The settings in a YAML file; those it leaves out have their defaults.

        Raises:
            ConfigError: for a missing or unreadable file, unknown settings or values that cannot work.
        """
        return read_settings(cls, path)


# -- the objective ---------------------------------------------------------------------------------------------------


def sizes(batch: Batch, *, wait: int, wait_weight: float) -> Tensor:
    """[3] what the objective's sums are divided by: the weight of all steps, their count, and the count of text."""
    waits = batch.outputs == wait
    weight = torch.where(waits, wait_weight, 1.0) * batch.valid
    return torch.stack([weight.sum(), batch.valid.sum(), (batch.valid & ~waits).sum()])


def objective(
    logits: Tensor, batch: Batch, *, wait: int, wait_weight: float, z_loss: float, whole: Tensor | None = None
) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropy with waits counted less, and a pull of the log-normaliser towards 0.

    Args:
        logits: [B, T, V + 1], the wait last.
        batch: with targets [B, T].
        wait: V.
        wait_weight: what a waiting step counts; a step that writes counts 1.
        z_loss: weight of the mean squared log-normaliser.
        whole: the `sizes` of the batch that this is a part of, so that the parts' losses and numbers add up to its own.
    Returns:
        The loss, and its parts, rates and accuracies as numbers.
    """
    weight, count, texts = sizes(batch, wait=wait, wait_weight=wait_weight) if whole is None else whole
    normaliser = logits.logsumexp(-1)  # [B, T]
    chosen = logits.gather(-1, batch.outputs[:, :, None])[:, :, 0]
    waits = batch.outputs == wait
    counts = torch.where(waits, wait_weight, 1.0) * batch.valid
    entropy = (counts * (normaliser - chosen)).sum() / weight
    squared = (normaliser.square() * batch.valid).sum() / count
    loss = entropy + z_loss * squared
    said = logits.detach().argmax(-1)
    text = batch.valid & ~waits
    before = torch.cat([torch.full_like(batch.outputs[:, :1], wait), batch.outputs[:, :-1]], 1)
    again = batch.valid & (said == before) & (before != wait) & (batch.outputs != before)
    return loss, {
        "loss": float(loss.detach()),
        "cross_entropy": float(entropy.detach()),
        "squared_normaliser": float(squared.detach()),
        "wait_rate": float(((said == wait) & batch.valid).sum() / count),
        "target_wait_rate": float((waits & batch.valid).sum() / count),
        "text_right": float(((said == batch.outputs) & text).sum() / texts.clamp(min=1)),
        "repeats": float(again.sum() / texts.clamp(min=1)),
    }


def feature_loss(teacher: CrossRecogniser, frames: Tensor, batch: Batch, *, steps: Tensor) -> Tensor:
    """Mean squared distance of encoder frames to the teacher's, in units of what its closing norm makes of 1.

    Args:
        teacher: hears the clips as a whole.
        frames: [B, 4 T, C].
        steps: how many steps count in all parts of the batch together.
    """
    with torch.no_grad():
        target = full_context_features(teacher, batch.samples, batch.valid.sum(1) * STEP_SAMPLES)[0]
        gain = next(weight for weight in teacher.encoder.norm.parameters()).square().mean()
    distance = (frames - target).square().mean(-1).view(*batch.valid.shape, FRAMES_PER_STEP).mean(-1)
    return (distance * batch.valid).sum() / steps / gain


def learning_rate(step: int, config: SftConfig) -> float:
    """Of step 0, 1, …: a linear rise over `warmup_steps`, then half a cosine down to a tenth."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    share = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.learning_rate * (LEAST_RATE + (1 - LEAST_RATE) * (1 + math.cos(math.pi * min(1.0, share))) / 2)


# -- training --------------------------------------------------------------------------------------------------------


class Trainer:
    """One run: its weights, optimiser and random state; `step` moves it on.

    Args:
        recogniser: trained in place.
        examples: at least one; all come once before one comes again.
        config: the settings.
        processes: that share each batch.
        teacher: a full-context model whose frames the encoder's shall be near, as `feature_weight` says.

    Attributes:
        done: steps taken.

    Raises:
        ConfigError: if there is no example, a batch has fewer than there are processes, or the teacher does not fit.
    """

    def __init__(
        self,
        recogniser: AdditiveRecogniser,
        examples: Sequence[Example],
        config: SftConfig,
        processes: Processes | None = None,
        teacher: CrossRecogniser | None = None,
    ) -> None:
        self._processes = processes or Processes()
        if bool(config.feature_weight) != (teacher is not None):
            raise ConfigError(
                f"feature_weight is {config.feature_weight}: a teacher is needed exactly if it is above 0"
            )
        if teacher is not None and teacher.frontend.dim != recogniser.frontend.dim:
            raise ConfigError(f"the teacher's frames are of {teacher.frontend.dim}, not {recogniser.frontend.dim}")
        self._teacher = teacher
        if not len(examples):
            raise ConfigError("there is no clip to train on: the manifest and the alignments share none short enough")
        if config.batch_size < self._processes.size and not config.batch_seconds:
            raise ConfigError(f"{self._processes.size} processes cannot share a batch of {config.batch_size}")
        self.recogniser, self.config, self.done = recogniser, config, 0
        self._examples = examples
        self._rng = random.Random(config.seed)
        self._order: list[int] = []
        self._buckets: BucketedOrder | None = None
        if config.batch_seconds:
            lengths = durations_ms(examples)
            self._buckets = BucketedOrder(lengths, batch_seconds=config.batch_seconds, seed=config.seed)
        torch.manual_seed(config.seed)
        recogniser.train().requires_grad_(True)
        if config.sharded:
            shard(list(recogniser.decoder.layers), self._processes)
        self._updates = Updates(
            self._parts(),
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            average_decay=config.average_decay,
            processes=self._processes,
        )

    def _parts(self) -> list[Trained]:
        recogniser = self.recogniser
        ears = [*recogniser.frontend.parameters(), *recogniser.encoder.parameters()]
        layers = list(recogniser.decoder.layers.parameters())
        inside = {id(weight) for weight in layers}
        ends = [weight for weight in recogniser.decoder.parameters() if id(weight) not in inside]
        return [
            Trained(weights=list(recogniser.adapter.parameters()), rate=1.0),
            Trained(weights=ears, rate=self.config.encoder_scale),
            Trained(weights=ends, rate=self.config.decoder_scale),
            Trained(weights=layers, rate=self.config.decoder_scale),
        ]

    def next_batch(self) -> Batch:
        """Draws the next examples, and a delay for each; gives this process' share of them."""
        chosen = self._shuffled() if self._buckets is None else self._buckets.take()
        delays = [self._rng.randint(self.config.delay_min, self.config.delay_max) for _ in chosen]
        mine = self._processes.share(chosen)
        batch = make_batch(
            [self._examples[i] for i in mine or chosen[:1]],
            self._processes.share(delays) or delays[:1],
            wait=self.recogniser.wait,
            trailing_waits=self.config.trailing_waits,
        )
        if not mine:  # fewer clips than processes: this one is there, and nothing of it counts
            batch = replace(batch, valid=torch.zeros_like(batch.valid))
        device = self.recogniser.decoder.embedding.weight.device
        return Batch(*(getattr(batch, field.name).to(device) for field in fields(batch)))

    def _shuffled(self) -> list[int]:
        chosen: list[int] = []
        while len(chosen) < self.config.batch_size:
            if not self._order:
                self._order = self._rng.sample(range(len(self._examples)), len(self._examples))
            chosen.append(self._order.pop())
        return chosen

    def step(self) -> dict[str, float]:
        """One update from `accumulation` batches; its metrics.

        Raises:
            ConfigError: if the loss is not finite. The weights have not moved then.
        """
        config, recogniser = self.config, self.recogniser
        weights = {"wait": recogniser.wait, "wait_weight": config.wait_weight}
        batches = [self.next_batch() for _ in range(config.accumulation)]
        whole = self._processes.add(torch.stack([sizes(batch, **weights) for batch in batches]).sum(0))  # type: ignore[arg-type]
        self._updates.clear()
        sums: dict[str, float] = {}
        for batch in batches:
            logits, heard, audio_norm = self._forward(batch)
            loss, parts = objective(logits, batch, z_loss=config.z_loss, whole=whole, **weights)  # type: ignore[arg-type]
            if self._teacher is not None:
                features = feature_loss(self._teacher, heard, batch, steps=whole[1])
                loss = loss + config.feature_weight * features
                parts |= {"features": float(features.detach()), "loss": float(loss.detach())}
            loss.backward()  # type: ignore[no-untyped-call]
            parts |= {"audio_norm": float(audio_norm / whole[1]), "text_norm": self._text_norm(batch, whole)}
            sums = {name: sums.get(name, 0.0) + value for name, value in parts.items()}
        added = self._processes.add(torch.tensor(list(sums.values()), dtype=torch.float64)).tolist()
        metrics: dict[str, float] = dict(zip(sums, added, strict=True))
        if not math.isfinite(metrics["loss"]):
            raise ConfigError(
                f"the loss of step {self.done + 1} is {metrics['loss']}; lower learning_rate, or look for bad clips"
            )
        rate = learning_rate(self.done, config)
        gradient = self._updates.apply(rate)
        self.done += 1
        return metrics | {"gradient_norm": gradient, "learning_rate": rate}

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [B, T, V + 1] and encoder frames [B, 4 T, C] in float32, and the sum of the sizes of the audio steps
        that count."""
        seen: list[tuple[Tensor, Tensor]] = []
        hook = self.recogniser.adapter.register_forward_hook(
            lambda _module, inputs, audio: seen.append((inputs[0].float(), audio.detach().float().norm(dim=-1)))
        )
        try:
            with torch.autocast(batch.samples.device.type, torch.bfloat16, enabled=self.config.bf16):
                logits = self.recogniser(batch.samples, batch.outputs, batch.delay).float()
        finally:
            hook.remove()
        frames, norms = seen[0]
        return logits, frames, norms[batch.valid].sum()

    def _text_norm(self, batch: Batch, whole: Tensor) -> float:
        """The sum of the sizes of the text's embeddings, as a part of their mean."""
        text = batch.outputs[batch.valid & (batch.outputs != self.recogniser.wait)]
        rows = F.embedding(text, self.recogniser.decoder.embedding.weight.detach())
        return float(rows.norm(dim=-1).sum() / whole[2].clamp(min=1))

    def trained_weights(self) -> dict[str, Tensor]:
        """Copies of the recogniser's weights, averaged where an average is kept; in every process at once."""
        with self._updates.averaged():
            return {name: value.detach().clone() for name, value in whole(self.recogniser.state_dict()).items()}

    def state_dict(self) -> dict[str, Any]:
        """All that the steps to come depend on, beside the data."""
        return {
            "config": asdict(self.config),
            "examples": len(self._examples),
            "done": self.done,
            "weights": whole(self.recogniser.state_dict()),
            "updates": self._updates.state_dict(),
            "order": self._order,
            "place": None if self._buckets is None else self._buckets.place,
            "random": self._rng.getstate(),
            "torch_random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`.

        Raises:
            CheckpointError: if it is of a run with other settings or another number of examples.
        """
        runs.check_same_run(state, {"config": asdict(self.config), "examples": len(self._examples)})
        here = self.recogniser.state_dict()
        weights = {name: spread_as(value, here[name]) for name, value in state["weights"].items()}
        self.recogniser.load_state_dict(weights)
        self._updates.load_state_dict(state["updates"])
        self.done, self._order = state["done"], list(state["order"])
        if self._buckets is not None:
            self._buckets.go_to(state["place"])
        self._rng.setstate(state["random"])
        torch.set_rng_state(state["torch_random"])


def train(trainer: Trainer, folder: Path, **options: Any) -> Iterator[dict[str, object]]:
    """`recipes.runs.train`, with alarms where too many of a batch's steps wait, or too many pieces are said twice."""
    alarms = (
        runs.above("wait_rate", trainer.config.wait_rate_bound, "steps wait"),
        runs.above("repeats", trainer.config.repeats_bound, "pieces repeat the one before"),
    )
    return runs.train(trainer, folder, alarms=alarms, **options)


def _additive(model: Model, config: SftConfig) -> AdditiveRecogniser:
    if not isinstance(model.recogniser, AdditiveRecogniser) or not isinstance(model.config, AdditiveConfig):
        raise ConfigError(f"{model.name} is no additive-family model; only those are trained on delayed-stream targets")
    outside = [delay for delay in model.config.limits.delays if not config.delay_min <= delay <= config.delay_max]
    if outside:
        raise ConfigError(
            f"{model.name} offers delays of {outside} steps; training covers {config.delay_min} to {config.delay_max}"
        )
    return model.recogniser


def _full_context(model: Model) -> CrossRecogniser:
    if not isinstance(model.recogniser, CrossRecogniser):
        raise ConfigError(f"{model.name} is no cross-family model; only those hear clips as a whole")
    return model.recogniser.requires_grad_(False)


def build_parser() -> argparse.ArgumentParser:
    """The command line of `python -m recipes.sft`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("config", "manifest", "alignments"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--teacher", help="a cross-family checkpoint, for feature_weight")
    parser.add_argument("--device", default="cpu")
    runs.add_outputs(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when trained, 2 when a setting or a file is wrong."""
    args = build_parser().parse_args(argv)
    processes = Processes.start(args.device)
    try:
        config = SftConfig.read(args.config)
        model = asr.load(args.model, device=args.device)
        recogniser = _additive(model, config)
        examples = AlignedExamples(
            read_manifest(args.manifest),
            read_alignments(args.alignments),
            model.vocabulary,
            longest_ms=config.longest_ms,
        )
        print(f"{len(examples)} clips", file=sys.stderr)
        teacher = None if args.teacher is None else _full_context(asr.load(args.teacher, device=args.device))
        trainer = Trainer(recogniser, examples, config, processes, teacher)
        shown = runs.shown_clips(args.show)

        def saved() -> None:
            weights = trainer.trained_weights()
            if not processes.first:
                return
            trained = build_additive(model.config, model.vocabulary)  # type: ignore[arg-type]
            trained.load_state_dict(weights)
            now = replace(model, recogniser=trained.to(args.device).eval().requires_grad_(False))
            runs.keep(
                now,
                args.out,
                step=trainer.done,
                stage="supervised training",
                settings=asdict(config),
                shown=shown,
                every=args.keep_all,
            )

        options = {"saved": saved, "processes": processes, "plot": args.plot, "tensorboard": args.tensorboard}
        for _ in runs.follow(train(trainer, args.out, **options), config.steps):
            pass
    except (EarlybirdError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        processes.end()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
