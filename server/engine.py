"""The one place where the server side calls the recogniser. Imports it late, so that `--help` is quick."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from asr.errors import ConfigError, EarlybirdError
from asr.resample import Samples
from asr.words import Transcript

LoadedModel = Any
"""What `asr.load` gives; this side only hands it on and reads `name` and `describe()`."""

Scorer = Any
"""An `asr.decode.TokenScorer`, or None; this side only hands it on."""

Job = tuple[str, Iterable[Samples]]
Result = tuple[str, Transcript | EarlybirdError]


def load_model(name: str, *, device: str, threads: int) -> LoadedModel:
    """The model of that name or folder, on that device, PyTorch set to that many threads.

    Raises:
        ConfigError: if the device is not there or `threads` is below 1.
        CheckpointError: if there is no such model, or it is damaged.
    """
    import torch

    if threads < 1:
        raise ConfigError(f"threads is {threads}; it must be at least 1")
    check_device(device)
    torch.set_num_threads(threads)
    import asr

    return asr.load(name, device=device)


def check_device(device: str) -> None:
    """Refuse a device that PyTorch does not have.

    Raises:
        ConfigError: names the devices that are there.
    """
    import torch

    present = ["cpu"] + [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        present.append("mps")
    accepted = [*present, "cuda"] if len(present) > 1 and present[1].startswith("cuda") else present
    if device not in accepted:
        raise ConfigError(f"device is {device!r}; this machine has {', '.join(accepted)}")


def load_scorer(
    model: LoadedModel,
    *,
    slots: int,
    lm: Path | None,
    lm_weight: float | None,
    phrases: Path | None,
    boost: float | None,
    log: Callable[[str], None],
) -> Scorer:
    """The scores that `transcribe_jobs` shall count in, or None if there is nothing to count.

    Args:
        model: what `load_model` gave.
        slots: streams at once.
        lm, lm_weight: the file of an n-gram model, and its weight.
        phrases, boost: the file of a list, and the boost of the phrases that have none.
        log: told about every phrase that is not taken, or not as it stands.

    Raises:
        ConfigError: if a weight or a boost has nothing to weigh, or is out of range.
        LanguageModelError, PhraseError: if a file cannot be used.
    """
    if lm_weight is not None and lm is None:
        raise ConfigError("--lm-weight needs an n-gram model; name it with --lm")
    if boost is not None and phrases is None:
        raise ConfigError("--boost needs phrases; name their file with --phrases")
    if lm is None and phrases is None:
        return None
    from lm_fusion.fusion import Fusion
    from lm_fusion.phrases import read_phrases

    scorer = Fusion.of(
        model,
        slots=slots,
        phrases=() if phrases is None else read_phrases(phrases),
        boost=boost,
        lm=lm,
        lm_weight=lm_weight,
    )
    assert scorer.default.phrases is not None
    for answer in scorer.default.phrases.answers:
        if answer.reason:
            log(f"warning: phrase {answer.text!r}{'' if answer.accepted else ' is left out'}: {answer.reason}")
    return scorer


def transcribe_jobs(
    model: LoadedModel,
    jobs: Iterable[Job],
    *,
    delay_ms: int,
    chunk_ms: int,
    batch_size: int,
    draft: str = "auto",
    draft_mode: str = "exact",
    scorer: Scorer = None,
) -> Iterator[Result]:
    """Each job's transcript or its error, in the order in which they finish; `scorer`: what `load_scorer` gave.

    Raises:
        ConfigError: if the model was not made for `delay_ms` and `chunk_ms`, or cannot draft so.
    """
    from asr.drafting import Drafting
    from asr.jobs import transcribe_streams

    results: Iterator[Result] = transcribe_streams(
        model,
        jobs,
        delay_ms=delay_ms,
        chunk_ms=chunk_ms,
        batch_size=batch_size,
        drafting=Drafting.of(draft, draft_mode),
        scorer=scorer,
    )
    return results


def installed_models() -> list[str]:
    """Names of the checkpoints that came with the package, sorted."""
    import asr

    assert asr.__file__ is not None
    folder = Path(asr.__file__).parent / "checkpoints"
    return sorted(config.parent.name for config in folder.glob("*/config.json"))
