"""Transcripts in the teacher's spelling: capitals and marks from the full-context decoder, words from the reference.

`python -m recipes.spell --model M --manifest DATA/train.jsonl --alignments A.jsonl --out DIR` appends to
`DIR/teacher.jsonl` (as `recipes.teacher` writes it) every aligned clip. A transcript with small letters keeps its own
spelling. One that is all capitals is read to the teacher's decoder word by word: at each word the decoder chooses
between its small and its capitalised form, and behind it between the next word and a mark. Unlike a free decode this
serves clips that the teacher cannot understand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

import asr
from asr.cross_recogniser import CrossRecogniser
from asr.errors import ConfigError
from asr.model import Model
from asr.vocabulary import Vocabulary
from recipes.align import AlignedClip, read_alignments
from recipes.data import Clip, load_audio, read_manifest
from recipes.teacher import TAIL_STEPS, TaughtWord, full_context_features, length_batches, read_words, stacked

__all__ = ["Speller", "as_written", "spell"]

MARKS = (",", ".", "?", "!")
BATCH_SECONDS = 120.0


def forms(text: str) -> tuple[str, ...]:
    """The ways to write a word that was given in capitals.

    >>> forms("HELLO"), forms("I'M"), forms("I")
    (('hello', 'Hello'), ("I'm",), ('I',))
    """
    small = text.lower()
    big = small[:1].upper() + small[1:]
    return (big,) if small == "i" or small.startswith("i'") else (small, big)


@dataclass
class _Clip:
    """One clip under way: words written so far, and the pieces of the present word that are still to be read."""

    words: Sequence[str]
    written: list[list[int]]
    queue: list[int]
    over: bool = False


class Speller:
    """Reads transcripts to the decoder of a full-context model.

    Raises:
        ConfigError: if the model is no cross-family one.
    """

    def __init__(self, model: Model) -> None:
        if not isinstance(model.recogniser, CrossRecogniser):
            raise ConfigError(f"{model.name} is no cross-family model; only those have a full-context decoder")
        self.recogniser, self.vocabulary = model.recogniser, model.vocabulary
        self._marks = {mark: self.vocabulary.encode(mark)[0] for mark in MARKS}

    @torch.inference_mode()
    def spell(self, samples: Sequence[Tensor], texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Pieces of each word of each clip.

        Args:
            samples: [N] 16 kHz a clip; texts: its words, in capitals, at least one.
        """
        recogniser, decoder = self.recogniser, self.recogniser.decoder
        features, counts = full_context_features(recogniser, *stacked(samples, TAIL_STEPS))
        batch = len(samples)
        memory = decoder.remember(decoder.init_memory(batch, frames=features.shape[1]), features, counts, counts, None)
        state = decoder.init_state(batch)
        tokens = torch.tensor(recogniser.prompt).expand(batch, -1)
        clips = [_Clip(words=words, written=[], queue=[]) for words in texts]
        while True:
            lens = torch.full((batch,), tokens.shape[1])
            hidden, _ = decoder.rows(tokens, lens, state, memory)
            state = state.advance(lens)
            logits = decoder.logits(hidden[:, -1])
            tokens = torch.tensor([[self._next(clip, row)] for clip, row in zip(clips, logits, strict=True)])
            if all(clip.over for clip in clips):
                return [clip.written for clip in clips]

    def _next(self, clip: _Clip, logits: Tensor) -> int:
        """The clip's next piece."""
        if clip.over:
            return self.recogniser.end_id
        if not clip.queue:
            last = len(clip.written) == len(clip.words)
            rivals = [] if last else [self._pieces(form) for form in forms(clip.words[len(clip.written)])]
            best = max(rivals, key=lambda pieces: float(logits[pieces[0]]), default=[self.recogniser.end_id])
            mark = max(self._marks.values(), key=lambda piece: float(logits[piece]))
            behind_word = clip.written and clip.written[-1][-1] not in self._marks.values()
            if behind_word and logits[mark] > logits[best[0]]:
                clip.written[-1].append(mark)
                return mark
            if last:
                clip.over = True
                return self.recogniser.end_id
            clip.written.append(list(best))
            clip.queue = list(best)
        return clip.queue.pop(0)

    def _pieces(self, word: str) -> list[int]:
        return self.vocabulary.encode(" " + word)


def as_written(vocabulary: Vocabulary, words: Sequence[str]) -> list[list[int]]:
    """Pieces of words that keep their spelling."""
    return [vocabulary.encode(" " + word) for word in words]


def spell(model: Model, clips: Sequence[Clip], aligned: dict[str, AlignedClip]) -> Iterator[dict[str, object]]:
    """Lines of `teacher.jsonl` for every clip that is aligned and has a word."""
    vocabulary = model.vocabulary
    capitals: list[Clip] = []
    for clip in clips:
        words = [word.text for word in aligned[clip.audio].words] if clip.audio in aligned else []
        if not words:
            continue
        if clip.text is not None and clip.text.isupper():
            capitals.append(clip)
        else:
            yield _line(vocabulary, aligned[clip.audio], as_written(vocabulary, words))
    speller = Speller(model)
    done = 0
    for batch in length_batches(capitals, BATCH_SECONDS):
        texts = [[word.text for word in aligned[clip.audio].words] for clip in batch]
        for clip, pieces in zip(batch, speller.spell([load_audio(c.path) for c in batch], texts), strict=True):
            yield _line(vocabulary, aligned[clip.audio], pieces)
        done += len(batch)
        print(f"{done} of {len(capitals)} clips in capitals", file=sys.stderr, flush=True)


def _line(vocabulary: Vocabulary, aligned: AlignedClip, pieces: Sequence[Sequence[int]]) -> dict[str, object]:
    words = [
        TaughtWord(
            text=vocabulary.decode(list(one)).strip(), pieces=tuple(one), start_ms=word.start_ms, end_ms=word.end_ms
        )
        for one, word in zip(pieces, aligned.words, strict=True)
    ]
    return {"audio": aligned.audio, "words": [asdict(word) for word in words]}


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--alignments", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    target = args.out / "teacher.jsonl"
    known = set(read_words(args.out)) if target.exists() else set()
    clips = [clip for clip in read_manifest(args.manifest) if clip.audio not in known and clip.duration_ms <= 24_000]
    with target.open("a") as lines:
        for line in spell(asr.load(args.model), clips, dict(read_alignments(args.alignments))):
            lines.write(json.dumps(line) + "\n")
            lines.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
