"""Trains heads that guess several pieces ahead, on the teacher's features and words.

`python -m recipes.mtp --model M --taught DIR --config recipes/configs/mtp.yaml --out CHECKPOINT`
First the heads alone: the decoder's states are computed once. Then, if the settings say so, heads and decoder together
at a lower rate; that changes what the model writes, and has to be measured as any other training. DIR is what
`recipes.teacher` wrote.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import asr
from asr.checkpoint import save
from asr.cross_recogniser import CrossRecogniser
from asr.errors import ConfigError
from asr.model import CrossConfig, Model, build_cross
from asr.mtp import MtpHeads, attended, pooled_ahead
from recipes.settings import read_settings
from recipes.teacher import read_features, read_words

NO_TARGET = -100


@dataclass(frozen=True, kw_only=True)
class MtpSettings:
    """See recipes/configs/mtp.yaml."""

    seed: int = 1
    heads: int = 5
    pieces: int = 8192
    batch_rows: int = 256
    head_epochs: int = 6
    head_rate: float = 1e-3
    joint_epochs: int = 0
    joint_rate: float = 2e-5
    head_decay: float = 0.9
    weight_decay: float = 0.05
    dropout: float = 0.1
    held_out: float = 0.05

    def __post_init__(self) -> None:
        for name in ("heads", "pieces", "batch_rows", "head_rate", "joint_rate", "head_decay"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")
        if not 0 < self.held_out < 1:
            raise ConfigError(f"held_out is {self.held_out}; it must be between 0 and 1")


@dataclass(frozen=True)
class Taught:
    """One clip: features [T, C] float16, and the text's pieces, the prompt and the end left out."""

    features: Tensor
    pieces: tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """Decoder states: hidden [N, C] and ahead [N, W·C] in float16; targets [N, K], NO_TARGET where there is none."""

    hidden: Tensor
    ahead: Tensor
    targets: Tensor


def with_mtp_heads(model: Model, *, heads: int, pieces: int) -> Model:
    """The same model with fresh heads.

    Raises:
        ConfigError: if the model is no cross-family one, or has not so many pieces.
    """
    config = model.config
    if not isinstance(config, CrossConfig):
        raise ConfigError(f"{model.name} is no cross-family model; only those have multi-token heads")
    if pieces > config.vocabulary:
        raise ConfigError(f"pieces is {pieces}; {model.name} has {config.vocabulary}")
    config = replace(config, mtp_heads=heads, mtp_pieces=pieces)
    recogniser = build_cross(config, model.vocabulary)
    kept = {name: value for name, value in model.recogniser.state_dict().items() if not name.startswith("mtp.")}
    recogniser.load_state_dict(kept, strict=False)
    return replace(model, config=config, recogniser=recogniser.eval())


def targets_of(tokens: Sequence[int], *, first: int, heads: int, pieces: int) -> Tensor:
    """What the heads of each state should guess.

    Args:
        tokens: prompt, text and end; the states from `first` on say tokens[first + 1:].
        heads: K; pieces: M, those beyond are no targets.
    Returns:
        [len(tokens) - 1 - first, K]

    >>> targets_of([90, 91, 5, 6, 7], first=1, heads=2, pieces=7).tolist()
    [[6, -100], [-100, -100], [-100, -100]]
    """
    rows = []
    for at in range(first, len(tokens) - 1):
        behind = [*tokens[at + 2 : at + 2 + heads], *[NO_TARGET] * heads][:heads]
        rows.append([token if token < pieces else NO_TARGET for token in behind])
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, heads)


def states_of(recogniser: CrossRecogniser, clip: Taught, heads: MtpHeads) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The decoder's states over one clip with its text forced: hidden, ahead, targets, and the decoder's own logits."""
    tokens = [*recogniser.prompt, *clip.pieces, recogniser.end_id]
    first = len(recogniser.prompt) - 1
    features = clip.features[None].float()
    count = torch.tensor([features.shape[1]])
    hidden, attention = recogniser.decoder.states(torch.tensor([tokens[:-1]]), features, count)
    center = attended(attention, sink_frames=recogniser.sink_frames)
    ahead = pooled_ahead(features, count, center)
    targets = targets_of(tokens, first=first, heads=heads.count, pieces=heads.pieces)
    return hidden[0, first:], ahead[0, first:], targets, recogniser.decoder.logits(hidden[0, first:])


@torch.inference_mode()
def collect(recogniser: CrossRecogniser, clips: Sequence[Taught], heads: MtpHeads) -> Rows:
    """The states of all clips."""
    parts = [states_of(recogniser, clip, heads)[:3] for clip in clips]
    hidden, ahead, targets = (torch.cat(part) for part in zip(*parts, strict=True))
    return Rows(hidden.half(), ahead.half(), targets)


def head_loss(logits: Tensor, targets: Tensor, *, decay: float) -> Tensor:
    """The heads' cross-entropies, head h weighing decay^h, the weights adding up to 1.

    Args:
        logits: [N, K, M]; targets: [N, K].
    """
    weights = decay ** torch.arange(targets.shape[1])
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET, reduction="none")
    there = (targets != NO_TARGET).float()
    mean = each.view_as(there).sum(0) / there.sum(0).clamp(min=1)
    return (mean * weights / weights.sum()).sum()


@torch.inference_mode()
def right_share(heads: MtpHeads, rows: Rows, embedding: Tensor) -> list[float]:
    """How often each head guesses right where the heads before it do, pieces that none can guess being wrong."""
    heads.eval()
    right = [
        heads(rows.hidden[at].float(), rows.ahead[at].float(), embedding).argmax(-1) == rows.targets[at]
        for at in torch.split(torch.arange(rows.targets.shape[0]), 512)
    ]
    follows = torch.cat(right).long().cumprod(1)  # [N, K]
    before = torch.cat([torch.ones_like(follows[:, :1]), follows[:, :-1]], 1)
    return (follows.sum(0) / before.sum(0).clamp(min=1)).tolist()


def fit_heads(
    heads: MtpHeads, rows: Rows, held: Rows, embedding: Tensor, settings: MtpSettings
) -> Iterator[dict[str, object]]:
    """Trains the heads alone, in place; metrics after each epoch."""
    torch.manual_seed(settings.seed)
    optimiser = torch.optim.AdamW(heads.parameters(), lr=settings.head_rate, weight_decay=settings.weight_decay)
    count = rows.targets.shape[0]
    size = min(settings.batch_rows, count)
    total, done = settings.head_epochs * (count // size), 0
    for epoch in range(settings.head_epochs):
        shown = 0.0
        for at in torch.split(torch.randperm(count)[: count // size * size], size):
            for group in optimiser.param_groups:
                group["lr"] = settings.head_rate * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * done / total)))
            hidden, ahead = (F.dropout(part[at].float(), settings.dropout) for part in (rows.hidden, rows.ahead))
            loss = head_loss(heads(hidden, ahead, embedding), rows.targets[at], decay=settings.head_decay)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            shown, done = shown + float(loss.detach()), done + 1
        yield {
            "stage": "heads",
            "epoch": epoch,
            "loss": round(shown / (count // size), 4),
            "held_out_right": [round(share, 3) for share in right_share(heads, held, embedding)],
        }


def fit_jointly(
    recogniser: CrossRecogniser, heads: MtpHeads, clips: Sequence[Taught], settings: MtpSettings
) -> Iterator[dict[str, object]]:
    """Trains decoder and heads together, in place, a clip a step; metrics after each epoch."""
    rng = random.Random(settings.seed)
    trained = [*heads.parameters(), *recogniser.decoder.parameters()]
    optimiser = torch.optim.AdamW(trained, lr=settings.joint_rate, weight_decay=settings.weight_decay)
    for epoch in range(settings.joint_epochs):
        own = ahead_loss = 0.0
        for clip in rng.sample(list(clips), len(clips)):
            hidden, ahead, targets, logits = states_of(recogniser, clip, heads)
            said = F.cross_entropy(logits, torch.tensor([*clip.pieces, recogniser.end_id]))
            guessed = head_loss(
                heads(hidden, ahead, recogniser.decoder.embedding.weight), targets, decay=settings.head_decay
            )
            optimiser.zero_grad()
            (said + guessed).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            own, ahead_loss = own + float(said.detach()), ahead_loss + float(guessed.detach())
        yield {
            "stage": "joint",
            "epoch": epoch,
            "decoder_loss": round(own / len(clips), 4),
            "head_loss": round(ahead_loss / len(clips), 4),
        }


def read_taught(folder: Path) -> list[Taught]:
    """All clips of `recipes.teacher` that have words."""
    words = read_words(folder)
    return [
        Taught(features, tuple(piece for word in words[audio] for piece in word.pieces))
        for audio, features in read_features(folder)
        if audio in words
    ]


def train(model: Model, clips: Sequence[Taught], settings: MtpSettings) -> Iterator[dict[str, object]]:
    """Trains the heads of a model that `with_mtp_heads` gave, in place; the last share of the clips is held out.

    Raises:
        ConfigError: if there are too few clips to hold some out.
    """
    recogniser = model.recogniser
    assert isinstance(recogniser, CrossRecogniser)
    heads = recogniser.mtp
    assert heads is not None
    kept = max(1, round(len(clips) * settings.held_out))
    if len(clips) <= kept:
        raise ConfigError(f"{len(clips)} clips have words; two or more are needed")
    taught, held = clips[:-kept], clips[-kept:]
    rows, held_rows = collect(recogniser, taught, heads), collect(recogniser, held, heads)
    embedding = recogniser.decoder.embedding.weight.detach()
    recogniser.requires_grad_(False)
    heads.requires_grad_(True)
    yield from fit_heads(heads, rows, held_rows, embedding, settings)
    recogniser.decoder.requires_grad_(settings.joint_epochs > 0)
    yield from fit_jointly(recogniser, heads, taught, settings)
    recogniser.requires_grad_(False).eval()


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="earlybird-en")
    parser.add_argument("--taught", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clips", type=int, help="no more than so many")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    settings = read_settings(MtpSettings, args.config)
    torch.manual_seed(settings.seed)
    model = with_mtp_heads(asr.load(args.model), heads=settings.heads, pieces=settings.pieces)
    clips = read_taught(args.taught)
    random.Random(settings.seed).shuffle(clips)
    for metrics in train(model, clips[: args.clips], settings):
        print(json.dumps(metrics), file=sys.stderr, flush=True)
    save(model, args.out, f"# {model.name}\n\nWith {settings.heads} multi-token heads (recipes/mtp.py).\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
