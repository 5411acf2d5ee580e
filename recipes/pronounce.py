"""Pronunciations for words that the aligner's dictionary lacks.

Forced alignment needs a phone sequence for each word of the transcript, not a perfect one: the words beside it hold
the place, so a rough spelling-to-sound rule still puts the borders within a frame or two. The order of attempts goes
from exact to rough: known stem with an English ending, two known words written together, letter rules.
Phones are those of CMUdict without stress.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Phones = tuple[str, ...]
Lookup = Callable[[str], Phones | None]

_VOICELESS = frozenset({"P", "T", "K", "F", "TH"})
_SIBILANT = frozenset({"S", "Z", "SH", "ZH", "CH", "JH"})
_SHORTEST_PART = 3  # shorter parts make accidental compounds ("am" + "it")

# Letters=PHONES; the longest match counts, and letters may stand for no phone.
_RULES = """
tion=SH.AH.N sion=ZH.AH.N ough=AO augh=AO eigh=EY igh=AY tch=CH dge=JH sch=SH eau=OW air=EH.R ear=IH.R
eer=IH.R our=AO.R oor=AO.R ch=CH sh=SH th=TH ph=F wh=W kn=N wr=R gh=G ck=K qu=K.W ng=NG ar=AA.R er=ER ir=ER
ur=ER or=AO.R ai=EY ay=EY ei=EY ey=IY ee=IY ea=IY ie=IY oa=OW oe=OW oo=UW ou=AW ow=OW oi=OY oy=OY au=AO
aw=AO ah=AA oh=OW eh=EH uh=AH ue=UW ew=UW ui=UW a=AE b=B c=K d=D e=EH f=F g=G h=HH i=IH j=JH k=K l=L m=M n=N
o=AA p=P q=K r=R s=S t=T u=AH v=V w=W x=K.S y=IY z=Z '=
"""
_GRAPHS: dict[str, Phones] = {
    letters: tuple(phones.split(".")) if phones else ()
    for letters, _, phones in (rule.partition("=") for rule in _RULES.split())
}
_LONGEST_GRAPH = max(map(len, _GRAPHS))
_LONG_VOWEL = {"a": "EY", "e": "IY", "i": "AY", "o": "OW", "u": "UW", "y": "AY"}


def pronounce(word: str, lookup: Lookup) -> Phones | None:
    """A pronunciation of `word`, or None if it has no letter that sounds.

    Args:
        word: lower case, of [a-z'] only.
        lookup: the dictionary: phones of a word, None if it is not there.

    >>> known = {"walk": ("W", "AO", "K"), "sun": ("S", "AH", "N"), "day": ("D", "EY")}
    >>> pronounce("walks", known.get), pronounce("sunday", known.get)
    (('W', 'AO', 'K', 'S'), ('S', 'AH', 'N', 'D', 'EY'))
    """
    return lookup(word) or _by_apostrophe(word, lookup) or _by_ending(word, lookup) or _by_rest(word, lookup)


def _by_rest(word: str, lookup: Lookup) -> Phones | None:
    shortened = re.sub(r"(.)\1{2,}", r"\1", word)  # "hmmm", "nooo"
    if shortened != word:
        return pronounce(shortened, lookup)
    return _by_compound(word, lookup) or spell_by_rules(word) or None


def _by_apostrophe(word: str, lookup: Lookup) -> Phones | None:
    bare = word.strip("'")
    if bare != word and bare:
        if word.endswith("in'") and (full := lookup(bare + "g")) is not None:
            return (*full[:-1], "N")
        return pronounce(bare, lookup)
    if word.endswith("'s") and (stem := pronounce(word[:-2], lookup)) is not None:
        return stem + _plural(stem)
    for ending, phones in (
        ("'ll", ("AH", "L")),
        ("'d", ("D",)),
        ("'ve", ("V",)),
        ("'re", ("ER",)),
        ("'em", ("AH", "M")),
    ):
        if word.endswith(ending) and (stem := pronounce(word[: -len(ending)], lookup)) is not None:
            return stem + phones
    return None


def _plural(stem: Phones) -> Phones:
    if stem[-1] in _SIBILANT:
        return ("IH", "Z")
    return ("S",) if stem[-1] in _VOICELESS else ("Z",)


def _past(stem: Phones) -> Phones:
    if stem[-1] in {"T", "D"}:
        return ("IH", "D")
    return ("T",) if stem[-1] in _VOICELESS | {"S", "SH", "CH"} else ("D",)


def _by_ending(word: str, lookup: Lookup) -> Phones | None:
    for ending, phones_after in _ENDINGS:
        if not word.endswith(ending) or len(word) - len(ending) < _SHORTEST_PART:
            continue
        base = word[: -len(ending)]
        doubled = base[:-1] if base[-1:] == base[-2:-1] else base
        for stem_word in (base, base + "e", doubled):
            if (stem := lookup(stem_word)) is not None:
                return stem + phones_after(stem)
    return None


_ENDINGS: tuple[tuple[str, Callable[[Phones], Phones]], ...] = (
    ("ness", lambda stem: ("N", "AH", "S")),
    ("less", lambda stem: ("L", "AH", "S")),
    ("ment", lambda stem: ("M", "AH", "N", "T")),
    ("able", lambda stem: ("AH", "B", "AH", "L")),
    ("ing", lambda stem: ("IH", "NG")),
    ("est", lambda stem: ("AH", "S", "T")),
    ("ers", lambda stem: ("ER", "Z")),
    ("ish", lambda stem: ("IH", "SH")),
    ("eth", lambda stem: ("AH", "TH")),
    ("ed", _past),
    ("es", _plural),
    ("er", lambda stem: ("ER",)),
    ("ly", lambda stem: ("L", "IY")),
    ("s", _plural),
    ("y", lambda stem: ("IY",)),
)


def _by_compound(word: str, lookup: Lookup) -> Phones | None:
    middle = len(word) / 2
    cuts = sorted(range(_SHORTEST_PART, len(word) - _SHORTEST_PART + 1), key=lambda cut: abs(cut - middle))
    for cut in cuts:
        first, second = lookup(word[:cut]), lookup(word[cut:])
        if first is not None and second is not None:
            return first + second
    return None


def spell_by_rules(word: str) -> Phones:
    """Phones of `word` by spelling rules alone; empty if nothing in it sounds.

    >>> spell_by_rules("bake"), spell_by_rules("chip")
    (('B', 'EY', 'K'), ('CH', 'IH', 'P'))
    """
    phones: list[str] = []
    place = 0
    while place < len(word):
        size = next(n for n in range(_LONGEST_GRAPH, 0, -1) if word[place : place + n] in _GRAPHS)
        graph = word[place : place + size]
        phones += _in_context(word, place, graph)
        place += size
        while place < len(word) and word[place] == word[place - 1] and word[place] not in "aeiou":
            place += 1  # a doubled consonant sounds once
    return tuple(phones)


def _in_context(word: str, place: int, graph: str) -> Phones:
    rest = word[place + len(graph) :]
    if graph in _LONG_VOWEL and len(rest) == 2 and rest[1] == "e" and rest[0] not in "aeiouywxr'":
        return (_LONG_VOWEL[graph],)  # "bake": a vowel, one consonant, a final e
    if graph == "e" and not rest and place >= 2 and any(letter in "aeiouy" for letter in word[:place]):
        return ()
    if graph == "c" and rest[:1] in {"e", "i", "y"}:
        return ("S",)
    if graph == "g" and rest[:1] in {"e", "i", "y"}:
        return ("JH",)
    if graph == "y" and place == 0:
        return ("Y",)
    if graph in {"o", "i"} and not rest:
        return ("OW",) if graph == "o" else ("IY",)
    if graph in {"a"} and not rest:
        return ("AH",)
    return _GRAPHS[graph]
