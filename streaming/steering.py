"""What a session is steered by: its phrases and weights, for the decoder and for the tail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torch import Tensor

from asr.decode import TokenScorer
from asr.errors import ConfigError
from lm_fusion.ctc import phrase_labels
from lm_fusion.fusion import Fusion, Steering
from lm_fusion.ngram import Automaton
from lm_fusion.phrases import Phrase, PhraseAnswer

__all__ = ["SessionSteering"]


class SessionSteering:
    """The lists of one session, on the scorer of its engine.

    Args:
        scorer: of the engine.
        lm: the n-gram model that the session asks for, or None.

    Attributes:
        answers: one a phrase, as the newest list has it.
        relabel: see `asr.transcriber.Stream.preview`.

    Raises:
        ConfigError: if the session asks for an n-gram model that the engine has not.
    """

    def __init__(self, scorer: TokenScorer | None, lm: str | Path | Automaton | None) -> None:
        self._fusion = scorer if isinstance(scorer, Fusion) else None
        if lm is not None and (self._fusion is None or self._fusion.lm is not lm):
            raise ConfigError("an engine has one n-gram model for all its sessions: give it to the engine's Fusion")
        self._phrases: tuple[str | Phrase, ...] | None = None
        self._boost: float | None = None
        self._lm_weight: float | None = None
        self.answers: tuple[PhraseAnswer, ...] = ()
        self.relabel: Callable[[Tensor], Sequence[int]] | None = None

    def update(
        self, *, phrases: Iterable[str | Phrase] | None, boost: float | None, lm_weight: float | None
    ) -> Steering | None:
        """Take what is not None.

        Returns:
            what the engine is to be told; None: the session has nothing of its own.
        Raises:
            PhraseError, ConfigError: as `PhraseBuilder.build` and `Steering`; nothing has changed then.
        """
        phrases = self._phrases if phrases is None else tuple(phrases)
        boost = self._boost if boost is None else boost
        lm_weight = self._lm_weight if lm_weight is None else lm_weight
        if phrases is None and lm_weight is None:
            self._boost = boost
            return None
        fusion = self._fusion
        if fusion is None:
            raise ConfigError("the engine cannot be steered; make it with scorer=Fusion.of(model, slots=...)")
        found, answers, relabel = fusion.default.phrases, self.answers, self.relabel
        if phrases is not None:
            level = fusion.builder.default_boost if boost is None else boost
            found = fusion.builder.build(phrases, boost=level)
            answers = found.answers
            head = fusion.preview_builder
            relabel = None if head is None else phrase_labels(head, head.build(phrases, boost=level))
        weight = fusion.default.lm_weight if lm_weight is None else lm_weight
        if weight and fusion.lm is None:
            raise ConfigError(f"lm_weight is {weight}, but there is no n-gram model")
        steering = Steering(phrases=found, lm_weight=weight)
        self._phrases, self._boost, self._lm_weight = phrases, boost, lm_weight
        self.answers, self.relabel = answers, relabel
        return steering
