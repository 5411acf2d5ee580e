"""Trains the learned gate on aligned words, everything else frozen.

`python -m recipes.gate --model M --words DIR --manifest DATA/train.jsonl --out CHECKPOINT`
The stream runs over the clips of `recipes.teacher` with its text forced: each piece is committed at the step at which
it is due, one word in five up to five steps late. Every row on the way is an example: positive from the due step on,
where the decoder's own candidate is the due piece; where it is another, it may be held for a while longer.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import asr
from asr.checkpoint import save
from asr.config import RowSettings, SessionSettings
from asr.cross_recogniser import CrossRecogniser
from asr.delay_targets import TimedPieces, build_targets
from asr.errors import ConfigError
from asr.gate import GateAnswer, GateView, LearnedGate, Reading, read
from asr.model import CrossConfig, Model, build_cross
from asr.recogniser import WAIT
from asr.units import STEP_SAMPLES
from recipes.data import load_audio, read_manifest
from recipes.teacher import TaughtWord, read_words, stacked

HOLD_STEPS = 6  # so long a due piece may wait for the decoder to find it
TAIL_STEPS = 20


@dataclass(frozen=True)
class Examples:
    """Rows for training: hidden and around [N, C] float16, facts [N, K], due [N] float."""

    hidden: Tensor
    around: Tensor
    facts: Tensor
    due: Tensor


class _Recorder(nn.Module):
    """A gate that opens for nobody and keeps what it was shown."""

    def __init__(self, gate: LearnedGate) -> None:
        super().__init__()
        self.gate = gate
        self.shown: tuple[GateView, Reading] | None = None

    def forward(self, view: GateView) -> GateAnswer:
        """Everyone open, and the view kept."""
        reading = read(view, self.gate.config)
        self.shown = (view, reading)
        return GateAnswer(torch.ones_like(reading.barred), reading.frame)


@torch.inference_mode()
def record(
    recogniser: CrossRecogniser,
    gate: LearnedGate,
    clips: Sequence[tuple[Tensor, list[TaughtWord]]],
    settings: Sequence[SessionSettings],
    rng: random.Random,
) -> Examples:
    """The rows of one batch of clips, a setting each, all of one chunk size."""
    recorder = _Recorder(gate)
    kept_gate, recogniser.gate = recogniser.gate, recorder
    try:
        samples, lens = stacked([x for x, _ in clips], TAIL_STEPS)
        rows = RowSettings.stack(list(settings))
        chunk = settings[0].chunk
        block = chunk.chunk_steps * STEP_SAMPLES
        total = -(-samples.shape[1] // block) * block
        samples = F.pad(samples, (0, total - samples.shape[1]))
        schedule = [
            _schedule(words, chosen.delay_steps, total // STEP_SAMPLES, rng)
            for (_, words), chosen in zip(clips, settings, strict=True)
        ]
        state = recogniser.init_state(
            len(clips),
            max_chunk_steps=chunk.chunk_steps,
            max_right=chunk.right_frames,
            max_silence=chunk.silence_frames,
        )
        found: list[tuple[Tensor, ...]] = []
        place = [0] * len(clips)
        for step in range(total // STEP_SAMPLES):
            if step % chunk.chunk_steps == 0:
                start = step * STEP_SAMPLES
                state = recogniser.listen(
                    samples[:, start : start + block], torch.full((len(clips),), block), rows, state
                )
            active = torch.tensor([step * STEP_SAMPLES < int(n) for n in lens])
            output, state = recogniser.row(active, rows, state)
            assert recorder.shown is not None
            view, reading = recorder.shown
            tokens = torch.full((len(clips),), WAIT)
            use = active & ~reading.barred
            due = torch.zeros(len(clips))
            for b, items in enumerate(schedule):
                if place[b] >= len(items):
                    continue
                piece, first, at = items[place[b]]
                right = int(view.candidate[b]) == piece
                due[b] = float(step >= first and (right or step >= first + HOLD_STEPS))
                if step >= at:
                    tokens[b] = piece if bool(active[b]) else WAIT
                    place[b] += bool(active[b])
            facts = gate.known(view, reading)
            found.append((view.hidden[use].half(), view.around[use].half(), facts[use], due[use]))
            state = recogniser.accept(active, tokens, output, state)
    finally:
        recogniser.gate = kept_gate
    hidden, around, facts, due = (torch.cat(part) for part in zip(*found, strict=True))
    return Examples(hidden, around, facts, due)


def _schedule(words: Sequence[TaughtWord], delay: int, steps: int, rng: random.Random) -> list[tuple[int, int, int]]:
    """(piece, first step it may be written, step at which it is) in order."""
    timed = [TimedPieces(pieces=word.pieces, end_ms=max(1, word.end_ms)) for word in words]
    late = [rng.randint(1, 5) if rng.random() < 0.2 else 0 for _ in timed]
    targets = build_targets(timed, delay_steps=delay, wait=WAIT, overdue=late)
    items: list[tuple[int, int, int]] = []
    for word, placed in zip(timed, targets.placements, strict=True):
        for k, piece in enumerate(word.pieces):
            items.append((piece, placed.open_from if k == 0 else placed.first + k, placed.first + k))
    return [item for item in items if item[2] < steps]


def collect(model: Model, folder: Path, manifest: Path, *, hours: float, seed: int) -> Iterator[Examples]:
    """Examples from random clips at random chunks and delays, batch by batch."""
    rng = random.Random(seed)
    recogniser, config = _cross(model)
    gate = recogniser.gate
    assert isinstance(gate, LearnedGate)
    path = {clip.audio: clip for clip in read_manifest(manifest)}
    words = [(audio, spoken) for audio, spoken in read_words(folder).items() if path[audio].duration_ms < 16_000]
    rng.shuffle(words)
    heard_ms = 0
    for start in range(0, len(words), 128):
        part = sorted(words[start : start + 128], key=lambda item: path[item[0]].duration_ms)
        for at in range(0, len(part), 32):
            if heard_ms > hours * 3_600_000:
                return
            batch = part[at : at + 32]
            chunk = rng.choice([c for c in config.limits.chunks if c.chunk_steps in (2, 4, 8)])
            settings = [SessionSettings(chunk=chunk, delay_steps=rng.randint(1, 12)) for _ in batch]
            clips = [(_varied(load_audio(path[audio].path), rng), spoken) for audio, spoken in batch]
            heard_ms += sum(path[audio].duration_ms for audio, _ in batch)
            print(f"{heard_ms / 3_600_000:.2f} h, chunk {chunk.chunk_steps}", file=sys.stderr, flush=True)
            yield record(recogniser, gate, clips, settings, rng)


def _varied(samples: Tensor, rng: random.Random) -> Tensor:
    """Another level, and now and then a little noise."""
    samples = samples * 10 ** (rng.uniform(-15, 5) / 20)
    if rng.random() < 0.3:
        samples = samples + torch.randn(samples.shape[0]) * 10 ** (rng.uniform(-75, -45) / 20)
    return samples.clamp(-1, 1)


def _cross(model: Model) -> tuple[CrossRecogniser, CrossConfig]:
    if not isinstance(model.recogniser, CrossRecogniser) or not isinstance(model.config, CrossConfig):
        raise ConfigError(f"{model.name} is no cross-family model; only those have an emit gate")
    return model.recogniser, model.config


def with_learned_gate(model: Model, *, hidden: int) -> Model:
    """The same model with a fresh learned gate."""
    config = replace(_cross(model)[1], gate_hidden=hidden)
    recogniser = build_cross(config, model.vocabulary)
    recogniser.load_state_dict(model.recogniser.state_dict(), strict=False)
    return replace(model, config=config, recogniser=recogniser.eval())


def fit(gate: LearnedGate, examples: Examples, *, epochs: int, seed: int) -> Iterator[dict[str, float]]:
    """Trains the gate in place by binary cross-entropy; the last tenth of the rows is held out."""
    torch.manual_seed(seed)
    total = examples.due.shape[0]
    held = slice(total - total // 10, total)
    count = total - total // 10
    optimiser = torch.optim.AdamW(gate.parameters(), lr=1e-3, weight_decay=0.01)
    steps, size = 0, 2048
    planned = epochs * (count // size)
    for epoch in range(epochs):
        order = torch.randperm(count)
        shown = 0.0
        for start in range(0, count - size + 1, size):
            at = order[start : start + size]
            for group in optimiser.param_groups:
                group["lr"] = 1e-3 * max(0.02, 1 - steps / planned)
            logit = gate.logit(examples.hidden[at].float(), examples.around[at].float(), examples.facts[at])
            loss = F.binary_cross_entropy_with_logits(logit, examples.due[at])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            shown, steps = shown + float(loss.detach()), steps + 1
        with torch.inference_mode():
            logit = gate.logit(examples.hidden[held].float(), examples.around[held].float(), examples.facts[held])
            due = examples.due[held]
            yield {
                "epoch": epoch,
                "loss": shown / max(1, count // size),
                "held_out_loss": float(F.binary_cross_entropy_with_logits(logit, due)),
                "held_out_right": float(((logit > 0) == (due > 0.5)).float().mean()),
                "due_share": float(due.mean()),
            }


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--words", type=Path, required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=Path, help="keeps the collected rows here, and starts from them if there")
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    model = with_learned_gate(asr.load(args.model), hidden=args.hidden)
    gate = _cross(model)[0].gate
    assert isinstance(gate, LearnedGate)
    if args.rows is not None and args.rows.exists():
        examples = Examples(**torch.load(args.rows))
    else:
        parts = list(collect(model, args.words, args.manifest, hours=args.hours, seed=args.seed))
        names = ("hidden", "around", "facts", "due")
        examples = Examples(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
        if args.rows is not None:
            torch.save({name: getattr(examples, name) for name in names}, args.rows)
    print(f"{examples.due.shape[0]} rows, {float(examples.due.mean()):.3f} due", file=sys.stderr, flush=True)
    for metrics in fit(gate, examples, epochs=args.epochs, seed=args.seed):
        print(json.dumps(metrics), file=sys.stderr, flush=True)
    save(model, args.out, f"# {model.name}\n\nWith a learned gate (recipes/gate.py).\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
