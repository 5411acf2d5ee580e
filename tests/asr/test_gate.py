"""Emit gates: known answers on hand-made views."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from asr.config import GateConfig
from asr.gate import AttentionGate, CorrectingGate, GateView, LearnedGate, just_written, old_share, read

FRAMES, NOW, DELAY, DIM = 240, 200, 6, 8
AGE = 4 * DELAY - 5
EDGE = NOW - AGE
"""The first frame that is too young at the default settings."""
CONFIG = GateConfig()
CANDIDATE = 7


def view(attention: dict[int, float], **changes: Any) -> GateView:
    """One row that is sure of a word and reads it from the frames of `attention`; text was last read from 170."""
    looked = torch.zeros(1, FRAMES)
    for frame, weight in attention.items():
        looked[0, frame] = weight
    values: dict[str, Any] = {
        "now": NOW,
        "frames": FRAMES,
        "delay": DELAY,
        "chunk_steps": 1,
        "candidate": CANDIDATE,
        "probability": 0.9,
        "begins_word": True,
        "letters": True,
        "ended": False,
        "since_pause": 5,
        "text": [1, 2, 3, 4, 5],
        "text_frames": [120, 130, 140, 150, 170],
        **changes,
    }
    values["count"] = len(values["text"])
    values["text"] = values["text"] + [0] * 3
    values["text_frames"] = values["text_frames"] + [0] * 3
    where = {}
    for name in ("speech", "loud", "labelled"):
        where[name] = torch.zeros(1, FRAMES, dtype=torch.bool)
        where[name][0, list(values.pop(name, range(FRAMES)))] = True
    rows = {name: torch.tensor([value]) for name, value in values.items()}
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, 1, DIM, generator=generator)
    return GateView(attention=looked, hidden=vectors[0], around=vectors[1], **where, **rows)


def opens(shown: GateView, config: GateConfig = CONFIG) -> bool:
    return bool(AttentionGate(config)(shown).open[0])


def test_it_opens_when_the_attention_is_older_than_the_age() -> None:
    assert opens(view({EDGE - 1: 1.0}))
    assert not opens(view({EDGE: 1.0}))
    assert int(AttentionGate(CONFIG)(view({EDGE - 1: 1.0})).frame[0]) == EDGE - 1


@pytest.mark.parametrize("delay", [4, 6, 8])
def test_the_age_is_the_delay_and_the_offset(delay: int) -> None:
    edge = NOW - (4 * delay + CONFIG.offset_frames)
    assert opens(view({edge - 1: 1.0}, delay=delay))
    assert not opens(view({edge: 1.0}, delay=delay))


def test_a_short_delay_has_a_least_age() -> None:
    for delay in (1, 2):  # 4 - 5 and 8 - 5 frames
        assert opens(view({NOW - CONFIG.least_frames - 1: 1.0}, delay=delay))
        assert not opens(view({NOW - CONFIG.least_frames: 1.0}, delay=delay))
    assert not opens(view({NOW - 6: 1.0}, delay=1), replace(CONFIG, least_frames=6))


@pytest.mark.parametrize(("chunk_steps", "waits"), [(1, 0), (2, 2), (3, 4), (4, 6), (16, 6)])
def test_half_the_wait_for_the_chunk_is_taken_off_up_to_a_bound(chunk_steps: int, waits: int) -> None:
    assert opens(view({EDGE + waits - 1: 1.0}, chunk_steps=chunk_steps))
    assert not opens(view({EDGE + waits: 1.0}, chunk_steps=chunk_steps))


UNSURE = [
    {"probability": 0.49},
    {"since_pause": 2},
    {"since_pause": 9, "text_frames": [10, 20, 30, 40, EDGE - CONFIG.hold_frames - 60]},  # a pause before it
]


@pytest.mark.parametrize("why", UNSURE)
def test_an_unsure_token_is_held_to_the_bound_and_never_longer(why: dict[str, Any]) -> None:
    held = EDGE - CONFIG.hold_frames
    text = {"text_frames": [100, 110, 120, 130, 140], **why}
    assert not opens(view({EDGE - 1: 1.0}, **text))
    assert not opens(view({held: 1.0}, **text))
    assert opens(view({held - 1: 1.0}, **text))


def test_a_token_is_sure_again_after_enough_of_them() -> None:
    assert opens(view({EDGE - 1: 1.0}, since_pause=3, probability=0.5))


def test_the_frame_is_the_median_of_the_attention() -> None:
    assert int(read(view({165: 0.3, 175: 0.3, 190: 0.4}), CONFIG).frame[0]) == 175
    assert opens(view({172: 0.51, 190: 0.49}))
    assert not opens(view({172: 0.49, 190: 0.51}))


def test_enough_of_the_attention_must_be_old() -> None:
    strict = replace(CONFIG, old_mass=0.8)
    assert opens(view({172: 0.81, 190: 0.19}), strict)
    assert not opens(view({172: 0.79, 190: 0.21}), strict)


def test_sinks_are_not_looked_at() -> None:
    nothing = {"text": [], "text_frames": []}
    shown = view({0: 0.5, 2: 0.4, 195: 0.1}, **nothing)
    assert int(read(shown, CONFIG).frame[0]) == 195
    assert not opens(shown)
    assert opens(shown, replace(CONFIG, sink_frames=2))


def test_attention_behind_the_text_is_not_looked_at() -> None:
    assert int(read(view({161: 0.9, 195: 0.1}), CONFIG).frame[0]) == 195  # 170 - 8 = 162
    assert int(read(view({162: 0.9, 195: 0.1}), CONFIG).frame[0]) == 162


def test_shares_count_what_is_older_than_the_edge() -> None:
    reading = read(view({165: 1.0, EDGE - 5: 2.0, EDGE: 1.0}), CONFIG)
    shares = [float(old_share(reading, younger)[0]) for younger in (-1, 0, 4, 5, 200)]
    assert shares == pytest.approx([1.0, 0.75, 0.75, 0.25, 0.0])


BARRED: dict[str, GateView] = {
    "the text has ended": view({175: 1.0}, ended=True),
    "nothing is to be heard": view({175: 1.0}, speech=[164, 206, 175, 176]),
    "dots out of nothing": view({175: 1.0}, speech=[], letters=False),
    "just written from the same place": view({175: 1.0}, text=[1, 2, 3, 4, CANDIDATE]),
    "read just before": view({177: 1.0}, text=[1, 2, 3, 4, CANDIDATE], text_frames=[120, 130, 140, 150, 165]),
    "far behind, but nobody has spoken since": view(
        {88: 1.0}, text=[1, 2, 3, 4, CANDIDATE], text_frames=[50, 60, 70, 80, 90], speech=list(range(100))
    ),
    "written a little before": view({175: 1.0}, text=[1, CANDIDATE, 3, 4, 5], text_frames=[120, 168, 140, 150, 170]),
    "a piece for the third time": view({175: 1.0}, text=[1, 2, 3, CANDIDATE, CANDIDATE], begins_word=False),
    "it looks back": view({140: 0.6, 175: 0.4}),
}
CLEARED: dict[str, GateView] = {
    "three frames are speech": view({175: 1.0}, speech=[165, 205, 175]),
    "a sign makes no sound": view({175: 1.0}, speech=[], letters=False, begins_word=False),
    "the same word from elsewhere": view(
        {178: 1.0}, text=[1, 2, 3, 4, CANDIDATE], text_frames=[120, 130, 140, 150, 165]
    ),
    "longer ago than ten": view({175: 1.0}, text=[CANDIDATE] + [1] * 10, text_frames=[175] + [160] * 10),
    "a piece for the second time": view({175: 1.0}, text=[1, 2, 3, 4, CANDIDATE], begins_word=False),
    "only half of it looks back": view({140: 0.5, 175: 0.5}),
    "the text is stuck and it looks back": view({50: 0.6, 88: 0.4}, text_frames=[50, 60, 70, 80, 90]),
    "the text is stuck": view({88: 1.0}, text=[1, 2, 3, 4, CANDIDATE], text_frames=[50, 60, 70, 80, 90]),
}


@pytest.mark.parametrize("why", list(BARRED))
def test_what_is_barred_never_opens(why: str) -> None:
    assert bool(read(BARRED[why], CONFIG).barred[0])
    assert not opens(BARRED[why])
    assert not bool(learned(100.0)(BARRED[why]).open[0])


@pytest.mark.parametrize("why", list(CLEARED))
def test_what_is_nearly_barred_opens(why: str) -> None:
    assert not bool(read(CLEARED[why], CONFIG).barred[0])
    assert opens(CLEARED[why])


FIRST: dict[str, Any] = {"since_pause": 0, "probability": 0.25}
"""A token that begins a text, and is not likely: it may be a noise."""
GUARDED = replace(CONFIG, least_evidence=0.5, evidence_frames=60)


@pytest.mark.parametrize(
    ("labelled", "probability", "barred"),
    [
        (range(140, 148), 0.25, False),  # two steps with a label
        (range(140, 148), 0.24, True),
        (range(140, 144), 0.5, False),  # one
        (range(140, 144), 0.49, True),
        ([], 1.0, True),
        ([*range(126, 130), *range(200, 204)], 1.0, True),  # more than 10 frames before it, or 60 behind
        ([*range(130, 134), *range(196, 200)], 0.25, False),
    ],
)
def test_a_first_token_needs_the_more_labels_the_less_likely_it_is(
    labelled: range | list[int], probability: float, barred: bool
) -> None:
    shown = view({140: 1.0}, text=[], text_frames=[], labelled=labelled, **{**FIRST, "probability": probability})
    assert bool(read(shown, GUARDED).barred[0]) is barred
    assert opens(shown, GUARDED) is not barred
    assert not bool(read(shown, CONFIG).barred[0])  # the guard is a setting of the model's


@pytest.mark.parametrize(
    ("loud", "speech", "enough"),
    [
        ([130, 140, 170], range(200), 0.25),
        ([129, 130, 170, 171], range(200), 0.5),
        ([], range(200), 0.5),
        ([130, 140, 170], range(131, 140), 0.5),  # what is loud is no speech, what may be speech is not loud
    ],
)
def test_a_first_token_that_no_loud_speech_is_read_at_needs_twice_as_much(
    loud: list[int], speech: range, enough: float
) -> None:
    first = {**FIRST, "text": [], "text_frames": [], "labelled": range(140, 148), "loud": loud, "speech": speech}
    assert opens(view({140: 1.0}, **{**first, "probability": enough}), GUARDED)
    assert not opens(view({140: 1.0}, **{**first, "probability": enough - 0.01}), GUARDED)


def test_only_the_first_token_after_a_pause_is_guarded() -> None:
    near = {"text_frames": [100, 110, 120, 130, 135], "labelled": [], "probability": 0.6}
    assert opens(view({140: 1.0}, since_pause=1, **near), GUARDED)
    assert not opens(view({140: 1.0}, since_pause=0, **near), GUARDED)
    long_ago = {**near, "text_frames": [50, 60, 70, 80, 140 - CONFIG.pause_frames - 1]}
    assert not opens(view({140: 1.0}, since_pause=9, **long_ago), GUARDED)


LAST = 135
STOP: dict[str, Any] = {
    "letters": False,
    "begins_word": False,
    "text_frames": [95, 105, 115, 125, LAST],
    "speech": range(LAST + 31),
    "labelled": [],
}
"""A full stop, read from the silence behind a text: younger than any gate wants."""


def test_a_closing_mark_is_written_behind_the_text() -> None:
    for gate in (AttentionGate(CONFIG), learned(-100.0)):
        answer = gate(view({195: 1.0}, **STOP))
        assert bool(answer.open[0])
        assert int(answer.frame[0]) == LAST


@pytest.mark.parametrize(
    "why",
    [
        {"speech": range(LAST + 32)},  # something follows
        {"probability": 0.49},
        {"text_frames": [95, 105, 115, 125, EDGE - CONFIG.closing_frames]},  # not long enough
        {"letters": True},
        {"begins_word": True},
        {"ended": True},
        {"text": [1, 2, 3, CANDIDATE, CANDIDATE]},
        {"text": [], "text_frames": []},
    ],
)
def test_what_is_no_closing_mark_waits(why: dict[str, Any]) -> None:
    assert not opens(view({195: 1.0}, **{**STOP, **why}))


def learned(log_odds: float, config: GateConfig = CONFIG) -> LearnedGate:
    """A gate that has learnt to say the same whatever it sees."""
    gate = LearnedGate(config, dim=DIM, hidden=4).requires_grad_(False)
    gate.out.weight.zero_()
    gate.out.bias.fill_(log_odds)
    return gate


def test_the_learned_gate_opens_above_its_threshold() -> None:
    young = view({195: 1.0})
    assert bool(learned(0.1)(young).open[0])
    assert not bool(learned(-0.1)(young).open[0])
    assert bool(learned(1.1, replace(CONFIG, threshold=1.0))(young).open[0])
    assert not bool(learned(0.9, replace(CONFIG, threshold=1.0))(young).open[0])


def test_the_learned_gate_holds_no_token_longer_than_the_bound() -> None:
    held = EDGE - CONFIG.hold_frames
    text = {"text_frames": [100, 110, 120, 130, 140]}
    assert not bool(learned(-100.0)(view({held: 1.0}, **text)).open[0])
    assert bool(learned(-100.0)(view({held - 1: 1.0}, **text)).open[0])


def test_the_learned_gate_sees_what_it_says_it_sees() -> None:
    gate, shown = LearnedGate(CONFIG, dim=DIM, hidden=4).requires_grad_(False), view({175: 1.0})
    facts = gate.known(shown, read(shown, CONFIG))
    assert facts.shape == (1, len(gate.ages) + 10)
    assert bool(torch.isfinite(facts).all())
    assert facts[0, : len(gate.ages)].tolist() == [float(EDGE - age > 175) for age in gate.ages]
    before = gate.logit(shown.hidden, shown.around, facts)
    for changed in ((shown.hidden + 1, shown.around, facts), (shown.hidden, shown.around + 1, facts)):
        assert not torch.equal(gate.logit(*changed), before)
    assert not torch.equal(gate.logit(shown.hidden, shown.around, facts + 1), before)


def test_rows_are_judged_one_by_one() -> None:
    shown = [view({EDGE - 1: 1.0}), view({EDGE: 1.0}), view({EDGE - 1: 1.0}, ended=True), view({160: 0.9, 175: 0.1})]
    batch = GateView(**{name: torch.cat([getattr(one, name) for one in shown]) for name in vars(shown[0])})
    answer = AttentionGate(CONFIG)(batch)
    assert answer.open.tolist() == [opens(one) for one in shown]
    assert answer.frame.tolist() == [int(AttentionGate(CONFIG)(one).frame[0]) for one in shown]


# -- the correcting gate -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200))
def test_untrained_the_correcting_gate_is_the_attention_gate(seed: int) -> None:
    rng = random.Random(seed)
    looked = {rng.randrange(150, FRAMES): rng.random() for _ in range(rng.randint(1, 4))}
    shown = view(
        looked,
        delay=rng.randint(1, 12),
        chunk_steps=rng.choice([1, 4]),
        probability=rng.random(),
        since_pause=rng.randint(0, 6),
        candidate=rng.randint(1, 9),
    )
    gate = CorrectingGate(CONFIG, dim=DIM, hidden=5)
    assert torch.equal(gate(shown).open, AttentionGate(CONFIG)(shown).open)
    assert torch.equal(gate(shown).frame, AttentionGate(CONFIG)(shown).frame)


def test_a_share_of_just_the_mass_is_enough_for_both() -> None:
    shown = view({EDGE - 1: 0.5, EDGE: 0.5})
    assert float(old_share(read(shown, CONFIG), 0)[0]) == CONFIG.old_mass
    assert opens(shown)
    assert bool(CorrectingGate(CONFIG, dim=DIM, hidden=5)(shown).open[0])


def test_a_correction_moves_the_border_by_two_frames_a_unit() -> None:
    gate = CorrectingGate(CONFIG, dim=DIM, hidden=5)
    gate.out.bias.data.fill_(1.0)
    opened = [bool(gate(view({EDGE + late: 1.0})).open[0]) for late in range(5)]
    assert opened == [False] * 5  # its mass is not old enough, and that counts 8 units
    gate.out.bias.data.fill_(4.0)
    assert [bool(gate(view({EDGE - 1: 0.5, EDGE + late: 0.5})).open[0]) for late in (0, 1, 2)] == [True] * 3
    gate.out.bias.data.fill_(-1.0)
    assert [bool(gate(view({EDGE - late: 1.0})).open[0]) for late in (1, 2, 3)] == [False, False, True]


def test_a_correction_neither_lifts_a_bar_nor_holds_for_ever() -> None:
    gate = CorrectingGate(CONFIG, dim=DIM, hidden=5)
    gate.out.bias.data.fill_(100.0)
    assert not bool(gate(view({EDGE - 1: 1.0}, ended=True)).open[0])
    gate.out.bias.data.fill_(-100.0)
    assert not bool(gate(view({EDGE - CONFIG.hold_frames: 1.0})).open[0])
    assert bool(gate(view({EDGE - CONFIG.hold_frames - 1: 1.0}, text_frames=[100, 110, 115, 117, 118])).open[0])


def test_scores_may_not_repeat_what_the_gate_would_bar_as_a_repeat() -> None:
    begins = torch.tensor([False, False, True, True, False, True])
    near = CONFIG.same_place_frames - 1
    shown = view({100: 1.0}, text=[2, 1, 3, 5], text_frames=[100 - near, 100, 100 + near, 101 + near])
    # 1 begins no word, 5 was read too far away.
    assert {int(piece) for piece in just_written(shown, torch.tensor([100]), begins)[0]} == {-1, 2, 3}
    twice = view({100: 1.0}, text=[1, 4, 4], text_frames=[10, 20, 30])
    assert {int(piece) for piece in just_written(twice, torch.tensor([100]), begins)[0]} == {-1, 4}
    words = view({100: 1.0}, text=[5, 5], text_frames=[10, 20])
    assert {int(piece) for piece in just_written(words, torch.tensor([100]), begins)[0]} == {-1}
    assert (just_written(view({100: 1.0}, text=[], text_frames=[]), torch.tensor([100]), begins) == -1).all()
