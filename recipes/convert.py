"""A Whisper becomes a streaming checkpoint: its vocabulary cut to what a language needs, its weights untouched.

`python -m recipes.convert --whisper FOLDER --text FILE... --out CHECKPOINT --name NAME`
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from asr.checkpoint import save
from asr.importers.untrained_whisper import UNTRAINED_LIMITS
from asr.importers.whisper import whisper_weights
from asr.model import CrossConfig, Model, build_cross
from asr.vocabulary import Vocabulary
from recipes.vocabulary import cut_vocabulary, needed_pieces


def text_lines(paths: Sequence[Path]) -> Iterator[str]:
    """Lines of text files (plain or .gz), and the transcripts of JSONL manifests."""
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for line in lines:
                text = json.loads(line).get("text") or "" if path.suffix == ".jsonl" else line.strip()
                if text:
                    yield text


def convert(folder: Path, texts: Iterator[str], *, name: str, min_count: int, tokenizer_out: Path) -> Model:
    """The untrained streaming model with the pieces that `texts` use.

    Args:
        folder: a CTranslate2 Whisper.
        min_count: how often a piece has to be used.
        tokenizer_out: where the cut tokenizer goes.
    """
    weights, shape = whisper_weights(folder)
    vocabulary = Vocabulary(folder / "tokenizer.json")
    keep = needed_pieces(vocabulary, texts, min_count=min_count)
    weights, shape = cut_vocabulary(vocabulary, keep, weights, shape, tokenizer_out)
    config = CrossConfig.from_json({**shape, "limits": asdict(UNTRAINED_LIMITS)})
    cut = Vocabulary(tokenizer_out)
    recogniser = build_cross(config, cut)
    recogniser.load_state_dict(weights)
    return Model(name=name, config=config, recogniser=recogniser.eval(), vocabulary=cut)


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whisper", type=Path, required=True)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--min-count", type=int, default=8)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = Path(scratch) / "tokenizer.json"
        model = convert(
            args.whisper, text_lines(args.text), name=args.name, min_count=args.min_count, tokenizer_out=tokenizer
        )
        save(model, args.out, f"# {args.name}\n\nUntrained: {args.whisper.name} with its vocabulary cut.\n")
    print(f"{args.out}: {model.config.to_json()['vocabulary']} pieces", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
