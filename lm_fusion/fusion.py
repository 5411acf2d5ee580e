"""One scorer of an n-gram model and of each stream's phrases, as the decode loop wants it (docs/design.md §7).

A state is [LM state, phrase node, list]: which list a node belongs to is part of it, so that a stream may change its
phrases at any time and old states, drafts included, stay what they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.errors import ConfigError, LanguageModelError
from asr.model import Model
from kernels.dispatch import dispatch
from kernels.ngram import best_backend
from kernels.phrases import PhraseTables
from lm_fusion.ngram import Automaton
from lm_fusion.ngram_units import decoder_units
from lm_fusion.phrases import DEFAULT_BOOST, Phrase, PhraseBuilder, PhraseList
from lm_fusion.phrases_graph import INSIDE, START, build_graph, join_graphs
from lm_fusion.spelling import CtcSpelling, DecoderSpelling

__all__ = ["DEFAULT_LM_WEIGHT", "MAX_LM_WEIGHT", "Fusion", "Steering"]

DEFAULT_LM_WEIGHT = 0.2
MAX_LM_WEIGHT = 2.0
LM, NODE, LIST = range(3)
"""The columns of a state."""


@dataclass(frozen=True, kw_only=True)
class Steering:
    """What one stream is steered by.

    Attributes:
        phrases: its list; None: none.
        lm_weight: by which the n-gram's log-probabilities are multiplied; 0 leaves it out.

    Raises:
        ConfigError: if the weight is out of range.
    """

    phrases: PhraseList | None = None
    lm_weight: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.lm_weight <= MAX_LM_WEIGHT:
            raise ConfigError(f"lm_weight is {self.lm_weight}; it must be from 0 to {MAX_LM_WEIGHT}")


class Fusion:
    """The scores of all slots of an engine.

    Args:
        slots: rows of the engine.
        builder: of the lists.
        lm: the n-gram model; None: there is none.
        default: what rows are steered by that nobody steers otherwise.
        device: where all is computed; the n-gram model is there.
        backend: of the phrase kernels; None: the one made for the device.
        preview_builder: of lists for the CTC head's pieces; None: there is no head.

    Attributes:
        builder, preview_builder, lm, backend: as given or chosen.

    Raises:
        ConfigError: if `default` needs an n-gram model and there is none.
        LanguageModelError: if the model scores more pieces than there are.
        KernelUnavailable: if the backend is not there.
    """

    def __init__(
        self,
        *,
        slots: int,
        builder: PhraseBuilder,
        lm: Automaton | None = None,
        default: Steering = Steering(),
        device: torch.device | str = "cpu",
        backend: str | None = None,
        preview_builder: PhraseBuilder | None = None,
    ) -> None:
        opens = builder.spelling.opens.to(device)
        if lm is not None and lm.vocabulary > len(opens):
            raise LanguageModelError(f"the n-gram model scores {lm.vocabulary} pieces, the recogniser has {len(opens)}")
        self.builder, self.preview_builder, self.lm = builder, preview_builder, lm
        self.backend = best_backend(opens.device) if backend is None else backend
        self._scores = dispatch("phrases.scores", self.backend)
        self._advance = dispatch("phrases.advance", self.backend)
        self._opens = opens
        self._nothing = build_graph([], opens=opens.cpu().numpy())
        self._default = default
        self._steering = [Steering()] * slots
        self._lists = torch.zeros(slots, dtype=torch.int64, device=opens.device)
        self._weights = torch.zeros(slots, device=opens.device)
        self._joined: tuple[PhraseTables, Tensor] | None = None
        self._given = 0
        for row in range(slots):
            self.steer(row, None)

    @classmethod
    def of(
        cls,
        model: Model,
        *,
        slots: int,
        phrases: Iterable[str | Phrase] = (),
        boost: float = DEFAULT_BOOST,
        lm: str | Path | Automaton | None = None,
        lm_weight: float | None = None,
    ) -> Fusion:
        """The scores of an engine of `model`.

        Args:
            model: what `asr.load` gave.
            slots: of the engine.
            phrases, boost: of the rows that nobody steers otherwise, see `PhraseBuilder.build`.
            lm: an n-gram model over the decoder's pieces, or its file; see `Automaton.load`.
            lm_weight: of those rows; None: DEFAULT_LM_WEIGHT where there is an n-gram model.

        Raises:
            PhraseError, LanguageModelError, ConfigError: as the parts do.
        """
        builder = PhraseBuilder(DecoderSpelling.of(model))
        if isinstance(lm, str | Path):
            units = decoder_units(model.vocabulary, model.config.vocabulary)
            lm = Automaton.load(lm, units, device=model.device)
        if lm_weight is None:
            lm_weight = 0.0 if lm is None else DEFAULT_LM_WEIGHT
        default = Steering(phrases=builder.build(phrases, boost=boost), lm_weight=lm_weight)
        head = model.ctc_tokenizer
        return cls(
            slots=slots,
            builder=builder,
            lm=lm,
            default=default,
            device=model.device,
            preview_builder=None if head is None else PhraseBuilder(CtcSpelling(head)),
        )

    @property
    def default(self) -> Steering:
        """What rows are steered by that nobody steers otherwise."""
        return self._default

    def describe(self) -> dict[str, object]:
        """What runs, for reports."""
        return {"phrases_backend": self.backend, "lm": None if self.lm is None else self.lm.describe()}

    def steer(self, row: int, steering: Steering | None) -> None:
        """Steer a row by something else, from its next step on; None: by the default.

        Raises:
            ConfigError: if a weight is given where there is no n-gram model.
        """
        steering = self._default if steering is None else steering
        if steering.lm_weight and self.lm is None:
            raise ConfigError(f"lm_weight is {steering.lm_weight}, but there is no n-gram model")
        if steering.phrases is not self._steering[row].phrases:
            self._given += 1
            self._lists[row] = self._given
            self._joined = None
        self._steering[row] = steering
        self._weights[row] = steering.lm_weight

    def _tables(self) -> tuple[PhraseTables, Tensor]:
        """The lists in use side by side, each once, and the first node [slots] of each row's."""
        if self._joined is None:
            lists = {id(s.phrases): s.phrases.graph for s in self._steering if s.phrases is not None}
            tables, offsets = join_graphs([self._nothing, *lists.values()], self._opens)
            first = dict(zip([id(None), *lists], offsets, strict=True))
            roots = torch.tensor([first[id(s.phrases)] for s in self._steering])
            self._joined = tables, roots.to(self._opens.device)
        return self._joined

    def _nodes(self, states: Tensor, rows: Tensor, roots: Tensor) -> Tensor:
        """[k] where the rows are in the tables; a node of a list that was taken away counts as the middle of a word."""
        node = states[:, NODE]
        stale = (states[:, LIST] != self._lists[rows]) & (node > INSIDE)
        return roots + torch.where(stale, INSIDE, node)

    def init_states(self, rows: int) -> Tensor:
        """See `asr.decode.TokenScorer`; D is 3."""
        states = torch.zeros(rows, 3, dtype=torch.int64, device=self._opens.device)
        states[:, NODE] = START
        if self.lm is not None:
            states[:, LM] = self.lm.init_states(rows)
        return states

    def scores(self, states: Tensor, rows: Tensor) -> Tensor:
        """See `asr.decode.TokenScorer`; exactly 0 for rows that are steered by nothing."""
        tables, roots = self._tables()
        scores: Tensor = self._scores(tables, self._nodes(states, rows, roots[rows]))
        if self.lm is not None and any(steering.lm_weight for steering in self._steering):
            weights = self._weights[rows][:, None]
            said, _ = self.lm.advance(states[:, LM])
            said = torch.where(weights > 0, weights * said, 0.0)
            scores = scores + F.pad(said, (0, scores.shape[1] - said.shape[1]))
        return scores

    def advance(self, states: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
        """See `asr.decode.TokenScorer`. The n-gram's state moves also where its weight is 0: it may be raised later."""
        tables, roots = self._tables()
        roots = roots[rows]
        node = self._advance(tables, self._nodes(states, rows, roots), tokens, roots) - roots
        state = states[:, LM] if self.lm is None else self.lm.advance_by(states[:, LM], tokens)[1]
        return torch.stack([state, node, self._lists[rows]], 1)
