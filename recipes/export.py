"""Puts trained parts together into one checkpoint.

`python -m recipes.export --base M [M …] [--gate CHECKPOINT] [--ctc CHECKPOINT] --name NAME --card FILE --out DIR`
`[--chunks C:R:S …] [--gate-numbers NAME=VALUE …]`
`--base` gives encoder, decoder and settings; of several, saves of one run, the mean of their weights. The learned gate
and the CTC head come from the checkpoints named, which must have been trained on that same base. `--chunks` says which
chunks (steps, with frames of right context and of silence) sessions may have, `--gate-numbers` sets fields of
GateConfig.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import torch
from torch import Tensor

import asr
from asr.checkpoint import save
from asr.config import ChunkSetting, GateConfig
from asr.errors import CheckpointError, ConfigError
from asr.model import CrossConfig, Model, build_cross

PARTS = {"gate": "gate.", "ctc": "ctc."}


def assemble(base: Model, donors: dict[str, Model], *, gate: GateConfig | None = None) -> Model:
    """The base with the parts of the donors ("gate", "ctc").

    Args:
        gate: the gates' numbers; None: the base's.
    Raises:
        ConfigError: if a model is of another family or a donor lacks the part.
        CheckpointError: if a donor's frozen weights are not the base's.
    """
    weights = dict(base.recogniser.state_dict())
    config = base.config
    if not isinstance(config, CrossConfig):
        raise ConfigError(f"{base.name} is no cross-family model")
    frozen = set(weights)
    for part, donor in donors.items():
        theirs = donor.recogniser.state_dict()
        if not isinstance(donor.config, CrossConfig) or not any(key.startswith(PARTS[part]) for key in theirs):
            raise ConfigError(f"{donor.name} has no {part}")
        for key in sorted(frozen & set(theirs)):
            if not key.startswith(tuple(PARTS.values())) and not torch.equal(weights[key], theirs[key]):
                raise CheckpointError(
                    f"{key} of {donor.name} is not that of {base.name}: it was trained on another base"
                )
        weights |= {key: value for key, value in theirs.items() if key.startswith(PARTS[part])}
        if part == "gate":
            config = replace(config, gate_hidden=donor.config.gate_hidden, gate_corrects=donor.config.gate_corrects)
        else:
            config = replace(config, ctc_hidden=donor.config.ctc_hidden, ctc_pieces=donor.config.ctc_pieces)
    config = replace(config, gate=gate or config.gate)
    recogniser = build_cross(config, base.vocabulary)
    recogniser.load_state_dict(weights)
    tokenizer = donors["ctc"].ctc_tokenizer if "ctc" in donors else base.ctc_tokenizer
    return replace(base, config=config, recogniser=recogniser.eval(), ctc_tokenizer=tokenizer)


def average(models: Sequence[Model]) -> Model:
    """The first model with the mean of all their weights (Izmailov et al. 2018).

    Raises:
        ConfigError: if there is none.
        CheckpointError: if they differ in more than their weights.
    """
    if not models:
        raise ConfigError("there is no checkpoint to average")
    first = models[0]
    for other in models[1:]:
        if other.config != first.config or other.vocabulary.pieces != first.vocabulary.pieces:
            raise CheckpointError(f"{other.name} has another configuration or vocabulary than {first.name}")
    total: dict[str, Tensor] = {}
    for model in models:
        for name, value in model.recogniser.state_dict().items():
            total[name] = total[name] + value.double() if name in total else value.double()
    with torch.no_grad():
        for name, value in first.recogniser.state_dict().items():
            value.copy_(total[name] / len(models))
    return first


def parse_chunk(text: str) -> ChunkSetting:
    """A chunk setting as the command takes it.

    >>> parse_chunk("4:32:8")
    ChunkSetting(chunk_steps=4, right_frames=32, silence_frames=8)

    Raises:
        ConfigError: if it is not three whole numbers that go together.
    """
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise ConfigError(f"a chunk is STEPS:RIGHT:SILENCE, such as 4:32:8; got {text!r}")
    steps, right, silence = map(int, parts)
    return ChunkSetting(chunk_steps=steps, right_frames=right, silence_frames=silence)


def parse_gate(gate: GateConfig, numbers: Sequence[str]) -> GateConfig:
    """The gate's numbers with those given as NAME=VALUE.

    Raises:
        ConfigError: for a name that is none of its numbers, or a value that is no such number.
    """
    kinds = {field.name: type(getattr(gate, field.name)) for field in fields(gate)}
    for text in numbers:
        name, _, value = text.partition("=")
        if name not in kinds:
            raise ConfigError(f"the gate has the numbers {sorted(kinds)}; got {text!r}")
        try:
            gate = replace(gate, **{name: kinds[name](value)})
        except ValueError as error:
            raise ConfigError(f"{text!r}: {kinds[name].__name__} is needed") from error
    return gate


def set_up(model: Model, *, chunks: Sequence[ChunkSetting], gate_numbers: Sequence[str]) -> Model:
    """The model with other chunk settings (none given: its own) and other numbers of the gate.

    Raises:
        ConfigError: if it is no cross-family model, or for a number that the gate has not.
    """
    config = model.config
    if not isinstance(config, CrossConfig):
        raise ConfigError(f"{model.name} is no cross-family model")
    limits = replace(config.limits, chunks=tuple(chunks)) if chunks else config.limits
    changed = replace(model, config=replace(config, limits=limits))
    return assemble(changed, {}, gate=parse_gate(config.gate, gate_numbers))


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", nargs="+", required=True)
    parser.add_argument("--gate")
    parser.add_argument("--ctc")
    parser.add_argument("--chunks", nargs="+", default=[], metavar="C:R:S")
    parser.add_argument("--gate-numbers", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--name", required=True)
    parser.add_argument("--card", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    donors = {part: asr.load(path) for part, path in (("gate", args.gate), ("ctc", args.ctc)) if path}
    base = average([asr.load(path) for path in args.base])
    chunks = [parse_chunk(text) for text in args.chunks]
    model = set_up(assemble(base, donors), chunks=chunks, gate_numbers=args.gate_numbers)
    model = replace(model, name=args.name)
    save(model, args.out, args.card.read_text(encoding="utf-8"))
    size = sum(file.stat().st_size for file in args.out.iterdir()) / 1e6
    print(f"{args.out}: {size:.1f} MB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
