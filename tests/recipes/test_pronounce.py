"""Pronunciations of words that the dictionary lacks."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.pronounce import Phones, pronounce, spell_by_rules

KNOWN: dict[str, Phones] = {
    "walk": ("W", "AO", "K"),
    "bake": ("B", "EY", "K"),
    "stop": ("S", "T", "AA", "P"),
    "need": ("N", "IY", "D"),
    "glass": ("G", "L", "AE", "S"),
    "dog": ("D", "AO", "G"),
    "going": ("G", "OW", "IH", "NG"),
    "house": ("HH", "AW", "S"),
    "they": ("DH", "EY"),
    "sun": ("S", "AH", "N"),
    "day": ("D", "EY"),
}
# CMUdict's phones; a phone outside would make the aligner refuse the word.
PHONES = set(
    "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH".split()
)


@pytest.mark.parametrize(
    ("word", "phones"),
    [
        ("walk", "W AO K"),
        ("walks", "W AO K S"),
        ("walk's", "W AO K S"),
        ("dogs", "D AO G Z"),
        ("glasses", "G L AE S IH Z"),
        ("walked", "W AO K T"),
        ("needed", "N IY D IH D"),
        ("stopped", "S T AA P T"),
        ("baking", "B EY K IH NG"),
        ("baker", "B EY K ER"),
        ("goin'", "G OW IH N"),
        ("'dog'", "D AO G"),
        ("they'll", "DH EY AH L"),
        ("doghouse", "D AO G HH AW S"),
        ("sunday's", "S AH N D EY Z"),
        ("walkkk", "W AO K"),
        ("quex", "K W EH K S"),
    ],
)
def test_from_exact_to_rough(word: str, phones: str) -> None:
    found = pronounce(word, KNOWN.get)
    assert found is not None
    assert " ".join(found) == phones


@pytest.mark.parametrize(
    ("word", "phones"),
    [
        ("bake", "B EY K"),
        ("chip", "CH IH P"),
        ("cell", "S EH L"),
        ("gem", "JH EH M"),
        ("hobby", "HH AA B IY"),
        ("yes", "Y EH S"),
        ("nation", "N AE SH AH N"),
        ("tuba", "T AH B AH"),
        ("limbo", "L IH M B OW"),
        ("cagle", "K AE G L"),
    ],
)
def test_spelling_rules(word: str, phones: str) -> None:
    assert " ".join(spell_by_rules(word)) == phones


def test_nothing_that_sounds() -> None:
    assert pronounce("'", KNOWN.get) is None
    assert pronounce("''", KNOWN.get) is None


@given(word=st.text(string.ascii_lowercase + "'", min_size=1, max_size=12))
def test_any_word_with_a_letter_has_phones_the_aligner_knows(word: str) -> None:
    phones = pronounce(word, KNOWN.get)
    if any(letter in string.ascii_lowercase for letter in word):
        assert phones
        assert set(phones) <= PHONES
    else:
        assert phones is None
