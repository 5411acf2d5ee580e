"""Trains the CTC head on features of the frozen encoder, as `recipes.teacher` stored them.

`python -m recipes.ctc --model M --features DIR --manifest DATA/train.jsonl --tokenizer T.model --out CHECKPOINT`
Features are those of the full context: with enough right context and silence a stream's are nearly the same.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import asr
from asr.checkpoint import save
from asr.ctc import CtcHead
from asr.ctc_tokenizer import CtcTokenizer, ctc_words
from asr.errors import ConfigError
from asr.metrics import WordErrors, count_errors
from asr.model import CrossConfig, Model, build_cross
from asr.units import FRAMES_PER_STEP
from kernels.ctc import init_collapse
from kernels.dispatch import dispatch
from recipes.data import read_manifest
from recipes.teacher import read_features


def with_ctc_head(model: Model, tokenizer: CtcTokenizer, *, hidden: int) -> Model:
    """The same model with a fresh CTC head over the tokenizer's pieces.

    Raises:
        ConfigError: if the model is no cross-family one.
    """
    if not isinstance(model.config, CrossConfig):
        raise ConfigError(f"{model.name} is no cross-family model; only those have a CTC head")
    config = replace(model.config, ctc_hidden=hidden, ctc_pieces=len(tokenizer.pieces))
    recogniser = build_cross(config, model.vocabulary)
    kept = {name: value for name, value in model.recogniser.state_dict().items() if not name.startswith("ctc.")}
    recogniser.load_state_dict(kept, strict=False)
    return replace(model, config=config, recogniser=recogniser.eval(), ctc_tokenizer=tokenizer)


def batches(
    items: Sequence[tuple[Tensor, list[int]]], frames: int, rng: random.Random
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Padded (features, steps, labels, label counts), items of like length together, about `frames` frames each."""
    order = sorted(range(len(items)), key=lambda i: items[i][0].shape[0] + rng.random() * 50)
    groups: list[list[int]] = []
    for i in order:
        if not groups or (len(groups[-1]) + 1) * items[i][0].shape[0] > frames:
            groups.append([])
        groups[-1].append(i)
    rng.shuffle(groups)
    for group in groups:
        lengths = [items[i][0].shape[0] // FRAMES_PER_STEP * FRAMES_PER_STEP for i in group]
        x = torch.zeros(len(group), max(lengths), items[group[0]][0].shape[1])
        for row, i, length in zip(x, group, lengths, strict=True):
            row[:length] = items[i][0][:length].float()
        labels = [items[i][1] for i in group]
        flat = torch.tensor([label for one in labels for label in one], dtype=torch.int64)
        yield x, torch.tensor(lengths) // FRAMES_PER_STEP, flat, torch.tensor([len(one) for one in labels])


def greedy_words(log_probs: Tensor, steps: Tensor, tokenizer: CtcTokenizer) -> list[str]:
    """The greedy text of each row of [B, T, V'+1]."""
    collapse, blank = dispatch("ctc.greedy_collapse", "numba"), tokenizer.blank
    labels, _ = collapse(log_probs, steps, init_collapse(log_probs.shape[0], blank=blank), blank=blank)
    return [tokenizer.decode(labels.ids[b, : int(labels.counts[b])].tolist()) for b in range(log_probs.shape[0])]


def train(
    head: CtcHead,
    items: Sequence[tuple[Tensor, list[int]]],
    tokenizer: CtcTokenizer,
    *,
    minutes: float,
    seed: int,
    most_steps: int | None = None,
) -> Iterator[dict[str, float]]:
    """Trains the head in place; yields metrics now and then.

    Args:
        head: what is trained.
        items: (features [T, C], labels); the last 2 % are held out for the word error rate.
        tokenizer: spells the labels.
        minutes: when to stop; the learning rate falls until then.
        seed: of order, noise and dropout.
        most_steps: when to stop at the latest.
    """
    rng = random.Random(seed)
    torch.manual_seed(seed)
    held_out = items[-max(1, len(items) // 50) :]
    items = items[: -len(held_out)]
    optimiser = torch.optim.AdamW(head.parameters(), lr=2e-3, weight_decay=0.01)
    begin, step, shown, share = time.monotonic(), 0, 0.0, 0.0
    while share < 1:
        for x, steps, labels, counts in batches(items, 12_000, rng):
            share = (time.monotonic() - begin) / (60 * minutes)
            share = share if most_steps is None else max(share, step / most_steps)
            if share >= 1:
                break
            for group in optimiser.param_groups:
                group["lr"] = 2e-3 * min(1.0, (step + 1) / 50) * max(0.02, 1 - share)
            x = F.dropout(x + 0.05 * torch.randn_like(x), 0.1)
            log_probs = head(x).transpose(0, 1)  # [T, B, V'+1]
            loss = F.ctc_loss(log_probs, labels, steps, counts, blank=head.blank, zero_infinity=True)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(head.parameters(), 5.0)
            optimiser.step()
            shown, step = shown + float(loss.detach()), step + 1
            if step % 100 == 0:
                yield {"step": step, "loss": shown / 100, "share": share}
                shown = 0.0
    errors = word_errors(head, batches(held_out, 12_000, rng), tokenizer)
    yield {"step": step, "held_out_clips": len(held_out), "held_out_wer": errors.rate()}


@torch.inference_mode()
def word_errors(
    head: CtcHead, groups: Iterable[tuple[Tensor, Tensor, Tensor, Tensor]], tokenizer: CtcTokenizer
) -> WordErrors:
    """Of the greedy text over what `batches` gives."""
    errors = WordErrors(0, 0, 0, 0)
    for x, steps, labels, counts in groups:
        ends = counts.cumsum(0).tolist()
        texts = greedy_words(head(x), steps, tokenizer)
        for text, end, count in zip(texts, ends, counts.tolist(), strict=True):
            errors = errors + count_errors(tokenizer.decode(labels[end - count : end].tolist()), text)
    return errors


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    tokenizer = CtcTokenizer(args.tokenizer)
    model = with_ctc_head(asr.load(args.model), tokenizer, hidden=args.hidden)
    head = model.recogniser.ctc
    assert isinstance(head, CtcHead)
    text = {clip.audio: clip.text for clip in read_manifest(args.manifest)}
    items = []
    for audio, features in read_features(args.features):
        words = ctc_words(text.get(audio) or "")
        if words:
            items.append((features, [piece for word in tokenizer.encode(words) for piece in word]))
    print(f"{len(items)} clips, {sum(f.shape[0] for f, _ in items) / 180_000:.2f} h", file=sys.stderr, flush=True)
    random.Random(args.seed).shuffle(items)
    for metrics in train(head, items, tokenizer, minutes=args.minutes, seed=args.seed):
        print(json.dumps(metrics), file=sys.stderr, flush=True)
    save(model, args.out, f"# {model.name}\n\nWith a CTC head (recipes/ctc.py).\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
