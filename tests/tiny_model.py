"""A whole model with random weights and a toy vocabulary: everything that `asr.load` gives, in milliseconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from asr.additive_config import AdditiveConfig
from asr.additive_recogniser import build_additive
from asr.config import AnchorConfig, ChunkSetting, SessionLimits
from asr.ctc_tokenizer import CtcTokenizer
from asr.gate import GateAnswer, GateView
from asr.model import CrossConfig, Model, build_cross
from asr.vocabulary import Vocabulary, _byte_alphabet
from recipes.tokenizer import train_tokenizer
from tests.tiny import randomised

SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>")
CHUNKS = tuple(ChunkSetting(chunk_steps=steps, right_frames=4, silence_frames=6) for steps in (1, 2, 4, 20))
NEVER = {*range(32), *b"OHx|_", *range(0xC5, 256)}
"""First bytes of pieces that the model may not write, so that it writes more words."""
LIMITS = SessionLimits(chunks=CHUNKS, delays=(1, 2, 6))
CAUSAL_LIMITS = SessionLimits(
    chunks=tuple(ChunkSetting(chunk_steps=steps, right_frames=0, silence_frames=0) for steps in (1, 2, 4)),
    delays=(1, 2, 6),
)
ANCHORS = AnchorConfig(
    limit_frames=120,
    pause_after_frames=80,
    pause_frames=12,
    keep_frames=40,
    text_limit=40,
    tail_frames=8,
    voiced_frames=12,
)


def write_tokenizer(path: Path) -> Path:
    """A byte-level BPE of the 256 bytes, a space with each lower-case letter, a few words and signs."""
    space = next(character for character, byte in _byte_alphabet().items() if byte == 32)
    pieces = sorted(_byte_alphabet())
    merges = [(space, letter) for letter in "abcdefghijklmnopqrstuvwxyz5$"]
    merges += [("h", "e"), (space + "t", "he"), ("'", "t"), ("o", "n"), (space + "d", "on")]
    pieces += ["".join(pair) for pair in merges]
    tokenizer = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(path))
    return path


class EagerGate:
    """Lets most tokens go, whatever the attention says: tests of what follows do not depend on a gate's tuning."""

    def __call__(self, view: GateView) -> GateAnswer:
        frame = (view.now - 4 * view.delay).clamp(min=0)
        return GateAnswer((view.now >= 4 * view.delay) & (view.candidate % 5 != 0) & ~view.ended, frame)


def cross_config(vocabulary: Vocabulary) -> CrossConfig:
    size = vocabulary.size
    return CrossConfig(
        mel_bins=8,
        dim=16,
        heads=2,
        encoder_layers=1,
        decoder_layers=2,
        vocabulary=size,
        text_positions=64,
        max_frames=140,
        alignment_heads=((0, 1), (1, 0)),
        prompt=(vocabulary.id(SPECIAL[1]), vocabulary.id(SPECIAL[2])),
        end_id=vocabulary.special_from,
        banned=tuple(i for i, piece in enumerate(vocabulary.pieces) if not piece or piece[0] in NEVER),
        banned_first=(1,),
        limits=LIMITS,
        left_context_frames=60,
        anchors=ANCHORS,
    )


def tiny_model(folder: Path, *, seed: int = 0) -> Model:
    """A cross-family model whose tokenizer file lies in `folder`."""
    vocabulary = Vocabulary(write_tokenizer(folder / "tokenizer.json"))
    config = cross_config(vocabulary)
    recogniser = randomised(build_cross(config, vocabulary), seed)
    decoder = recogniser.decoder
    for layer in decoder.layers:  # or the tied embedding says the same token again and again
        layer.cross.out.weight.data *= 12
    decoder.positions.data *= 4
    recogniser.gate = EagerGate()
    return Model(name="tiny", config=config, recogniser=recogniser, vocabulary=vocabulary)


def write_ctc_tokenizer(folder: Path) -> CtcTokenizer:
    """Letters, and a few words and syllables that sentencepiece finds."""
    lines = ["the cat sat on the mat", "a dog and a cat", "the dog sat on a log", "cats and dogs don't sit"] * 3
    return CtcTokenizer(train_tokenizer(iter(lines), size=36, folder=folder))


def tiny_ctc_model(folder: Path, *, seed: int = 0) -> Model:
    """`tiny_model` with a CTC head, which hears something else than the decoder."""
    model, tokenizer = tiny_model(folder, seed=seed), write_ctc_tokenizer(folder / "ctc")
    config = replace(cross_config(model.vocabulary), ctc_hidden=12, ctc_pieces=len(tokenizer.pieces))
    recogniser = build_cross(config, model.vocabulary)
    recogniser.load_state_dict(model.recogniser.state_dict(), strict=False)
    assert recogniser.ctc is not None
    randomised(recogniser.ctc, seed)
    recogniser.gate = EagerGate()
    recogniser.eval().requires_grad_(False)
    return Model(
        name="tiny with a CTC head",
        config=config,
        recogniser=recogniser,
        vocabulary=model.vocabulary,
        ctc_tokenizer=tokenizer,
    )


def tiny_additive_model(folder: Path) -> Model:
    vocabulary = Vocabulary(write_tokenizer(folder / "tokenizer.json"))
    config = AdditiveConfig(
        mel_bins=8,
        encoder_dim=16,
        encoder_layers=1,
        encoder_heads=2,
        encoder_head_dim=8,
        encoder_hidden=24,
        encoder_window_frames=9,
        dim=16,
        layers=1,
        heads=2,
        kv_heads=1,
        head_dim=8,
        hidden=24,
        window_steps=6,
        vocabulary=vocabulary.size,
        limits=CAUSAL_LIMITS,
    )
    recogniser = randomised(build_additive(config, vocabulary))
    return Model(name="tiny additive", config=config, recogniser=recogniser, vocabulary=vocabulary)


def edit_config(folder: Path, **changes: Any) -> None:
    """Changes outer keys of a checkpoint's config.json; None deletes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def bursts(seconds: float, seed: int = 0) -> torch.Tensor:
    """[N] noise, louder and fainter."""
    from tests.tiny import sound

    return sound(int(seconds * 16_000), seed)
