"""A model as a folder, and models by name.

A checkpoint folder holds `config.json` ({"format", "family", "name", "model"}), `model.safetensors`, `tokenizer.json`
and `MODEL_CARD.md`, exactly where there is a CTC head its sentencepiece file `ctc.model`, and exactly where there are
multi-token heads their weights in `mtp.safetensors`: heads can be added to a model whose own file stays as it is. The
weights must be exactly those that the configuration describes.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from asr.additive_config import AdditiveConfig
from asr.additive_recogniser import build_additive
from asr.ctc_tokenizer import CtcTokenizer
from asr.errors import CheckpointError, ConfigError
from asr.importers.untrained_whisper import untrained_whisper
from asr.model import CrossConfig, Model, build_cross, has_ctc_head
from asr.quantize import Int8Linear, quantize
from asr.vocabulary import Vocabulary

__all__ = ["DEFAULT_MODEL", "FORMAT", "installed", "load", "load_checkpoint", "save"]

FORMAT = 1
DEFAULT_MODEL = "earlybird-en"
INSTALLED = Path(__file__).resolve().parent / "checkpoints"
WHISPER_PREFIX = "whisper:"
INT8_PREFIX = "int8:"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "MODEL_CARD.md")
CTC_FILE = "ctc.model"
MTP_FILE = "mtp.safetensors"
MTP_PREFIX = "mtp."
SHOWN_KEYS = 5


def installed() -> list[str]:
    """Names of the models that came with the package, sorted."""
    return sorted(config.parent.name for config in INSTALLED.glob("*/config.json"))


def load(name_or_path: str | os.PathLike[str] = DEFAULT_MODEL, *, device: str = "cpu") -> Model:
    """A model, ready to transcribe, float32 unless named otherwise.

    Args:
        name_or_path: an installed model's name, a checkpoint folder, or "whisper:FOLDER": a CTranslate2 Whisper of any
            size, untrained. "int8:" before any of them: with weights of int8 in encoder and decoder (asr/quantize.py).
        device: "cpu", "cuda" or "cuda:N".

    Raises:
        ConfigError: if the device is not there, or cannot have int8 weights.
        CheckpointError: if there is no such model, or it is incomplete or damaged.
    """
    check_device(device)
    name = os.fspath(name_or_path)
    if name.startswith(INT8_PREFIX):
        return quantize(load(name.removeprefix(INT8_PREFIX), device=device))
    if name.startswith(WHISPER_PREFIX):
        model = untrained_whisper(Path(name.removeprefix(WHISPER_PREFIX)))
        model.recogniser.to(device)
        return model
    if name in installed():
        return load_checkpoint(INSTALLED / name, device=device)
    if not Path(name).is_dir():
        raise CheckpointError(
            f"no model is called {name!r} and there is no such folder; installed: {', '.join(installed()) or 'none'}; "
            f"a checkpoint folder or {WHISPER_PREFIX}FOLDER (a CTranslate2 Whisper) can be named as well, and "
            f"{INT8_PREFIX} before any"
        )
    return load_checkpoint(Path(name), device=device)


def check_device(device: str) -> None:
    """Refuse a device that is not there, rather than fall back to another.

    Raises:
        ConfigError: names the devices that are.
    """
    count = torch.cuda.device_count()
    present = ["cpu", *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    if device not in present:
        raise ConfigError(f"device is {device!r}; this machine has {', '.join(present)}")


def save(model: Model, folder: str | os.PathLike[str], card: str) -> None:
    """Write a checkpoint: weights as float16, `config.json` last, so that half a checkpoint is none.

    Args:
        model: what to write.
        folder: made if it is not there; files of the same names are replaced.
        card: the text of MODEL_CARD.md: data, licences, results.

    Raises:
        CheckpointError: if a weight is not finite as float16 or is int8, or the card is empty.
    """
    if not card.strip():
        raise CheckpointError("the model card is empty; it must say what the model was made of and how good it is")
    if any(isinstance(part, Int8Linear) for part in model.recogniser.modules()):
        raise CheckpointError(f"{model.name} has int8 weights; save the model that they were made of")
    weights = {name: value.detach().to("cpu", torch.float16) for name, value in model.recogniser.state_dict().items()}
    for name, value in weights.items():
        if not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{name} holds values that are not finite as float16 (largest: 65504)")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").unlink(missing_ok=True)
    heads = {name: value.contiguous() for name, value in weights.items() if name.startswith(MTP_PREFIX)}
    own = {name: value.contiguous() for name, value in weights.items() if name not in heads}
    save_file(own, folder / "model.safetensors")
    (folder / MTP_FILE).unlink(missing_ok=True)
    if heads:
        save_file(heads, folder / MTP_FILE)
    _copy(model.vocabulary.path, folder / "tokenizer.json")
    if model.ctc_tokenizer is None:
        (folder / CTC_FILE).unlink(missing_ok=True)
    else:
        _copy(model.ctc_tokenizer.path, folder / CTC_FILE)
    (folder / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    config = {"format": FORMAT, "family": _family(model), "name": model.name, "model": model.config.to_json()}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    if source.resolve() != target.resolve():
        shutil.copyfile(source, target)


def _family(model: Model) -> str:
    return "cross" if isinstance(model.config, CrossConfig) else "additive"


def load_checkpoint(
    folder: str | os.PathLike[str], *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Model:
    """The model in a checkpoint folder.

    Args:
        folder: as `save` wrote it.
        device: see `load`.
        dtype: of the weights in memory.

    Raises:
        ConfigError: if the device is not there.
        CheckpointError: if a file is missing or unreadable, the format or family is another, or the weights are not
            those that the configuration describes.
    """
    check_device(device)
    folder = Path(folder)
    for file in FILES:
        if not (folder / file).is_file():
            raise CheckpointError(f"{folder} has no {file}; a checkpoint holds {', '.join(FILES)}")
    header = _header(folder / "config.json")
    vocabulary = Vocabulary(folder / "tokenizer.json")
    model = _built(header, vocabulary, folder)
    weights = _weights(folder / "model.safetensors")
    if (folder / MTP_FILE).exists():
        weights |= _weights(folder / MTP_FILE)
    _check_weights(model.recogniser.state_dict(), weights, folder)
    model.recogniser.load_state_dict(weights)
    model.recogniser.to(device=device, dtype=dtype).eval()
    return model


def _weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _header(path: Path) -> dict[str, Any]:
    """config.json, its outer keys checked."""
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} holds a {type(header).__name__}; an object is needed")
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {header.get('format')!r}; this version reads format {FORMAT}")
    wanted = {"format": int, "family": str, "name": str, "model": dict}
    for key, kind in wanted.items():
        if not isinstance(header.get(key), kind):
            raise CheckpointError(f"{path} has {key}={header.get(key)!r}; a {kind.__name__} is needed")
    if unknown := sorted(set(header) - set(wanted)):
        raise CheckpointError(f"{path} has unknown keys {unknown}; known are {sorted(wanted)}")
    return header


def _built(header: dict[str, Any], vocabulary: Vocabulary, folder: Path) -> Model:
    """The model that a configuration describes, its weights not yet loaded."""
    family, name = header["family"], header["name"]
    try:
        if family == "cross":
            cross = CrossConfig.from_json(header["model"])
            _check_vocabulary(cross.vocabulary, vocabulary, folder)
            return Model(
                name=name,
                config=cross,
                recogniser=build_cross(cross, vocabulary),
                vocabulary=vocabulary,
                ctc_tokenizer=_ctc_tokenizer(folder, needed=has_ctc_head(cross)),
            )
        if family == "additive":
            additive = AdditiveConfig.from_json(header["model"])
            _check_vocabulary(additive.vocabulary, vocabulary, folder)
            recogniser = build_additive(additive, vocabulary)
            _ctc_tokenizer(folder, needed=False)
            return Model(name=name, config=additive, recogniser=recogniser, vocabulary=vocabulary)
    except (CheckpointError, ConfigError) as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from error
    raise CheckpointError(f"{folder / 'config.json'} has family {family!r}; 'cross' and 'additive' are known")


def _ctc_tokenizer(folder: Path, *, needed: bool) -> CtcTokenizer | None:
    """The CTC head's pieces, which are there exactly when there is a head."""
    path = folder / CTC_FILE
    if path.exists() != needed:
        found = f"there is no {CTC_FILE}" if needed else f"{CTC_FILE} is there"
        raise CheckpointError(
            f"the model has {'a' if needed else 'no'} CTC head and {found}; both or neither is needed"
        )
    return CtcTokenizer(path) if needed else None


def _check_vocabulary(size: int, vocabulary: Vocabulary, folder: Path) -> None:
    if vocabulary.special_from > size:
        raise CheckpointError(
            f"tokenizer.json has {vocabulary.special_from} text pieces; the model has {size} ids ({folder})"
        )


def _check_weights(wanted: dict[str, Tensor], got: dict[str, Tensor], folder: Path) -> None:
    """Exactly the keys and shapes that are wanted."""
    problems = []
    for what, keys in (("missing", wanted.keys() - got.keys()), ("unexpected", got.keys() - wanted.keys())):
        if keys:
            problems.append(f"{len(keys)} {what}: {_some(sorted(keys))}")
    wrong = [
        f"{key} {list(got[key].shape)}, needed {list(wanted[key].shape)}"
        for key in sorted(wanted.keys() & got.keys())
        if got[key].shape != wanted[key].shape
    ]
    if wrong:
        problems.append(f"{len(wrong)} of another shape: {_some(wrong)}")
    if problems:
        raise CheckpointError(f"{folder / 'model.safetensors'} does not fit its config.json: {'; '.join(problems)}")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_KEYS} more" if len(names) > SHOWN_KEYS else ""
    return ", ".join(names[:SHOWN_KEYS]) + more
