"""Word errors, and how long after its end each word was committed.

Word error rate is the field's leaderboard rule: EnglishTextNormalizer on both sides, then jiwer. Corpus figures are
sums of counts, never means of rates. Delays count words that were recognised exactly, always beside how many that were
and how many were deleted, or a model that leaves out hard words would look fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any, Protocol, Self

import numpy as np

from asr.errors import ConfigError


@dataclass(frozen=True)
class EditCounts:
    """What the cheapest edit from reference to hypothesis is made of."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def reference_length(self) -> int:
        """Units (words or characters) in the reference."""
        return self.hits + self.substitutions + self.deletions

    @property
    def errors(self) -> int:
        """Substitutions, deletions and insertions."""
        return self.substitutions + self.deletions + self.insertions

    def rate(self) -> float:
        """Errors per reference unit; with an empty reference: 0.0 if nothing was inserted, else infinity.

        >>> WordErrors(hits=7, substitutions=1, deletions=0, insertions=1).rate()
        0.25
        """
        if self.reference_length:
            return self.errors / self.reference_length
        return math.inf if self.errors else 0.0

    def __add__(self, other: Self) -> Self:
        """The counts of both."""
        if type(other) is not type(self):
            return NotImplemented
        return type(self)(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class WordErrors(EditCounts):
    """Edit counts in words."""


class CharacterErrors(EditCounts):
    """Edit counts in characters, spaces included."""


def sum_word_errors(errors: Iterable[WordErrors]) -> WordErrors:
    """The counts of a corpus."""
    return sum(errors, WordErrors())


@lru_cache(maxsize=1)
def _normalizer() -> Callable[[str], str]:
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ImportError as error:
        raise ConfigError(f"scoring needs whisper-normalizer: pip install 'earlybird-asr[eval]' ({error})") from error
    normalizer: Callable[[str], str] = EnglishTextNormalizer()
    return normalizer


def _jiwer() -> Any:
    try:
        import jiwer
    except ImportError as error:
        raise ConfigError(f"scoring needs jiwer: pip install 'earlybird-asr[eval]' ({error})") from error
    return jiwer


def normalize_english(text: str) -> str:
    """`text` as error rates compare it: EnglishTextNormalizer, words with one space between them.

    Raises:
        ConfigError: if whisper-normalizer is not installed.

    >>> normalize_english("Mr. Brown's twenty-two COLOURS!")
    'mister brown is 22 colors'
    """
    return " ".join(_normalizer()(text).split())


def count_errors(reference: str, hypothesis: str) -> WordErrors:
    """Word errors of one clip, both sides normalised.

    A reference without words after normalisation gives insertions only; keep such clips apart (`count_corpus` does).

    Raises:
        ConfigError: if the extra `eval` is not installed.
    """
    found = _jiwer().process_words(normalize_english(reference), normalize_english(hypothesis))
    return WordErrors(found.hits, found.substitutions, found.deletions, found.insertions)


def count_character_errors(reference: str, hypothesis: str) -> CharacterErrors:
    """Character errors of one clip, both sides normalised.

    Raises:
        ConfigError: if the extra `eval` is not installed.
    """
    found = _jiwer().process_characters(normalize_english(reference), normalize_english(hypothesis))
    return CharacterErrors(found.hits, found.substitutions, found.deletions, found.insertions)


@dataclass(frozen=True, kw_only=True)
class CorpusErrors:
    """Word errors of many clips.

    Attributes:
        clips: of each clip whose reference has words, in order.
        by_tag: their sums for each tag, tags sorted.
        empty_references: sum over the clips whose reference has no words: nothing but insertions.
    """

    clips: tuple[WordErrors, ...]
    by_tag: dict[str, WordErrors]
    empty_references: WordErrors

    @property
    def total(self) -> WordErrors:
        """Sum over `clips`."""
        return sum_word_errors(self.clips)


def count_corpus(triples: Iterable[tuple[str, str, str]]) -> CorpusErrors:
    """Word errors of clips given as (tag, reference, hypothesis); empty references apart.

    Raises:
        ConfigError: if the extra `eval` is not installed.
    """
    clips: list[WordErrors] = []
    by_tag: dict[str, WordErrors] = {}
    empty = WordErrors()
    for tag, reference, hypothesis in triples:
        errors = count_errors(reference, hypothesis)
        if errors.reference_length:
            clips.append(errors)
            by_tag[tag] = by_tag.get(tag, WordErrors()) + errors
        else:
            empty = empty + errors
    by_tag = {tag: by_tag[tag] for tag in sorted(by_tag)}
    return CorpusErrors(clips=tuple(clips), by_tag=by_tag, empty_references=empty)


def bootstrap_interval(
    clips: Sequence[EditCounts], *, seed: int, resamples: int = 1000, level: float = 0.95
) -> tuple[float, float] | None:
    """Percentile interval of the corpus error rate over clips drawn with replacement (Bisani and Ney, 2004).

    Args:
        clips: counts of each clip; those with an empty reference are not drawn from.
        seed: of the draws; the same seed gives the same interval.
        resamples: corpora drawn.
        level: share of the drawn rates that the interval covers, above 0 and below 1.

    Returns:
        (low, high), or None if no clip has a reference.

    Raises:
        ConfigError: if resamples < 1 or level is out of range.
    """
    if resamples < 1 or not 0 < level < 1:
        raise ConfigError(f"need resamples >= 1 and 0 < level < 1, got {resamples} and {level}")
    counts = np.array([(clip.errors, clip.reference_length) for clip in clips if clip.reference_length])
    if not len(counts):
        return None
    drawn = np.random.default_rng(seed).integers(0, len(counts), size=(resamples, len(counts)))
    rates = counts[drawn, 0].sum(axis=1) / counts[drawn, 1].sum(axis=1)
    low, high = np.quantile(rates, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True, kw_only=True)
class WordAlignment:
    """Pairs of exactly equal words in the cheapest edit of one word sequence into another.

    Attributes:
        matched: (reference index, hypothesis index), both rising.
        deleted: reference indices without a counterpart; what is neither matched nor deleted was substituted.
        reference_words: reference words that normalisation leaves something of.
    """

    matched: tuple[tuple[int, int], ...]
    deleted: tuple[int, ...]
    reference_words: int


def align_words(reference: Sequence[str], hypothesis: Sequence[str]) -> WordAlignment:
    """Which hypothesis word is which reference word; exact matches only.

    Words are normalised one by one. Those of which nothing is left ("hmm", a dash) are left out on both sides; one that
    becomes several ("it's" → "it is") matches as a whole or not at all.

    Raises:
        ConfigError: if the extra `eval` is not installed.
    """
    ref_units, ref_owner = _units(reference)
    hyp_units, hyp_owner = _units(hypothesis)
    # Words are handed over as letters of one private alphabet: jiwer splits at spaces and would strip what it knows.
    codes = {unit: f"w{i}" for i, unit in enumerate(dict.fromkeys(ref_units + hyp_units))}
    found = _jiwer().process_words(" ".join(codes[u] for u in ref_units), " ".join(codes[u] for u in hyp_units))
    partners: dict[int, list[int | None]] = {owner: [] for owner in ref_owner}
    deleted_units: dict[int, int] = dict.fromkeys(partners, 0)
    for chunk in found.alignments[0]:
        for offset, place in enumerate(range(chunk.ref_start_idx, chunk.ref_end_idx)):
            equal = chunk.type == "equal"
            partners[ref_owner[place]].append(hyp_owner[chunk.hyp_start_idx + offset] if equal else None)
            deleted_units[ref_owner[place]] += chunk.type == "delete"
    sizes = {owner: hyp_owner.count(owner) for owner in set(hyp_owner)}
    matched = tuple(
        (i, hyp[0])
        for i, hyp in partners.items()
        if hyp[0] is not None and set(hyp) == {hyp[0]} and sizes[hyp[0]] == len(hyp)
    )
    deleted = tuple(i for i, units in partners.items() if deleted_units[i] == len(units))
    return WordAlignment(matched=matched, deleted=deleted, reference_words=len(partners))


def _units(words: Sequence[str]) -> tuple[list[str], list[int]]:
    """Normalised units of all words, and the index of the word that each belongs to."""
    pairs = [(unit, i) for i, word in enumerate(words) for unit in normalize_english(word).split()]
    return [unit for unit, _ in pairs], [i for _, i in pairs]


MARKS = ",.?!"


@dataclass(frozen=True)
class MarkCounts:
    """Marks behind the words that were recognised exactly, and their capitals.

    Attributes:
        hits: marks at their place; written: in the hypothesis; wanted: in the reference.
        capitals: words that begin with a capital in both or in neither; words: how many were compared.
    """

    hits: int = 0
    written: int = 0
    wanted: int = 0
    capitals: int = 0
    words: int = 0

    def __add__(self, other: MarkCounts) -> MarkCounts:
        return MarkCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def f1(self) -> float | None:
        """Harmonic mean of precision and recall of the marks; None where there are none.

        >>> MarkCounts(hits=1, written=2, wanted=2).f1()
        0.5
        """
        return 2 * self.hits / (self.written + self.wanted) if self.written + self.wanted else None


def count_marks(reference: str, hypothesis: str) -> MarkCounts:
    """Comma, full stop, question and exclamation mark, each its own, behind exactly recognised words.

    A reference in capitals alone, or without a mark, was never punctuated: it counts nothing.

    Raises:
        ConfigError: if the extra `eval` is not installed.

    >>> count_marks("Well, he came.", "Well he came.")
    MarkCounts(hits=1, written=1, wanted=2, capitals=3, words=3)
    >>> count_marks("HE CAME", "He came.")
    MarkCounts(hits=0, written=0, wanted=0, capitals=0, words=0)
    """
    if reference.isupper() or not any(mark in reference for mark in MARKS):
        return MarkCounts()
    wanted, written = reference.split(), hypothesis.split()
    counts = MarkCounts()
    for i, j in align_words(wanted, written).matched:
        theirs, ours = _mark(wanted[i]), _mark(written[j])
        counts += MarkCounts(
            hits=int(theirs == ours != ""),
            written=int(ours != ""),
            wanted=int(theirs != ""),
            capitals=int(wanted[i][:1].isupper() == written[j][:1].isupper()),
            words=1,
        )
    return counts


def _mark(word: str) -> str:
    """The mark that a word ends with, quotes and brackets aside."""
    last = word.rstrip("\"')]”’")[-1:]
    return last if last in MARKS else ""


class EndedWord(Protocol):
    """A reference word with its acoustic end in milliseconds."""

    @property
    def text(self) -> str:
        """The word."""

    @property
    def end_ms(self) -> int:
        """Its acoustic end."""


class EmittedWord(Protocol):
    """A recognised word with the audio that had to arrive for it, in milliseconds."""

    @property
    def text(self) -> str:
        """The word."""

    @property
    def emitted_ms(self) -> int:
        """The end of that audio."""


@dataclass(frozen=True, kw_only=True)
class WordDelays:
    """Emission delays of one utterance.

    Attributes:
        delays_ms: of the matched words: emitted_ms of the hypothesis - end_ms of the reference; negative is legal.
        reference_words: reference words, those matched included.
        deletions: reference words without a counterpart.
    """

    delays_ms: tuple[int, ...]
    reference_words: int
    deletions: int


def word_delays(reference: Sequence[EndedWord], words: Sequence[EmittedWord]) -> WordDelays:
    """Emission delay of each word that was recognised exactly, against the reference's acoustic ends.

    Raises:
        ConfigError: if the extra `eval` is not installed.
    """
    alignment = align_words([word.text for word in reference], [word.text for word in words])
    delays = tuple(words[j].emitted_ms - reference[i].end_ms for i, j in alignment.matched)
    return WordDelays(delays_ms=delays, reference_words=alignment.reference_words, deletions=len(alignment.deleted))


@dataclass(frozen=True, kw_only=True)
class Commitment:
    """When one word of a final text came, in a system that revises its text.

    Attributes:
        first_ms: when a hypothesis first held it, revised later or not.
        final_ms: from when on every hypothesis held it.
    """

    first_ms: int
    final_ms: int


def commitments(partials: Sequence[tuple[int, Sequence[str]]]) -> tuple[Commitment, ...]:
    """When each word of the last hypothesis was first there, and from when on it stayed.

    A hypothesis holds a word where the cheapest edit between the two texts matches it; so a word stays while others
    before it change. Found backwards from the final text. Where text is append-only the two times coincide.

    Args:
        partials: (audio that had arrived, in ms, words so far), in order; a word counts as `align_words` counts it.
    Returns:
        One a word of the last text; both times of a word of which normalisation leaves nothing are the last one's.

    Raises:
        ConfigError: if the times go back, or the extra `eval` is not installed.

    Example:
        >>> commitments([(80, ["a"]), (160, ["the", "cat"]), (240, ["a", "cat"])])
        (Commitment(first_ms=80, final_ms=240), Commitment(first_ms=160, final_ms=160))
    """
    times = [time for time, _ in partials]
    if times != sorted(times):
        raise ConfigError(f"hypotheses come in the order of their time; got {times}")
    if not partials:
        return ()
    last_ms, final = partials[-1]
    first, stays = [last_ms] * len(final), [last_ms] * len(final)
    held = set(range(len(final)))  # by every hypothesis from here on
    for time, words in reversed(partials[:-1]):
        here = {i for i, _ in align_words(final, words).matched}
        held &= here
        for i in here:
            first[i] = time
        for i in held:
            stays[i] = time
    return tuple(Commitment(first_ms=a, final_ms=b) for a, b in zip(first, stays, strict=True))


@dataclass(frozen=True)
class Quantiles:
    """Milliseconds, interpolated linearly between the values beside."""

    p50: float
    p90: float
    p95: float


@dataclass(frozen=True, kw_only=True)
class DelayStats:
    """Word emission delays of many utterances.

    Attributes:
        pooled: quantiles over all matched words; None if there is none.
        utterance_means: quantiles over the means of utterances with a matched word (the published measure).
        matched, reference_words, deletions: word counts.
    """

    pooled: Quantiles | None
    utterance_means: Quantiles | None
    matched: int
    reference_words: int
    deletions: int

    @property
    def matched_share(self) -> float | None:
        """Matched words per reference word; None without reference words."""
        return self.matched / self.reference_words if self.reference_words else None

    @property
    def deletion_rate(self) -> float | None:
        """Deletions per reference word; None without reference words."""
        return self.deletions / self.reference_words if self.reference_words else None


def delay_stats(utterances: Iterable[WordDelays]) -> DelayStats:
    """Pooled quantiles and quantiles of utterance means."""
    utterances = tuple(utterances)
    pooled = [delay for utterance in utterances for delay in utterance.delays_ms]
    means = [sum(u.delays_ms) / len(u.delays_ms) for u in utterances if u.delays_ms]
    return DelayStats(
        pooled=_quantiles(pooled),
        utterance_means=_quantiles(means),
        matched=len(pooled),
        reference_words=sum(u.reference_words for u in utterances),
        deletions=sum(u.deletions for u in utterances),
    )


def _quantiles(values: Sequence[float]) -> Quantiles | None:
    if not values:
        return None
    p50, p90, p95 = np.quantile(np.array(values, dtype=np.float64), [0.5, 0.9, 0.95])
    return Quantiles(float(p50), float(p90), float(p95))
