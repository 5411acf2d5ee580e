"""An n-gram model over a recogniser's tokens as an automaton: scores of all tokens for a batch of states in one call.

    >>> from lm_fusion.ngram import Automaton
    >>> automaton = Automaton.load("token.lm", units)  # doctest: +SKIP
    >>> scores, states = automaton.advance(automaton.init_states(2))  # doctest: +SKIP

A state is a number: what the model knows of the text so far. Scores are natural logarithms and equal KenLM's: a token
that the model does not know scores as `<unk>`, or log10 -100 if there is none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

import kernels.dispatch
from asr.errors import KernelUnavailable, LanguageModelError
from kernels.dispatch import Kernel, dispatch
from kernels.ngram import NgramTables, best_backend
from lm_fusion.arpa import BEGIN, END, UNKNOWN, NGrams, read_arpa
from lm_fusion.ngram_trie import Longs, Trie, build_trie
from lm_fusion.ngram_units import Units, check_units

FORMAT = 1
_FORMAT_KEY = "earlybird_ngram"
_TABLES = (
    "root_score",
    "root_target",
    "first_arc",
    "label",
    "score",
    "target",
    "backoff_to",
    "backoff_score",
)
_LN10 = math.log(10)


@dataclass(frozen=True, kw_only=True, eq=False)
class Automaton:
    """V tokens, S states.

    Attributes:
        tables: the automaton over labels; label v is token v, and one more stands for `<unk>` where longer n-grams name
            it.
        final_score: [S] float32, natural log of "the sentence ends here".
        label_of: [V] int64, the label of each token, or None where it is the token itself.
        begin: the state at the start of a sentence.
        order: of the model.
        fingerprint: of the tokens that it is for.
        backend: name of the kernels that run.
    """

    tables: NgramTables
    final_score: Tensor
    label_of: Tensor | None
    begin: int
    order: int
    fingerprint: str
    backend: str

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.tables.labels if self.label_of is None else self.label_of.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the tables are."""
        return self.final_score.device

    @cached_property
    def _advance(self) -> Kernel:
        return dispatch("ngram.advance", self.backend)

    @cached_property
    def _lookup(self) -> Kernel:
        return dispatch("ngram.lookup", self.backend)

    def init_states(self, batch: int) -> Tensor:
        """[B] int64: nothing has been written."""
        return torch.full((batch,), self.begin, dtype=torch.int64, device=self.device)

    def advance(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """What every token scores behind each state, and the state that it leads to.

        Args:
            states: [B] int64.
        Returns:
            scores [B, V] float32, next states [B, V] int32.
        Raises:
            ValueError: if states have another shape, type or device, or (on the CPU) are out of range.
        """
        scores, targets = self._advance(self.tables, states)
        if self.label_of is None:
            return scores, targets
        return scores.index_select(1, self.label_of), targets.index_select(1, self.label_of)

    def advance_by(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """As `advance`, for one token a state.

        Args:
            states, tokens: [B] int64.
        Returns:
            scores [B] float32, next states [B] int64.
        """
        labels = tokens if self.label_of is None else self.label_of[tokens]
        scores, targets = self._lookup(self.tables, states, labels)
        return scores, targets

    def final(self, states: Tensor) -> Tensor:
        """[B] float32, natural log of "the sentence ends here", for states [B]."""
        return self.final_score[states]

    def to(self, device: torch.device | str, backend: str | None = None) -> Automaton:
        """The automaton on a device, run by the kernels called `backend`, or by those made for the device.

        Raises:
            KernelUnavailable: if there is no such backend here.
        """
        device = torch.device(device)
        moved = replace(
            self,
            tables=self.tables.to(device),
            final_score=self.final_score.to(device),
            label_of=None if self.label_of is None else self.label_of.to(device),
            backend=best_backend(device) if backend is None else backend,
        )
        try:
            _ = moved._advance, moved._lookup  # now, rather than at the first word
        except kernels.dispatch.KernelUnavailable as error:
            raise KernelUnavailable(str(error)) from error
        return moved

    def describe(self) -> dict[str, object]:
        """What it is and what runs it, for reports."""
        return {
            "order": self.order,
            "tokens": self.vocabulary,
            "states": self.tables.states,
            "arcs": len(self.tables.label),
            "backend": self.backend,
            "device": str(self.device),
        }

    def save(self, path: str | Path) -> None:
        """Write one file, in the safetensors format.

        Raises:
            OSError: if it cannot be written.
        """
        tensors = self.tables.tensors() | {"final_score": self.final_score}
        if self.label_of is not None:
            tensors["label_of"] = self.label_of
        about = {
            _FORMAT_KEY: str(FORMAT),
            "about": json.dumps(
                {"begin": self.begin, "order": self.order, "depth": self.tables.depth, "fingerprint": self.fingerprint}
            ),
        }
        Path(path).write_bytes(save({name: t.cpu().contiguous() for name, t in tensors.items()}, metadata=about))

    @classmethod
    def load(
        cls, path: str | Path, units: Units, *, device: torch.device | str = "cpu", backend: str | None = None
    ) -> Automaton:
        """What `save` wrote, or an ARPA file, plain or gzipped.

        A saved file is mapped into memory: processes that use the same one share it.

        Args:
            path: the file.
            units: the tokens that it must be for.
            device, backend: as in `to`.

        Raises:
            LanguageModelError: if it is neither, is damaged, or is over other tokens.
            KernelUnavailable: if there is no such backend here.
            OSError: if it cannot be read.
        """
        path = Path(path)
        with path.open("rb") as file:
            start = file.read(9)
        if start[8:] == b"{":  # a safetensors file: 8 bytes of length, then JSON
            automaton = _read_saved(path)
            if automaton.fingerprint != units.fingerprint:
                raise LanguageModelError(
                    f"{path} was made for other tokens ({automaton.vocabulary}, {automaton.fingerprint}) than the "
                    f"{units.kind} vocabulary's ({len(units.names)}, {units.fingerprint}); build it anew"
                )
            return automaton.to(device, backend)
        return build_automaton(read_arpa(path), units, source=str(path)).to(device, backend)


def _read_saved(path: Path) -> Automaton:
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, str] = file.metadata() or {}
            if about.get(_FORMAT_KEY) != str(FORMAT):
                raise LanguageModelError(
                    f"{path} is not an n-gram automaton of format {FORMAT} (got {about.get(_FORMAT_KEY, 'none')})"
                )
            facts: dict[str, Any] = json.loads(about["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no dict
        automaton = Automaton(
            tables=NgramTables(**{name: tensors.pop(name) for name in _TABLES}, depth=int(facts["depth"])),
            final_score=tensors.pop("final_score"),
            label_of=tensors.pop("label_of", None),
            begin=int(facts["begin"]),
            order=int(facts["order"]),
            fingerprint=str(facts["fingerprint"]),
            backend="reference",
        )
    except (SafetensorError, KeyError, ValueError) as error:
        raise LanguageModelError(f"{path} is damaged or incomplete: {type(error).__name__}: {error}") from error
    if (fault := _fault(automaton)) is not None:
        raise LanguageModelError(f"{path} is damaged: {fault}")
    return automaton


def _fault(automaton: Automaton) -> str | None:
    """What would make a kernel read where nothing is, if there is such a thing."""
    tables = automaton.tables
    S, L, A = tables.states, tables.labels, len(tables.label)
    shapes = {name: tensor.shape for name, tensor in tables.tensors().items()}
    expected = dict.fromkeys(("root_score", "root_target"), (L,)) | {"first_arc": (S + 1,)}
    expected |= dict.fromkeys(("label", "score", "target"), (A,)) | dict.fromkeys(("backoff_to", "backoff_score"), (S,))
    if any(tuple(shape) != expected[name] for name, shape in shapes.items()) or automaton.final_score.shape != (S,):
        return f"the arrays' sizes do not fit together: { {name: tuple(shape) for name, shape in shapes.items()} }"
    inside = (
        (tables.root_target, S),
        (tables.target, S),
        (tables.label, L),
        (tables.first_arc, A + 1),
        *(() if automaton.label_of is None else ((automaton.label_of, L),)),
    )
    if any(len(values) and not 0 <= int(values.min()) <= int(values.max()) < end for values, end in inside):
        return "a state or label is out of range"
    if not 0 <= automaton.begin < S or bool((tables.first_arc.diff() < 0).any()):
        return "the states' arcs are out of order"
    below = torch.arange(S).clamp(min=1)  # a way that only goes down ends at 0
    if not S or bool((tables.backoff_to < 0).any()) or bool((tables.backoff_to >= below).any()):
        return "back-off leads round in a circle"
    return None


def build_automaton(ngrams: NGrams, units: Units, *, source: str) -> Automaton:
    """The automaton of a model, run by the reference kernels until `Automaton.to` says otherwise.

    N-grams with words that are no tokens are left out: no text can have them.

    Args:
        ngrams: the model.
        units: the tokens; a model over others is refused.
        source: where it is from, for messages.

    Raises:
        LanguageModelError: if it is over other tokens, or an n-gram stands twice.
    """
    check_units(ngrams, units, source=source)
    V = len(units.names)
    marks = {UNKNOWN: V, BEGIN: V + 1, END: V + 2}
    label_of_word = np.array([units.ids.get(word, marks.get(word, -1)) for word in ngrams.words], dtype=np.int64)
    kept_ids, kept_log10, kept_backoff = [], [], []
    for ids, log10, backoff in zip(ngrams.ids, ngrams.log10, ngrams.backoff, strict=True):
        labels = label_of_word[ids]
        # A sentence begins and ends once: other n-grams with <s> or </s> inside can never be met.
        fits = (labels >= 0).all(1) & (labels[:, 1:] != V + 1).all(1) & (labels[:, :-1] != V + 2).all(1)
        kept_ids.append(labels[fits])
        kept_log10.append(log10[fits])
        kept_backoff.append(backoff[fits])
    trie = build_trie(kept_ids, kept_log10, kept_backoff, labels=V + 3)
    return _automaton(trie, V, units.fingerprint)


def _automaton(trie: Trie, V: int, fingerprint: str) -> Automaton:
    unknown, end = V, V + 2
    nodes = np.arange(trie.starts[-1])
    label = np.concatenate([[-1], trie.keys % trie.labels])
    parent = np.concatenate([[-1], trie.keys // trie.labels])
    is_state = (nodes < trie.starts[-2]) & (label != end)
    says_something = np.zeros(len(nodes), dtype=np.bool_)
    says_something[parent[1:]] = True
    says_something |= trie.backoff != 0
    says_something[0] = True
    stands_for = _merge(trie, is_state & says_something)  # [M] a kept node
    kept = np.flatnonzero(is_state & says_something)
    number = np.zeros(len(nodes), dtype=np.int64)
    number[kept] = np.arange(len(kept))
    state_of = number[stands_for]  # [M]

    final = np.zeros(len(nodes))
    ends = nodes[label == end]
    final[0] = trie.score(np.zeros(1, dtype=np.int64), np.array([end]))[0][0]
    if trie.child(np.zeros(1, dtype=np.int64), np.array([end]))[0] < 0:
        final[0] = _root_scores(trie, np.array([unknown]))[0][0]
    own = np.full(len(nodes), np.nan)
    own[parent[ends]] = trie.log10[ends]
    for d in range(1, trie.order):
        level = nodes[trie.starts[d] : trie.starts[d + 1]]
        final[level] = np.where(np.isnan(own[level]), trie.backoff[level] + final[trie.suffix[level]], own[level])

    arcs = nodes[(nodes >= trie.starts[2]) & (label <= unknown)]
    named_unknown = bool((label[arcs] == unknown).any())
    root_score, root_node = _root_scores(trie, np.arange(V + 1 if named_unknown else V))
    lost = trie.child(np.zeros(len(root_node), dtype=np.int64), np.arange(len(root_node))) < 0
    unknown_score, unknown_node = _root_scores(trie, np.array([unknown]))
    root_score[lost], root_node[lost] = unknown_score[0], unknown_node[0]
    begin_node = trie.child(np.zeros(1, dtype=np.int64), np.array([V + 1]))[0]
    label_of = None
    if named_unknown:
        label_of = torch.from_numpy(np.where(lost[:V], unknown, np.arange(V)))
    first_arc = np.searchsorted(number[parent[arcs]], np.arange(len(kept) + 1))
    backoff_to = state_of[trie.suffix[kept]]
    tables = NgramTables(
        root_score=_floats(root_score),
        root_target=_ints(state_of[root_node]),
        first_arc=torch.from_numpy(first_arc.astype(np.int64)),
        label=_ints(label[arcs]),
        score=_floats(trie.log10[arcs]),
        target=_ints(state_of[arcs]),
        backoff_to=_ints(backoff_to),
        backoff_score=_floats(np.where(kept == 0, 0.0, trie.backoff[kept])),
        depth=trie.order - 1,
    )
    return Automaton(
        tables=tables,
        final_score=_floats(final[kept]),
        label_of=label_of,
        begin=int(state_of[begin_node]) if begin_node >= 0 else 0,
        order=trie.order,
        fingerprint=fingerprint,
        backend="reference",
    )


def _merge(trie: Trie, kept: np.ndarray[Any, np.dtype[np.bool_]]) -> Longs:
    """[M] the kept node that a node is the same as: one that says nothing of its own is its suffix."""
    stands_for = np.arange(len(kept))
    for d in range(1, trie.order + 1):
        level = np.arange(trie.starts[d], trie.starts[d + 1])
        stands_for[level] = np.where(kept[level], level, stands_for[trie.suffix[level]])
    return stands_for


def _root_scores(trie: Trie, labels: Longs) -> tuple[np.ndarray[Any, np.dtype[np.float64]], Longs]:
    """log10 of labels as 1-grams, and their nodes; NOT_THERE and 0 for those that are none."""
    return trie.score(np.zeros(len(labels), dtype=np.int64), labels)


def _ints(values: Longs) -> Tensor:
    if len(values) and values.max() > np.iinfo(np.int32).max:
        raise LanguageModelError(f"the model has {values.max()} states; at most {np.iinfo(np.int32).max} can be used")
    return torch.from_numpy(values.astype(np.int32))


def _floats(log10: np.ndarray[Any, np.dtype[np.float64]]) -> Tensor:
    return torch.from_numpy((log10 * _LN10).astype(np.float32))


def log_probability(automaton: Automaton, sentences: Sequence[Sequence[int]]) -> tuple[float, int]:
    """Natural log of the probability of whole sentences, from their begin to their end.

    Args:
        automaton: on any device.
        sentences: token ids.
    Returns:
        the sum, and the number of predictions in it: tokens and ends.
    """
    if not sentences:
        return 0.0, 0
    rows = sorted(sentences, key=len, reverse=True)
    states = automaton.init_states(len(rows))
    total = 0.0
    for place in range(len(rows[0])):
        running = sum(len(row) > place for row in rows)  # the first so many, since the longest come first
        tokens = torch.tensor([row[place] for row in rows[:running]], dtype=torch.int64, device=states.device)
        scores, after = automaton.advance_by(states[:running], tokens)
        states = torch.cat([after, states[running:]])
        total += float(scores.double().sum())
    total += float(automaton.final(states).double().sum())
    return total, sum(len(row) for row in rows) + len(rows)


def perplexity(automaton: Automaton, sentences: Sequence[Sequence[int]]) -> float:
    """The exponential of the mean surprise over tokens and ends of sentences.

    Raises:
        LanguageModelError: if there is no sentence.
    """
    total, predictions = log_probability(automaton, sentences)
    if not predictions:
        raise LanguageModelError("perplexity needs at least one sentence")
    return math.exp(-total / predictions)
