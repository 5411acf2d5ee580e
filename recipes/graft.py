"""A language model on a Whisper's ears: an additive-family checkpoint to begin training from.

`python -m recipes.graft --llm MODEL.gguf --layers 6 --encoder earlybird-en --text FILE... --out CHECKPOINT --name NAME`
takes the first layers of a Llama-shaped model (SmolLM2, say), its vocabulary cut to what the texts use, and the encoder
of a cross-family checkpoint, made causal. What joins them is new, so it knows nothing until `recipes.sft` has run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import asr
from asr.additive_config import AdditiveConfig
from asr.additive_recogniser import build_additive
from asr.checkpoint import save
from asr.config import ChunkSetting, SessionLimits
from asr.cross_recogniser import CrossRecogniser
from asr.errors import ConfigError, EarlybirdError
from asr.importers.llama import Llama, read_llama
from asr.model import CrossConfig, Model
from asr.vocabulary import Vocabulary
from recipes.convert import text_lines
from recipes.vocabulary import cut_vocabulary, needed_pieces

__all__ = ["graft"]

CHUNK_STEPS = (1, 2, 4, 8, 16, 50)
DELAY_STEPS = tuple(range(1, 13))
ENCODER_THETA = 10_000.0
ENCODER_WINDOW_FRAMES = 500
WINDOW_STEPS = 250
AUDIO_SHARE = 0.1
"""What is heard is added faintly at first, so that the language model's rows are like those it knows."""
READOUT_SHARE = 0.3
"""The closing norm was made for the last of all layers; behind the first few it says everything too loudly."""


def graft(
    llm: Llama, ears: Model, texts: Iterator[str], *, layers: int, name: str, min_count: int, tokenizer_out: Path
) -> Model:
    """The untrained additive model; the delay's conditioning begins at nothing, the wait at the mean of the pieces.

    Args:
        llm: with `layers` layers.
        ears: a cross-family model; its front end and encoder are taken.
        texts: what the vocabulary is cut to.
        min_count: how often a piece has to be used.
        tokenizer_out: where the cut tokenizer goes.

    Raises:
        ConfigError: if `ears` is no cross-family model.
    """
    if not isinstance(ears.recogniser, CrossRecogniser) or not isinstance(ears.config, CrossConfig):
        raise ConfigError(f"{ears.name} is no cross-family model; its encoder cannot be taken")
    embedding, cut = _cut(llm, texts, min_count=min_count, tokenizer_out=tokenizer_out)
    there = ears.config
    config = AdditiveConfig(
        mel_bins=there.mel_bins,
        encoder_kind="whisper",
        encoder_dim=there.dim,
        encoder_layers=there.encoder_layers,
        encoder_heads=there.heads,
        encoder_head_dim=there.dim // there.heads,
        encoder_hidden=4 * there.dim,
        encoder_theta=ENCODER_THETA,
        encoder_window_frames=ENCODER_WINDOW_FRAMES,
        dim=llm.dim,
        layers=layers,
        heads=llm.heads,
        kv_heads=llm.kv_heads,
        head_dim=llm.head_dim,
        hidden=llm.hidden,
        theta=llm.theta,
        window_steps=WINDOW_STEPS,
        vocabulary=embedding.shape[0],
        limits=SessionLimits(
            chunks=tuple(ChunkSetting(chunk_steps=c, right_frames=0, silence_frames=0) for c in CHUNK_STEPS),
            delays=DELAY_STEPS,
        ),
    )
    torch.manual_seed(0)
    recogniser = build_additive(config, cut)
    weights = recogniser.state_dict()
    weights |= {f"decoder.{key}": value for key, value in llm.weights.items() if key != "embedding.weight"}
    weights["decoder.embedding.weight"] = torch.cat([embedding, embedding.mean(0, keepdim=True)])
    weights |= {
        key: value
        for key, value in ears.recogniser.state_dict().items()
        if key.startswith(("frontend.", "encoder.")) and key in weights
    }
    for key in weights:
        if key.endswith("condition.second.weight"):
            weights[key] = torch.zeros_like(weights[key])
    weights["decoder.norm.weight"] = READOUT_SHARE * weights["decoder.norm.weight"]
    weights["adapter.second.weight"] = AUDIO_SHARE * weights["adapter.second.weight"]
    recogniser.load_state_dict(weights)
    return Model(name=name, config=config, recogniser=recogniser.eval(), vocabulary=cut)


def _cut(llm: Llama, texts: Iterator[str], *, min_count: int, tokenizer_out: Path) -> tuple[torch.Tensor, Vocabulary]:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "tokenizer.json"
        path.write_text(json.dumps(llm.tokenizer, ensure_ascii=False), encoding="utf-8")
        vocabulary = Vocabulary(path)
        keep = needed_pieces(vocabulary, texts, min_count=min_count)
        weights, _ = cut_vocabulary(
            vocabulary,
            keep,
            {"decoder.embedding.weight": llm.weights["embedding.weight"]},
            {"prompt": [], "end_id": vocabulary.special_from, "banned": [], "banned_first": []},
            tokenizer_out,
        )
    return weights["decoder.embedding.weight"], Vocabulary(tokenizer_out)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when written, 2 when a file or a setting is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--encoder", required=True, help="a cross-family checkpoint")
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--min-count", type=int, default=8)
    args = parser.parse_args(argv)
    try:
        llm = read_llama(args.llm, layers=args.layers)
        ears = asr.load(args.encoder)
        with tempfile.TemporaryDirectory() as scratch:
            model = graft(
                llm,
                ears,
                text_lines(args.text),
                layers=args.layers,
                name=args.name,
                min_count=args.min_count,
                tokenizer_out=Path(scratch) / "tokenizer.json",
            )
            save(
                model,
                args.out,
                f"# {args.name}\n\nUntrained: {args.layers} layers of {llm.name} ({llm.licence}) on the encoder of "
                f"{ears.name}, made causal.\n",
            )
    except (EarlybirdError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.out}: {model.config.to_json()['vocabulary']} pieces", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
