"""The full-context model as a teacher: its encoder's features, and its own spelling of the transcripts.

`python -m recipes.teacher --model M --manifest DATA/train.jsonl --alignments A.jsonl --out DIR` writes, per clip,
`features-*.safetensors` (float16 [T, C], 20 ms a frame, the clip heard as a whole) and `teacher.jsonl`: the words as
the full-context decoder writes them, cased and punctuated, with their pieces and the aligned times of the transcript.
Clips are taken in a seeded random order up to `--hours`; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import asr
from asr.cross_recogniser import CrossRecogniser
from asr.errors import ConfigError
from asr.model import Model
from asr.units import FRAME_SAMPLES, STEP_SAMPLES
from recipes.align import AlignedClip, AlignedWord, read_alignments
from recipes.data import Clip, filter_by_duration, load_audio, read_manifest

TAIL_STEPS = 8  # silence behind each clip, as a stream's silence frames give it
PIECES_PER_SECOND = 6
FRAMES_PER_SECOND = 50


@dataclass(frozen=True, kw_only=True)
class TaughtWord:
    """A word as the teacher spells it, with its pieces and when it was spoken."""

    text: str
    pieces: tuple[int, ...]
    start_ms: int
    end_ms: int


def full_context_features(recogniser: CrossRecogniser, samples: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
    """Encoder features of whole clips, every frame seeing all others.

    Args:
        samples: [B, N] 16 kHz, N a multiple of 1280; lens: [B] valid samples, likewise.
    Returns:
        features [B, N/320, C] and their valid counts [B].
    """
    frames, _, counts, _ = recogniser.frontend.step(samples, lens, recogniser.frontend.init_state(samples.shape[0]))
    x = frames + recogniser.encoder_positions[: frames.shape[1]]
    seen = torch.arange(x.shape[1], device=x.device) < counts[:, None]
    return recogniser.encoder(x, seen[:, None, None, :].expand(-1, 1, x.shape[1], -1)), counts


def decode_offline(recogniser: CrossRecogniser, features: Tensor, counts: Tensor) -> list[list[int]]:
    """Greedy text of whole clips, as Whisper decodes offline.

    Args:
        features: [B, T, C]; counts: [B] valid frames.
    Returns:
        piece ids per clip; a clip that runs on is cut at 6 pieces a second.
    """
    decoder, batch = recogniser.decoder, features.shape[0]
    state = decoder.init_state(batch)
    everyone = torch.arange(batch)
    memory = decoder.remember(decoder.init_memory(batch, frames=features.shape[1]), features, counts, counts, None)
    tokens = torch.tensor(recogniser.prompt).expand(batch, -1)
    text: list[list[int]] = [[] for _ in range(batch)]
    going = torch.ones(batch, dtype=torch.bool)
    for step in range(10 + int(counts.max()) * PIECES_PER_SECOND // FRAMES_PER_SECOND):
        lens = torch.full((batch,), tokens.shape[1])
        hidden, _ = decoder.rows(tokens, lens, state, memory)
        logits = decoder.logits(hidden[:, -1]).masked_fill(recogniser.banned, -torch.inf)
        if step == 0:
            logits = logits.masked_fill(recogniser.banned_first, -torch.inf)
        best = logits.argmax(-1)
        going = going & (best != recogniser.end_id)
        for row in everyone[going].tolist():
            text[row].append(int(best[row]))
        if not bool(going.any()):
            break
        state = state.advance(lens)
        tokens = best[:, None]
    return text


def taught_words(
    model: Model, pieces: Sequence[int], aligned: Sequence[AlignedWord], *, max_error: float
) -> list[TaughtWord] | None:
    """The teacher's words with the transcript's times; None where the two differ in more than `max_error` of words.

    A word that the transcript lacks gets a time between its neighbours.

    Args:
        aligned: the transcript's words in order.
    """
    words: list[list[int]] = []
    starts = model.recogniser.begins_word
    for piece in pieces:
        if bool(starts[piece]) or not words:
            words.append([])
        words[-1].append(piece)
    texts = [model.vocabulary.decode(word).strip() for word in words]
    theirs = [_bare(word.text) for word in aligned]
    size = _best_prefix([_bare(text) for text in texts], theirs)  # what follows is the decoder running on
    words, texts = words[:size], texts[:size]
    matcher = difflib.SequenceMatcher(None, [_bare(text) for text in texts], theirs, autojunk=False)
    span: dict[int, tuple[int, int]] = {}
    for mine, other, size in matcher.get_matching_blocks():
        for k in range(size):
            word = aligned[other + k]
            span[mine + k] = (word.start_ms, word.end_ms)
    if not words or len(span) < (1 - max_error) * max(len(words), len(theirs)):
        return None
    return [
        TaughtWord(text=text, pieces=tuple(word), start_ms=start, end_ms=end)
        for text, word, (start, end) in zip(texts, words, _filled(span, len(words)), strict=True)
    ]


def _best_prefix(mine: Sequence[str], theirs: Sequence[str]) -> int:
    """How many words of `mine` are nearest to all of `theirs` by edit distance; the shorter of equals."""
    row = list(range(len(theirs) + 1))
    best, size = row[-1], 0
    for i, word in enumerate(mine, start=1):
        previous, row = row, [i]
        for j, other in enumerate(theirs, start=1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (word != other)))
        if row[-1] < best:
            best, size = row[-1], i
    return size


def _bare(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())


def _filled(span: dict[int, tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
    """Spans of all words; those without one share the gap between their neighbours."""
    for i in range(count):
        if i in span:
            yield span[i]
            continue
        before = max((j for j in span if j < i), default=None)
        after = min((j for j in span if j > i), default=None)
        low = 0 if before is None else span[before][1]
        high = low + 300 * (count - i) if after is None else span[after][0]
        first, last = (-1 if before is None else before), (count if after is None else after)
        width = max(1, high - low) / (last - first - 1)
        yield int(low + width * (i - first - 1)), int(low + width * (i - first))


def length_batches(clips: Sequence[Clip], seconds: float) -> Iterator[list[Clip]]:
    """Clips of like length together, `seconds` of audio a batch, in chunks of the given order."""
    for start in range(0, len(clips), 256):
        batch: list[Clip] = []
        for clip in sorted(clips[start : start + 256], key=lambda c: c.duration_ms):
            if batch and (len(batch) + 1) * clip.duration_ms > seconds * 1000:
                yield batch
                batch = []
            batch.append(clip)
        if batch:
            yield batch


def stacked(samples: Sequence[Tensor], tail_steps: int) -> tuple[Tensor, Tensor]:
    """Clips padded to whole steps and `tail_steps` of silence: [B, N] and lens [B]."""
    steps = [-(-x.shape[0] // STEP_SAMPLES) + tail_steps for x in samples]
    batch = torch.zeros(len(samples), max(steps) * STEP_SAMPLES)
    for row, x in zip(batch, samples, strict=True):
        row[: x.shape[0]] = x
    return batch, torch.tensor(steps) * STEP_SAMPLES


@torch.inference_mode()
def teach(
    model: Model,
    clips: Sequence[Clip],
    alignments: dict[str, AlignedClip],
    out: Path,
    *,
    taught_hours: float,
    max_error: float,
) -> tuple[int, int]:
    """Features and words of `clips` into `out`; returns how many clips have features, and how many also words."""
    recogniser = model.recogniser
    if not isinstance(recogniser, CrossRecogniser):
        raise ConfigError(f"{model.name} is no cross-family model; only those have a full-context teacher")
    known, featured, heard_ms = 0, 0, 0
    with (out / "teacher.jsonl").open("a") as lines:
        for number, batch in enumerate(length_batches(clips, 120.0)):
            shard = out / f"features-{number:05d}.safetensors"
            if shard.exists():
                continue
            samples, lens = stacked([load_audio(clip.path) for clip in batch], TAIL_STEPS)
            features, counts = full_context_features(recogniser, samples, lens)
            teaches = heard_ms < taught_hours * 3_600_000
            heard_ms += sum(clip.duration_ms for clip in batch)
            texts = decode_offline(recogniser, features, counts) if teaches else []
            for clip, pieces in zip(batch[: len(texts)], texts, strict=True):
                aligned = alignments.get(clip.audio)
                words = taught_words(model, pieces, aligned.words, max_error=max_error) if aligned is not None else None
                known += bool(words)
                entry = {"audio": clip.audio, "words": [asdict(word) for word in words]} if words else None
                if entry:
                    lines.write(json.dumps(entry) + "\n")
            lines.flush()
            keep = {
                clip.audio: row[: -(-clip.duration_ms * 16 // FRAME_SAMPLES) + 4 * TAIL_STEPS].half().contiguous()
                for clip, row in zip(batch, features, strict=True)
            }
            save_file(keep, shard.with_suffix(".tmp"))
            shard.with_suffix(".tmp").rename(shard)
            featured += len(batch)
            print(f"shard {number}: {featured} clips, {known} with words", file=sys.stderr, flush=True)
    return featured, known


def read_features(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """(audio, features [T, C] float16) of every clip in `folder`."""
    for shard in sorted(folder.glob("features-*.safetensors")):
        with safe_open(shard, framework="pt") as tensors:
            for audio in tensors.keys():  # noqa: SIM118 - safe_open is no mapping
                yield audio, tensors.get_tensor(audio)


def read_words(folder: Path) -> dict[str, list[TaughtWord]]:
    """Words by audio, as `teach` wrote them."""
    found: dict[str, list[TaughtWord]] = {}
    for line in (folder / "teacher.jsonl").read_text().splitlines():
        entry = json.loads(line)
        found[entry["audio"]] = [TaughtWord(**{**word, "pieces": tuple(word["pieces"])}) for word in entry["words"]]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--alignments", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--taught-hours", type=float, default=2.0, help="so many of them are also decoded")
    parser.add_argument("--max-error", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    clips = list(filter_by_duration(read_manifest(args.manifest), min_ms=800, max_ms=24_000))
    random.Random(args.seed).shuffle(clips)
    total, chosen = 0, []
    for clip in clips:
        if total >= args.hours * 3_600_000:
            break
        chosen.append(clip)
        total += clip.duration_ms
    model = asr.load(args.model)
    teach(
        model,
        chosen,
        dict(read_alignments(args.alignments)),
        args.out,
        taught_hours=args.taught_hours,
        max_error=args.max_error,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
