"""Joint tuning of the cross family in the stream, protected by the full-context model it came from.

`python -m recipes.tune --config F.yaml --model M --data MANIFEST WORDS [--data …] --noise NOISE.jsonl --out DIR`

Sessions are heard block by block in chunks drawn per batch, and every piece of text is predicted from the memory of
the block in which it is due at a delay drawn per session. The loss has four parts: cross-entropy with the reference;
divergence from what the full-context teacher says at the same place, where the teacher finds the reference's piece
likely; distance between the encoder's frames and the teacher's; and the CTC head's. The front end, the token embedding
and all positions stay as they are. A killed run goes on from its last save with the same batches and losses.
`DIR` gets metrics.jsonl, train.pt and checkpoints.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import asr
from asr.config import ChunkSetting
from asr.cross_recogniser import CrossRecogniser
from asr.ctc_tokenizer import ctc_words
from asr.delay_targets import TimedPieces, build_targets
from asr.errors import ConfigError, EarlybirdError
from asr.model import Model
from asr.recogniser import WAIT
from asr.units import FRAMES_PER_STEP, SAMPLE_RATE, STEP_SAMPLES
from recipes.data import Clip
from recipes.runs import Alarm, above, add_outputs, check_same_run, follow, keep, shown_clips, train
from recipes.sessions import Plan, Session, SessionMaker, group, plan_sessions, read_noises, taught_clips
from recipes.settings import read_settings
from recipes.streamed import Layout, decode_streamed, encode_streamed
from recipes.teacher import full_context_features
from recipes.updates import Trained, Updates

__all__ = ["Batch", "TuneConfig", "Tuner", "alarms", "make_batch"]

MIXES: tuple[tuple[tuple[float, int, int, int], ...], ...] = (
    (
        (0.32, 4, 16, 8),
        (0.08, 4, 32, 8),
        (0.16, 4, 0, 0),
        (0.06, 8, 0, 0),
        (0.10, 2, 16, 8),
        (0.06, 1, 16, 8),
        (0.08, 8, 16, 8),
        (0.06, 16, 32, 8),
        (0.08, 50, 64, 8),
    ),
    (
        (0.12, 4, 16, 8),
        (0.28, 4, 32, 8),
        (0.16, 4, 0, 0),
        (0.06, 8, 0, 0),
        (0.10, 2, 16, 8),
        (0.06, 1, 16, 8),
        (0.08, 8, 32, 8),
        (0.06, 16, 32, 8),
        (0.08, 50, 64, 8),
    ),
)
"""How often a batch is heard with which chunk (steps), right context and silence (frames); `chunk_mix` picks one."""
WEIGHTS = {
    "librispeech_devclean_mp3": 2.0,
    "librispeech_resemblyzer": 2.0,
    "commonvoice_en": 2.0,
    "fotaq": 0.7,
    "bass": 0.7,
    "picovoice_wakeword": 0.3,
}
TRAILING_STEPS = 10
LATE_SHARE, MOST_LATE_STEPS = 0.2, 5
TRUSTED = 0.1
"""The teacher counts where it gives the reference's piece so much probability."""


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """Settings of a run; configs/tune.yaml says what each one is."""

    seed: int = 1
    steps: int = 600
    batch_seconds: float = 48.0
    longest_ms: int = 20_000
    joined_share: float = 0.4
    chunk_mix: int = 1
    delay_min: int = 1
    delay_max: int = 12
    encoder_rate: float = 1e-4
    decoder_rate: float = 3e-5
    ctc_rate: float = 1e-3
    warmup_steps: int = 30
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    teacher_weight: float = 1.0
    feature_weight: float = 1.0
    ctc_weight: float = 0.2
    accumulation: int = 1
    bf16: bool = False
    average_decay: float = 0.0
    blank_rate_bound: float = 0.99
    repeats_bound: float = 0.2
    log_every: int = 5
    save_every: int = 50

    def __post_init__(self) -> None:
        counts = (self.steps, self.longest_ms, self.delay_min, self.log_every, self.save_every, self.warmup_steps)
        if min(*counts, self.accumulation) < 1:
            raise ConfigError(f"counts must be at least 1; got {self}")
        if not 1 <= self.chunk_mix <= len(MIXES):
            raise ConfigError(f"chunk_mix is {self.chunk_mix}; there are 1 to {len(MIXES)}")
        if self.delay_max < self.delay_min:
            raise ConfigError(f"delay_min ({self.delay_min}) must not exceed delay_max ({self.delay_max})")


@dataclass(frozen=True)
class Batch:
    """B sessions.

    Attributes:
        clean, heard: [B, N] whole steps; lens: [B] valid samples of them.
        tokens: [B, n] what each row reads; labels: [B, n] what it should say, -1 where it does not count.
        block: [B, n] the block of each row.
        layout: of the frames.
        ctc: the CTC head's labels; ctc_lens: [B] how many are whose.
    """

    clean: Tensor
    heard: Tensor
    lens: Tensor
    tokens: Tensor
    labels: Tensor
    block: Tensor
    layout: Layout
    ctc: Tensor
    ctc_lens: Tensor


def make_batch(model: Model, sessions: Sequence[Session], chunk: ChunkSetting, config: TuneConfig, seed: int) -> Batch:
    """Sessions padded to whole chunks, with their rows."""
    rng = random.Random(seed)
    recogniser = _cross(model)
    size = chunk.chunk_steps * STEP_SAMPLES
    longest = max(session.clean.shape[0] for session in sessions) + TRAILING_STEPS * STEP_SAMPLES
    clean = torch.zeros(len(sessions), -(-longest // size) * size)
    heard = clean.clone()
    steps = clean.shape[1] // STEP_SAMPLES
    prompt = recogniser.prompt
    rows: list[tuple[list[int], list[int], list[int]]] = []
    ctc: list[list[int]] = []
    for b, session in enumerate(sessions):
        clean[b, : session.clean.shape[0]], heard[b, : session.heard.shape[0]] = session.clean, session.heard
        timed = [TimedPieces(pieces=word.pieces, end_ms=max(1, word.end_ms)) for word in session.words]
        late = [rng.randint(1, MOST_LATE_STEPS) if rng.random() < LATE_SHARE else 0 for _ in timed]
        delay = rng.randint(config.delay_min, config.delay_max)
        placed = build_targets(timed, delay_steps=delay, wait=WAIT, overdue=late).placements
        pieces = [piece for word in timed for piece in word.pieces]
        when = [place.first + k for word, place in zip(timed, placed, strict=True) for k in range(len(word.pieces))]
        blocks = [min(step, steps - 1) // chunk.chunk_steps for step in when]
        end = (session.clean.shape[0] // STEP_SAMPLES + TRAILING_STEPS - 1) // chunk.chunk_steps
        end = max([min(end, steps // chunk.chunk_steps - 1), *blocks])
        first = blocks[0] if blocks else end
        rows.append(
            (
                [*prompt, *pieces],
                [-1] * (len(prompt) - 1) + [*pieces, recogniser.end_id],
                [first] * (len(prompt) - 1) + [*blocks, end],
            )
        )
        if model.ctc_tokenizer is not None:
            words = ctc_words(" ".join(word.text for word in session.words))
            ctc.append([piece for word in model.ctc_tokenizer.encode(words) for piece in word] if words else [])
    count = max(len(tokens) for tokens, _, _ in rows)
    tokens = torch.full((len(rows), count), recogniser.end_id)
    labels = torch.full((len(rows), count), -1)
    block = torch.zeros(len(rows), count, dtype=torch.int64)
    for b, (read, say, where) in enumerate(rows):
        tokens[b, : len(read)], labels[b, : len(say)] = torch.tensor(read), torch.tensor(say)
        block[b, : len(where)] = torch.tensor(where)
    lens = [-(-session.clean.shape[0] // STEP_SAMPLES) + TRAILING_STEPS for session in sessions]
    return Batch(
        clean,
        heard,
        torch.tensor(lens) * STEP_SAMPLES,
        tokens,
        labels,
        block,
        Layout.of(chunk, steps * FRAMES_PER_STEP),
        torch.tensor([piece for one in ctc for piece in one], dtype=torch.int64),
        torch.tensor([len(one) for one in ctc], dtype=torch.int64),
    )


def _cross(model: Model) -> CrossRecogniser:
    if not isinstance(model.recogniser, CrossRecogniser):
        raise ConfigError(f"{model.name} is no cross-family model; only those have a full-context teacher")
    return model.recogniser


def objective(
    recogniser: CrossRecogniser, teacher: CrossRecogniser, batch: Batch, config: TuneConfig
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a batch, and its parts as numbers."""
    zeros = recogniser.frontend.init_state(batch.heard.shape[0])
    everything = torch.full((batch.heard.shape[0],), batch.heard.shape[1])
    with torch.no_grad():
        frames = recogniser.frontend.step(batch.heard, everything, zeros)[0]
        target, counts = full_context_features(teacher, batch.clean, batch.lens)
    use = batch.labels >= 0
    labels = batch.labels[use]
    with torch.autocast(frames.device.type, torch.bfloat16, enabled=config.bf16):
        memory = encode_streamed(recogniser, frames, batch.layout)
        features = _feature_loss(memory.features.float(), target, batch, counts)
        logits = recogniser.decoder.logits(decode_streamed(recogniser, memory, batch.tokens, batch.block)[use])
    log_probs = logits.float().log_softmax(-1)
    entropy = -log_probs.gather(1, labels[:, None])[:, 0]
    with torch.no_grad():
        taught = teacher.decoder(batch.tokens, target, counts)[0][use].log_softmax(-1)
        trusted = (taught.gather(1, labels[:, None])[:, 0].exp() > TRUSTED).float()
    divergence = (taught.exp() * (taught - log_probs)).sum(-1) * trusted
    loss = entropy.mean() + config.teacher_weight * divergence.mean() + config.feature_weight * features
    said = log_probs.detach().argmax(-1)
    parts = {
        "cross_entropy": float(entropy.detach().mean()),
        "divergence": float(divergence.detach().mean()),
        "features": float(features.detach()),
        "right": float((said == labels).float().mean()),
        "teacher_right": float((taught.argmax(-1) == labels).float().mean()),
        "trusted": float(trusted.mean()),
        "repeats": repeated(said, batch.tokens[use], labels),
    }
    if recogniser.ctc is not None:
        with torch.autocast(frames.device.type, torch.bfloat16, enabled=config.bf16):
            heard = recogniser.ctc(memory.final())
        steps, blank = batch.lens // STEP_SAMPLES, recogniser.ctc.blank
        ctc = F.ctc_loss(heard.transpose(0, 1), batch.ctc, steps, batch.ctc_lens, blank=blank, zero_infinity=True)
        loss = loss + config.ctc_weight * ctc
        parts["ctc"] = float(ctc.detach())
        blanks = (heard.detach().argmax(-1) == blank) & (torch.arange(heard.shape[1]) < steps[:, None])
        parts["blank_rate"] = float(blanks.sum() / steps.sum())
    return loss, {"loss": float(loss.detach()), **parts}


def repeated(said: Tensor, read: Tensor, due: Tensor) -> float:
    """The share of rows [N] that wrongly say again the piece that they have read.

    >>> repeated(torch.tensor([5, 6, 6, 7]), torch.tensor([4, 6, 6, 6]), torch.tensor([5, 6, 7, 7]))
    0.25
    """
    return float(((said == read) & (due != read)).float().mean())


def _feature_loss(features: Tensor, target: Tensor, batch: Batch, counts: Tensor) -> Tensor:
    """Mean squared distance to the teacher's frames, in units of their variance."""
    layout = batch.layout
    frame = layout.frame.flatten()
    real = layout.real.flatten() & (frame < counts[:, None])  # [B, K * L]
    wanted = target[:, frame.clamp(max=target.shape[1] - 1)]
    distance = (features - wanted).square().mean(-1)
    return (distance * real).sum() / real.sum() / wanted[real].var()


class Tuner:
    """One run: weights, optimiser and random state; `step` moves it on.

    Args:
        model: tuned in place.
        teacher: the model it came from; not changed.
        clips, maker: what sessions are made of; every clip has words.
        config: the settings.

    Attributes:
        done: steps taken.
    """

    def __init__(
        self, model: Model, teacher: Model, clips: Sequence[Clip], maker: SessionMaker, config: TuneConfig
    ) -> None:
        if not clips:
            raise ConfigError("there is no clip to tune on: the manifests and the words share none short enough")
        self.model, self.config, self.done = model, config, 0
        self._teacher = _cross(teacher).eval().requires_grad_(False)
        self._clips, self._maker = clips, maker
        self._rng = random.Random(config.seed)
        self._queue: list[list[Plan]] = []
        torch.manual_seed(config.seed)
        recogniser = _cross(model).eval().requires_grad_(False)
        rates = (
            (recogniser.encoder, config.encoder_rate),
            (recogniser.decoder, config.decoder_rate),
            (recogniser.ctc, config.ctc_rate),
        )
        learning = [(part.requires_grad_(True), rate) for part, rate in rates if part is not None and rate]
        recogniser.decoder.embedding.weight.requires_grad_(False)
        recogniser.decoder.positions.requires_grad_(False)
        self._updates = Updates(
            [
                Trained(weights=[weight for weight in part.parameters() if weight.requires_grad], rate=rate)
                for part, rate in learning
            ],
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            average_decay=config.average_decay,
        )

    def _next(self) -> tuple[list[Session], ChunkSetting, int]:
        mix = MIXES[self.config.chunk_mix - 1]
        steps, right, silence = self._rng.choices([entry[1:] for entry in mix], [entry[0] for entry in mix])[0]
        chunk = ChunkSetting(chunk_steps=steps, right_frames=right, silence_frames=silence)
        if not self._queue:
            plans = plan_sessions(
                self._clips,
                weights=WEIGHTS,
                longest_ms=self.config.longest_ms,
                joined_share=self.config.joined_share,
                rng=self._rng,
            )
            self._queue = list(group(plans, seconds=self.config.batch_seconds, rng=self._rng))
        plans = self._queue.pop()
        # A small chunk encodes every frame many times: fewer sessions then.
        cost = (chunk.block_frames / (chunk.chunk_steps * FRAMES_PER_STEP)) / 3
        keep = max(1, round(len(plans) / max(1.0, cost)))
        return [self._maker.make(plan) for plan in plans[:keep]], chunk, self._rng.randrange(2**31)

    def step(self) -> dict[str, float]:
        """One update from `accumulation` batches, which count alike; its metrics.

        Raises:
            ConfigError: if the loss is not finite. The weights have not moved then.
        """
        config, recogniser = self.config, _cross(self.model)
        self._updates.clear()
        sums: dict[str, float] = {}
        audio_samples = 0
        for _ in range(config.accumulation):
            sessions, chunk, seed = self._next()
            batch = make_batch(self.model, sessions, chunk, config, seed)
            loss, parts = objective(recogniser, self._teacher, batch, config)
            if not bool(torch.isfinite(loss)):
                raise ConfigError(f"the loss of step {self.done + 1} is {parts['loss']}; lower the rates")
            (loss / config.accumulation).backward()  # type: ignore[no-untyped-call]
            parts |= {"chunk_steps": chunk.chunk_steps, "right_frames": chunk.right_frames}
            sums = {name: sums.get(name, 0.0) + value / config.accumulation for name, value in parts.items()}
            audio_samples += int(batch.lens.sum())
        share = self.done / config.steps
        warm = min(1.0, (self.done + 1) / config.warmup_steps)
        gradient = self._updates.apply(warm * (0.03 + 0.97 * (1 + math.cos(math.pi * share)) / 2))
        self.done += 1
        return sums | {"gradient_norm": gradient, "audio_seconds": audio_samples / SAMPLE_RATE}

    def trained_model(self) -> Model:
        """A copy of the model as it is now, with the average of its weights where one is kept."""
        with self._updates.averaged():
            return replace(self.model, recogniser=copy.deepcopy(_cross(self.model)).requires_grad_(False))

    def state_dict(self) -> dict[str, Any]:
        """All that the steps to come depend on, beside the data."""
        return {
            "config": asdict(self.config),
            "clips": len(self._clips),
            "done": self.done,
            "weights": _cross(self.model).state_dict(),
            "updates": self._updates.state_dict(),
            "queue": [
                [([clip.audio for clip in plan.clips], plan.pauses_ms, plan.seed) for plan in plans]
                for plans in self._queue
            ],
            "random": self._rng.getstate(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`.

        Raises:
            CheckpointError: if it is of a run with other settings or another number of clips.
        """
        check_same_run(state, {"config": asdict(self.config), "clips": len(self._clips)})
        _cross(self.model).load_state_dict(state["weights"])
        self._updates.load_state_dict(state["updates"])
        known = {clip.audio: clip for clip in self._clips}
        self.done = state["done"]
        self._queue = [
            [
                Plan(clips=tuple(known[name] for name in names), pauses_ms=pauses, seed=seed)
                for names, pauses, seed in plans
            ]
            for plans in state["queue"]
        ]
        self._rng.setstate(state["random"])


def alarms(tuner: Tuner) -> tuple[Alarm, ...]:
    """Where the CTC head falls silent, or the decoder says again what it has just read."""
    config = tuner.config
    repeats = above("repeats", config.repeats_bound, "pieces repeat the one before")
    if _cross(tuner.model).ctc is None:
        return (repeats,)
    return (above("blank_rate", config.blank_rate_bound, "CTC head's steps are blank"), repeats)


def build_parser() -> argparse.ArgumentParser:
    """The command line of `python -m recipes.tune`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--teacher", help="the full-context teacher, where it is not the model as given")
    parser.add_argument("--data", type=Path, nargs=2, action="append", required=True, metavar=("MANIFEST", "WORDS"))
    parser.add_argument("--noise", type=Path)
    add_outputs(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when tuned, 2 when a setting or a file is wrong."""
    args = build_parser().parse_args(argv)
    try:
        config = TuneConfig() if args.config is None else read_settings(TuneConfig, args.config)
        clips, words = taught_clips(args.data)
        model = asr.load(args.model)
        teacher = copy.deepcopy(model) if args.teacher is None else asr.load(args.teacher)
        tuner = Tuner(model, teacher, clips, SessionMaker(words, read_noises(args.noise)), config)
        shown = shown_clips(args.show)

        def saved() -> None:
            keep(
                tuner.trained_model(),
                args.out,
                step=tuner.done,
                stage="tuning",
                settings=asdict(config),
                shown=shown,
                every=args.keep_all,
            )

        options = {"plot": args.plot, "tensorboard": args.tensorboard}
        for _ in follow(train(tuner, args.out, alarms=alarms(tuner), saved=saved, **options), config.steps):
            pass
    except (EarlybirdError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
