"""One scorer of an n-gram model and of each stream's phrases, as the decode loop wants it (docs/design.md §7).

A state is [LM state, phrase node, list, paid]: which list a node belongs to is part of it, so that a stream may change
its phrases at any time and old states, drafts included, stay what they were. What has been paid for the text under way
is part of it too: which phrases count changes with what is heard, and what was given is what is given back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
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
from lm_fusion.phrases import Phrase, PhraseBuilder, PhraseList
from lm_fusion.phrases_graph import GRAIN, INSIDE, START, PhraseGraph, build_graph, join_graphs
from lm_fusion.spelling import CtcSpelling, DecoderSpelling

__all__ = ["DEFAULT_LM_WEIGHT", "MAX_LM_WEIGHT", "Fusion", "Steering"]

DEFAULT_LM_WEIGHT = 0.05
MAX_LM_WEIGHT = 2.0
LM, NODE, LIST, PAID = range(4)
"""The columns of a state; PAID in 1/1024 nat."""
HEARD_NATS = 3.0
"""How much less likely than the best labels a phrase's may be, on average, and still count as heard."""
HEARD_LABELS = 3
"""So much of a phrase tells it from others while the rest is still to come."""


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
        self._spot = dispatch("spotting.spot", "numba")
        self._scores = dispatch("phrases.scores", self.backend)
        self._advance = dispatch("phrases.advance", self.backend)
        self._opens = opens
        self._nothing = build_graph([], opens=opens.cpu().numpy())
        self._default = default
        self._steering = [Steering()] * slots
        self._lists = torch.zeros(slots, dtype=torch.int64, device=opens.device)
        self._weights = torch.zeros(slots, device=opens.device)
        self._heard: list[npt.NDArray[np.bool_] | None] = [None] * slots
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
        boost: float | None = None,
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
        head = model.ctc_tokenizer
        sounds = None if head is None else CtcSpelling(head)
        builder = PhraseBuilder(DecoderSpelling.of(model), sounds)
        if isinstance(lm, str | Path):
            units = decoder_units(model.vocabulary, model.config.vocabulary)
            lm = Automaton.load(lm, units, device=model.device)
        if lm_weight is None:
            lm_weight = 0.0 if lm is None else DEFAULT_LM_WEIGHT
        default = Steering(phrases=builder.build(phrases, boost=boost), lm_weight=lm_weight)
        return cls(
            slots=slots,
            builder=builder,
            lm=lm,
            default=default,
            device=model.device,
            preview_builder=None if sounds is None else PhraseBuilder(sounds),
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
            self._heard[row] = None
            self._joined = None
        self._steering[row] = steering
        self._weights[row] = steering.lm_weight

    def hear(self, row: int, log_probs: Tensor) -> None:
        """Let only those phrases of a row count that the CTC head has heard, until it is called again.

        A phrase that the head cannot spell counts always, as all do before the first call. What is under way of one
        that no longer counts is given back at the next piece.

        Args:
            row: a slot.
            log_probs: [W, V'+1] of the newest steps, the blank last; as many as phrases may be heard in.
        """
        phrases = self._steering[row].phrases
        if phrases is None or phrases.sounds is None or phrases.graph.empty:
            return
        labels, lens = phrases.sound_table
        counts = lens == 0
        some = counts.logical_not().nonzero()[:, 0]
        if len(some):
            ratio = self._spot(
                log_probs.float().cpu(), labels[some], lens[some], blank=log_probs.shape[1] - 1, prefix=HEARD_LABELS
            )
            counts = counts.index_copy(0, some, ratio >= -HEARD_NATS)
        before, now = self._heard[row], counts.numpy()
        self._heard[row] = now
        if before is None:
            self._joined = None  # it needs bonuses of its own
        elif self._joined is not None and (before != now).any():
            tables, roots = self._joined
            graph, first = phrases.graph.only(now), int(roots[row])
            own = slice(first, first + graph.nodes)
            with torch.inference_mode():  # as they may have been made: they are this row's alone, and no state
                tables.credit[own] = torch.from_numpy(graph.credit)
                tables.live[own] = torch.from_numpy(graph.live)

    def _tables(self) -> tuple[PhraseTables, Tensor]:
        """The lists in use side by side, and the first node [slots] of each row's.

        Each is there once, but for the rows that have heard: which of its phrases count is a matter of their own.
        """
        if self._joined is None:
            graphs: dict[int | None, PhraseGraph] = {None: self._nothing}
            keys: list[int | None] = []
            for row, (steering, heard) in enumerate(zip(self._steering, self._heard, strict=True)):
                phrases = steering.phrases
                key = None if phrases is None else id(phrases) if heard is None else -1 - row
                if phrases is not None and key not in graphs:
                    graphs[key] = phrases.graph if heard is None else phrases.graph.only(heard)
                keys.append(key)
            tables, offsets = join_graphs(list(graphs.values()), self._opens)
            first = dict(zip(graphs, offsets, strict=True))
            roots = torch.tensor([first[key] for key in keys])
            self._joined = tables, roots.to(self._opens.device)
        return self._joined

    def _nodes(self, states: Tensor, rows: Tensor, roots: Tensor) -> tuple[Tensor, Tensor]:
        """Where the rows are in the tables, and what has been paid there in nats, [k] both.

        A node of a list that was taken away counts as the middle of a word, and nothing is given back.
        """
        node = states[:, NODE]
        stale = (states[:, LIST] != self._lists[rows]) & (node > INSIDE)
        return roots + torch.where(stale, INSIDE, node), torch.where(stale, 0, states[:, PAID]) / GRAIN

    def init_states(self, rows: int) -> Tensor:
        """See `asr.decode.TokenScorer`; D is 4."""
        states = torch.zeros(rows, 4, dtype=torch.int64, device=self._opens.device)
        states[:, NODE] = START
        if self.lm is not None:
            states[:, LM] = self.lm.init_states(rows)
        return states

    def scores(self, states: Tensor, rows: Tensor) -> Tensor:
        """See `asr.decode.TokenScorer`; exactly 0 for rows that are steered by nothing."""
        tables, roots = self._tables()
        nodes, paid = self._nodes(states, rows, roots[rows])
        scores: Tensor = self._scores(tables, nodes)
        scores = scores + (tables.live[nodes] - paid)[:, None]  # 0 unless other phrases count than when it was paid
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
        node = self._advance(tables, self._nodes(states, rows, roots)[0], tokens, roots)
        paid = (tables.live[node] * GRAIN).long()
        state = states[:, LM] if self.lm is None else self.lm.advance_by(states[:, LM], tokens)[1]
        return torch.stack([state, node - roots, self._lists[rows], paid], 1)
