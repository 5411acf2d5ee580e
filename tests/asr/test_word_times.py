"""Word times from CTC: known labels in a window of steps."""

from pathlib import Path

import pytest
import sentencepiece
import torch

from asr.ctc_tokenizer import CtcTokenizer
from asr.word_times import AFTER_LAST_MS, BEFORE_FIRST_MS, ctc_span_ms


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> CtcTokenizer:
    folder = tmp_path_factory.mktemp("ctc")
    text = folder / "text.txt"
    text.write_text("good day to all\nall day good\nto the good day of all\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(folder / "m"),
        vocab_size=24,
        model_type="char",
        minloglevel=2,
        hard_vocab_limit=False,
    )
    return CtcTokenizer(Path(folder / "m.model"))


def window(tokenizer: CtcTokenizer, spoken: dict[int, int], steps: int = 40) -> torch.Tensor:
    """Log-probabilities that hear `spoken` (step to label) and blanks elsewhere."""
    logits = torch.zeros(steps, tokenizer.blank + 1)
    logits[:, tokenizer.blank] = 6.0
    for step, label in spoken.items():
        logits[step, label] = 12.0
    return logits.log_softmax(-1)


def labels(tokenizer: CtcTokenizer, word: str, step: int) -> dict[int, int]:
    """One label a step from `step` on, doubled letters a step apart."""
    found, previous = {}, -1
    for piece in tokenizer.encode([word])[0]:
        step += piece == previous
        found[step] = piece
        previous, step = piece, step + 1
    return found


ENDS = [80 * (step + 1) for step in range(40)]


def span(tokenizer: CtcTokenizer, heard: torch.Tensor, text: str, first: int, last: int, previous: int = 0):  # type: ignore[no-untyped-def]
    return ctc_span_ms(
        text, first, last, log_probs=heard, step_end_ms=ENDS, tokenizer=tokenizer, previous_end_ms=previous
    )


def test_a_word_lies_where_its_labels_are(tokenizer: CtcTokenizer) -> None:
    spoken = labels(tokenizer, "day", 10)
    first, last = min(spoken), max(spoken)
    found = span(tokenizer, window(tokenizer, spoken), "day", 80 * first + 300, 80 * last + 100)
    assert found == (80 * first - BEFORE_FIRST_MS, 80 * (last + 1) + AFTER_LAST_MS)


def test_case_and_punctuation_do_not_matter(tokenizer: CtcTokenizer) -> None:
    spoken = labels(tokenizer, "good", 10)
    heard = window(tokenizer, spoken)
    assert span(tokenizer, heard, "Good,", 1000, 1200) == span(tokenizer, heard, "good", 1000, 1200) is not None


def test_the_words_beside_it_do_not_stretch_it(tokenizer: CtcTokenizer) -> None:
    alone = labels(tokenizer, "day", 14)
    beside = labels(tokenizer, "all", 6) | alone | labels(tokenizer, "good", 20)
    first, last = 80 * min(alone) + 300, 80 * max(alone) + 100
    assert span(tokenizer, window(tokenizer, beside), "day", first, last) == span(
        tokenizer, window(tokenizer, alone), "day", first, last
    )


def test_of_two_equal_words_the_one_behind_the_previous_word_is_taken(tokenizer: CtcTokenizer) -> None:
    early, late = labels(tokenizer, "day", 6), labels(tokenizer, "day", 12)
    found = span(tokenizer, window(tokenizer, early | late), "day", 1100, 1250, previous=80 * (max(early) + 2))
    assert found is not None
    assert found[0] == 80 * min(late) - BEFORE_FIRST_MS


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [("1999", 1000, 1200), ("—", 1000, 1200), ("good", 9000, 9000), ("good", -900, -800)],
    ids=["no letters", "a mark", "not heard yet", "before the stream"],
)
def test_what_the_head_cannot_tell_is_none(tokenizer: CtcTokenizer, text: str, first: int, last: int) -> None:
    assert span(tokenizer, window(tokenizer, labels(tokenizer, "good", 10)), text, first, last) is None


def test_a_window_too_short_for_the_word_is_none(tokenizer: CtcTokenizer) -> None:
    heard = window(tokenizer, {}, steps=2)
    found = ctc_span_ms(
        "good", 100, 120, log_probs=heard, step_end_ms=[80, 160], tokenizer=tokenizer, previous_end_ms=0
    )
    assert found is None


def test_the_window_is_left_as_it_was(tokenizer: CtcTokenizer) -> None:
    heard = window(tokenizer, labels(tokenizer, "day", 10))
    before = heard.clone()
    span(tokenizer, heard, "day", 1100, 1250)
    assert torch.equal(heard, before)
