"""Train the CTC head's sentencepiece vocabulary.

    python -m recipes.tokenizer --text FILE... --size 512 --out FOLDER [--type unigram]

A text file is plain text, gzipped text (`.gz`) or a manifest (`.jsonl`, its transcripts); every line becomes lower-case
words of [a-z']. Writes FOLDER/tokenizer.model and tokenizer.vocab, and says what the size costs: pieces a word and,
where a manifest states durations, pieces a second, which the step clock bounds at 12.5.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import sentencepiece

from asr.ctc_tokenizer import CtcTokenizer, ctc_words
from asr.errors import ConfigError, EarlybirdError
from recipes.data import read_manifest

_LETTERS = "abcdefghijklmnopqrstuvwxyz'"
ModelType = Literal["unigram", "bpe"]


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a text file, of a gzipped one, or the transcripts of a manifest, chosen by the suffix."""
    if path.suffix == ".jsonl":
        yield from (clip.text for clip in read_manifest(path) if clip.text is not None)
    elif path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from lines
    else:
        with path.open(encoding="utf-8") as lines:
            yield from lines


def train_tokenizer(lines: Iterator[str], *, size: int, folder: Path, model_type: ModelType = "unigram") -> Path:
    """Train on `lines` and return the model file.

    Args:
        lines: any text; reduced to lower-case words of [a-z'].
        size: pieces, the unknown one included; each letter is a piece whatever the text is.
        folder: made if need be.
        model_type: sentencepiece's.

    Raises:
        ConfigError: if there are no words, or sentencepiece cannot make that many pieces of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sentences = [" ".join(words) for line in lines if (words := ctc_words(line))]
    if not sentences:
        raise ConfigError("the text has no words of a-z")
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_prefix=str(folder / "tokenizer"),
            vocab_size=size,
            model_type=model_type,
            character_coverage=1.0,
            byte_fallback=False,
            normalization_rule_name="identity",
            required_chars=_LETTERS,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,  # more threads change the result from run to run
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ConfigError(f"sentencepiece cannot make {size} pieces of {len(sentences)} lines: {error}") from error
    return folder / "tokenizer.model"


def cost(tokenizer: CtcTokenizer, paths: Sequence[Path]) -> str:
    """What the pieces cost on texts, in a sentence: the fewer a second, the less a word waits for its last one."""
    words = pieces = 0
    seconds, spoken, densest = 0.0, 0, 0.0
    for path in paths:
        clips = [(c.text or "", c.duration_ms / 1000) for c in read_manifest(path)] if path.suffix == ".jsonl" else None
        for text, duration in clips if clips is not None else ((line, 0.0) for line in read_lines(path)):
            count = sum(len(word) for word in tokenizer.encode(ctc_words(text)))
            words, pieces = words + len(ctc_words(text)), pieces + count
            if duration:
                seconds, spoken, densest = seconds + duration, spoken + count, max(densest, count / duration)
    said = f"{pieces / max(1, words):.2f} pieces a word"
    if seconds:
        said += f", {spoken / seconds:.1f} a second, {densest:.1f} in the densest clip (there are 12.5 steps)"
    return said


def build_parser() -> argparse.ArgumentParser:
    """The command line of `python -m recipes.tokenizer`."""
    parser = argparse.ArgumentParser(prog="python -m recipes.tokenizer", description="Train the CTC vocabulary.")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="text, .gz text or .jsonl manifests")
    parser.add_argument("--size", type=int, default=512, help="pieces")
    parser.add_argument("--out", type=Path, required=True, help="folder for tokenizer.model")
    parser.add_argument("--type", choices=("unigram", "bpe"), default="unigram")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when the model is written, 2 when a setting is wrong."""
    args = build_parser().parse_args(argv)
    try:
        lines = (line for path in args.text for line in read_lines(path))
        path = train_tokenizer(lines, size=args.size, folder=args.out, model_type=args.type)
        print(path)
        print(f"{args.size} pieces: {cost(CtcTokenizer(path), args.text)}", file=sys.stderr)
    except EarlybirdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
