"""Greedy collapse and forced alignment: known answers, brute force, torchaudio, and reference == numba."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.ctc import CollapsedLabels, CollapseState, LabelSpans, init_collapse
from kernels.dispatch import dispatch

BACKENDS = ("reference", "numba")
torch.set_num_threads(1)


def log_probs_of(path: list[int], vocabulary: int) -> Tensor:
    """[T, V] whose best label at frame t is path[t]."""
    return torch.full((len(path), vocabulary), -5.0).scatter(1, torch.tensor(path)[:, None], -0.1)


def collapse(
    backend: str, log_probs: Tensor, lens: list[int], state: CollapseState, blank: int
) -> tuple[CollapsedLabels, CollapseState]:
    found, after = dispatch("ctc.greedy_collapse", backend)(log_probs, torch.tensor(lens), state, blank=blank)
    return found, after


def row(found: CollapsedLabels, b: int) -> list[tuple[int, int, int]]:
    n = int(found.counts[b])
    return list(zip(found.ids[b, :n].tolist(), found.first[b, :n].tolist(), found.last[b, :n].tolist(), strict=True))


def same(a: object, b: object) -> bool:
    return type(a) is type(b) and all(torch.equal(vars(a)[name], vars(b)[name]) for name in vars(a))


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeats_merge_and_blanks_part(backend: str) -> None:
    # Frames:  0  1  2  3  4  5  6  7   (2 is the blank)
    path = [2, 0, 0, 2, 0, 1, 1, 2]
    found, state = collapse(backend, log_probs_of(path, 3)[None], [8], init_collapse(1, blank=2), 2)
    assert row(found, 0) == [(0, 1, 2), (0, 4, 4), (1, 5, 6)]
    assert not bool(found.continues[0])
    assert (int(state.label[0]), int(state.frames[0])) == (2, 8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_label_across_the_border_goes_on(backend: str) -> None:
    state = init_collapse(1, blank=2)
    found, state = collapse(backend, log_probs_of([2, 0, 0], 3)[None], [3], state, 2)
    assert row(found, 0) == [(0, 1, 2)]
    found, state = collapse(backend, log_probs_of([0, 1], 3)[None], [2], state, 2)
    assert row(found, 0) == [(0, 1, 3), (1, 4, 4)]
    assert bool(found.continues[0])
    found, state = collapse(backend, log_probs_of([2, 1], 3)[None], [2], state, 2)
    assert row(found, 0) == [(1, 6, 6)]  # a blank between: the same label anew
    assert not bool(found.continues[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_is_not_read_and_an_idle_row_keeps_its_state(backend: str) -> None:
    start = CollapseState(label=torch.tensor([1, 1]), first=torch.tensor([4, 7]), frames=torch.tensor([6, 9]))
    log_probs = torch.stack([log_probs_of([0, 1, 1], 3), log_probs_of([0, 0, 0], 3)])
    found, after = collapse(backend, log_probs, [1, 0], start, 2)
    assert row(found, 0) == [(0, 6, 6)]
    assert row(found, 1) == []
    assert not found.continues.any()
    assert (after.label.tolist(), after.first.tolist(), after.frames.tolist()) == ([0, 1], [6, 7], [7, 9])
    assert start.label.tolist() == [1, 1]  # the old state is still good


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_scores_go_to_the_lowest_label(backend: str) -> None:
    found, _ = collapse(backend, torch.zeros(1, 2, 4), [2], init_collapse(1, blank=3), 3)
    assert row(found, 0) == [(0, 0, 1)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_collapse_refuses_what_does_not_fit(backend: str) -> None:
    state = init_collapse(1, blank=2)
    with pytest.raises(ValueError, match=r"lens must be within 0..4 frames, got \[5\]"):
        collapse(backend, torch.zeros(1, 4, 3), [5], state, 2)
    with pytest.raises(ValueError, match=r"blank \(3\) must be a label of 0..2"):
        collapse(backend, torch.zeros(1, 4, 3), [4], state, 3)
    with pytest.raises(ValueError, match="must be \\[B, T, V\\]"):
        collapse(backend, torch.zeros(4, 3), [4], state, 2)
    with pytest.raises(ValueError, match="log_probs has 2 rows"):
        collapse(backend, torch.zeros(2, 4, 3), [4, 4], state, 2)


@st.composite
def ragged_chunks(draw: st.DrawFn) -> list[list[list[int]]]:
    """Chunks of 2 rows of labels 0..2, rows of any length, none included."""
    labels = st.lists(st.integers(0, 2), max_size=5)
    return draw(st.lists(st.tuples(labels, labels).map(list), min_size=1, max_size=5))


@given(chunks=ragged_chunks())
@settings(max_examples=60, deadline=None)
def test_any_chunking_gives_the_runs_of_the_whole(chunks: list[list[list[int]]]) -> None:
    wholes = [[label for chunk in chunks for label in chunk[b]] for b in range(2)]
    for b, path in enumerate(wholes):
        expected, frame = [], 0
        for label, run in itertools.groupby(path):
            size = len(list(run))
            if label != 2:
                expected.append((label, frame, frame + size - 1))
            frame += size
        for backend in BACKENDS:
            state = init_collapse(2, blank=2)
            merged: list[tuple[int, int, int]] = []
            for chunk in chunks:
                width = max(map(len, chunk))
                padded = [rows + [1] * (width - len(rows)) for rows in chunk]
                log_probs = torch.stack([log_probs_of(p, 3) if p else torch.zeros(0, 3) for p in padded])
                found, state = collapse(backend, log_probs, [len(rows) for rows in chunk], state, 2)
                if bool(found.continues[b]):
                    assert merged.pop()[:2] == row(found, b)[0][:2]
                merged += row(found, b)
            assert merged == expected, backend


@given(seed=st.integers(0, 2**31), B=st.integers(0, 3), T=st.integers(0, 9), V=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_collapse_backends_are_equal(seed: int, B: int, T: int, V: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randint(-3, 0, (B, T, V), generator=generator).float()  # integers: ties are common
    lens = torch.randint(0, T + 1, (B,), generator=generator).tolist()
    state = CollapseState(
        label=torch.randint(0, V, (B,), generator=generator),
        first=torch.randint(0, 5, (B,), generator=generator),
        frames=torch.full((B,), 5),
    )
    (found_a, after_a), (found_b, after_b) = (collapse(name, log_probs, lens, state, V - 1) for name in BACKENDS)
    assert same(found_a, found_b)
    assert same(after_a, after_b)


def align(backend: str, log_probs: Tensor, targets: list[int], blank: int | None = None) -> LabelSpans:
    kernel = dispatch("ctc.forced_align", backend)
    spans = kernel(log_probs, torch.tensor(targets, dtype=torch.int64), blank=blank)
    assert isinstance(spans, LabelSpans)
    return spans


def random_log_probs(seed: int, T: int, V: int) -> Tensor:
    return torch.randn(T, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).log_softmax(-1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_alignment_of_a_carved_path(backend: str) -> None:
    #       0  1  2  3  4  5  6   (blank 3 = last label)
    path = [3, 0, 0, 3, 0, 2, 3]
    spans = align(backend, log_probs_of(path, 4), [0, 0, 2])
    assert spans.first.tolist() == [1, 4, 5]
    assert spans.last.tolist() == [2, 4, 5]
    assert spans.score.tolist() == pytest.approx([-0.1] * 3)
    assert float(spans.total) == pytest.approx(-0.7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_blank_may_be_any_label(backend: str) -> None:
    spans = align(backend, log_probs_of([0, 1, 0, 1], 3), [1, 1], blank=0)
    assert spans.first.tolist() == [1, 3]


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_align(backend: str) -> None:
    spans = align(backend, torch.full((3, 2), math.log(0.5)), [])
    assert spans.first.tolist() == []
    assert float(spans.total) == pytest.approx(3 * math.log(0.5))
    assert float(align(backend, torch.zeros(0, 2), []).total) == 0.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_exactly_enough_frames_and_one_too_few(backend: str) -> None:
    spans = align(backend, random_log_probs(0, 4, 3), [0, 0, 1])
    assert spans.first.tolist() == spans.last.tolist() == [0, 2, 3]
    with pytest.raises(ValueError, match="3 labels with 1 repeats need 4 frames, there are 3"):
        align(backend, random_log_probs(0, 3, 3), [0, 0, 1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_alignment_refuses_what_does_not_fit(backend: str) -> None:
    log_probs = random_log_probs(0, 4, 3)
    with pytest.raises(ValueError, match=r"labels of 0..2 other than the blank \(2\), got \[2\]"):
        align(backend, log_probs, [2])
    with pytest.raises(ValueError, match=r"labels of 0\.\.2"):
        align(backend, log_probs, [-1])
    with pytest.raises(ValueError, match=r"blank \(7\) must be a label of 0..2"):
        align(backend, log_probs, [0], blank=7)
    with pytest.raises(ValueError, match=r"need log_probs \[T, V\] and targets \[L\], got \(1, 4, 3\)"):
        align(backend, log_probs[None], [0])
    impossible = log_probs.clone()
    impossible[:, 0] = -torch.inf
    with pytest.raises(ValueError, match="every path of 1 labels through 4 frames has probability 0"):
        align(backend, impossible, [0])


def brute_force(log_probs: Tensor, targets: list[int], blank: int) -> tuple[float, tuple[int, ...]]:
    best: tuple[float, tuple[int, ...]] = (-math.inf, ())
    T, V = log_probs.shape
    for path in itertools.product(range(V), repeat=T):
        if [label for label, _ in itertools.groupby(path) if label != blank] == targets:
            best = max(best, (sum(float(log_probs[t, label]) for t, label in enumerate(path)), path))
    return best


@given(seed=st.integers(0, 2**31), targets=st.lists(st.integers(0, 1), max_size=3), blank=st.sampled_from([2, None]))
@settings(max_examples=25, deadline=None)
def test_alignment_is_the_best_of_all_paths(seed: int, targets: list[int], blank: int | None) -> None:
    log_probs = random_log_probs(seed, 5, 3)
    score, path = brute_force(log_probs, targets, 2)
    runs, frame = [], 0
    for label, run in itertools.groupby(path):
        size = len(list(run))
        if label != 2:
            runs.append((frame, frame + size - 1, float(log_probs[frame : frame + size, label].mean())))
        frame += size
    for backend in BACKENDS:
        spans = align(backend, log_probs, targets, blank)
        assert float(spans.total) == pytest.approx(score)
        assert list(zip(spans.first.tolist(), spans.last.tolist(), strict=True)) == [run[:2] for run in runs]
        assert spans.score.tolist() == pytest.approx([run[2] for run in runs])


@st.composite
def alignable(draw: st.DrawFn) -> tuple[int, int, int, list[int]]:
    V = draw(st.integers(2, 6))
    targets = draw(st.lists(st.integers(0, V - 2), max_size=6))
    needed = len(targets) + sum(a == b for a, b in itertools.pairwise(targets))
    return draw(st.integers(0, 2**31)), draw(st.integers(needed, needed + 12)), V, targets


@given(case=alignable(), ties=st.booleans())
@settings(max_examples=80, deadline=None)
def test_alignment_backends_are_equal(case: tuple[int, int, int, list[int]], ties: bool) -> None:
    seed, T, V, targets = case
    log_probs = random_log_probs(seed, T, V)
    if ties:
        log_probs = log_probs.round()
    assert same(align("reference", log_probs, targets), align("numba", log_probs, targets))


@given(case=alignable())
@settings(max_examples=40, deadline=None)
def test_alignment_agrees_with_torchaudio(case: tuple[int, int, int, list[int]]) -> None:
    functional = pytest.importorskip("torchaudio.functional")
    if not hasattr(functional, "forced_align"):
        pytest.skip("this torchaudio has no forced_align")
    seed, T, V, targets = case
    if not targets:
        return  # torchaudio takes no empty target
    log_probs = random_log_probs(seed, T, V)
    labels, scores = functional.forced_align(log_probs[None].float(), torch.tensor([targets]), blank=V - 1)
    spans = align("reference", log_probs.float(), targets)
    runs, frame = [], 0
    for label, run in itertools.groupby(labels[0].tolist()):
        size = len(list(run))
        if label != V - 1:
            runs.append((label, frame, frame + size - 1))
        frame += size
    assert runs == list(zip(targets, spans.first.tolist(), spans.last.tolist(), strict=True))
    assert float(scores.sum()) == pytest.approx(float(spans.total), abs=1e-4)


@given(case=alignable())
@settings(max_examples=40, deadline=None)
def test_labels_lie_apart_in_order_and_spell_the_targets(case: tuple[int, int, int, list[int]]) -> None:
    seed, T, V, targets = case
    spans = align("numba", random_log_probs(seed, T, V), targets)
    path, free = [V - 1] * T, 0
    for label, first, last in zip(targets, spans.first.tolist(), spans.last.tolist(), strict=True):
        assert free <= first <= last < T
        path[first : last + 1] = [label] * (last + 1 - first)
        free = last + 1
    # Collapsing that path gives the targets back: equal neighbours were kept apart by a blank.
    found, _ = collapse("numba", log_probs_of(path, V)[None], [T], init_collapse(1, blank=V - 1), V - 1)
    assert row(found, 0) == list(zip(targets, spans.first.tolist(), spans.last.tolist(), strict=True))


@given(case=alignable())
@settings(max_examples=30, deadline=None)
def test_no_frame_is_better_spent_and_scores_add_up(case: tuple[int, int, int, list[int]]) -> None:
    seed, T, V, targets = case
    log_probs = random_log_probs(seed, T, V)
    spans = align("numba", log_probs, targets)
    sizes = spans.last - spans.first + 1
    in_labels = torch.zeros(T, dtype=torch.bool)
    for first, last in zip(spans.first.tolist(), spans.last.tolist(), strict=True):
        in_labels[first : last + 1] = True
    blanks = log_probs[~in_labels, V - 1].sum()
    assert float((spans.score * sizes).sum() + blanks) == pytest.approx(float(spans.total))
    if not T:
        return  # torch's loss takes no empty input
    # CTC's likelihood sums over all paths, so it bounds the best one from above.
    likelihood = -torch.nn.functional.ctc_loss(
        log_probs[:, None],
        torch.tensor([targets], dtype=torch.int64),
        torch.tensor([T]),
        torch.tensor([len(targets)]),
        blank=V - 1,
        reduction="sum",
    )
    assert float(spans.total) <= float(likelihood) + 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_inputs_of_any_precision_and_layout_stay_as_they_were(backend: str, dtype: torch.dtype) -> None:
    log_probs = torch.randn(5, 2, 9, generator=torch.Generator().manual_seed(3)).to(dtype).permute(1, 2, 0)
    assert not log_probs.is_contiguous()
    before = log_probs.clone()
    state = init_collapse(2, blank=4)
    found, _ = collapse(backend, log_probs, [9, 9], state, 4)
    whole, _ = collapse("reference", before.contiguous().double(), [9, 9], state, 4)
    assert same(found, whole)
    spans = align(backend, log_probs[0], [1, 1, 3])
    assert same(spans, align("reference", before[0].contiguous().double(), [1, 1, 3]))
    assert torch.equal(log_probs, before)
    assert state.label.tolist() == [4, 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_in_a_batch_is_the_row_alone(backend: str) -> None:
    generator = torch.Generator().manual_seed(5)
    log_probs = torch.randn(4, 12, 3, generator=generator)
    lens = [12, 0, 5, 9]
    found, after = collapse(backend, log_probs, lens, init_collapse(4, blank=2), 2)
    for b, length in enumerate(lens):
        # Alone, and with what lies past its length made loud.
        noisy = log_probs[b : b + 1].clone()
        noisy[:, length:] = 1e3
        alone, state = collapse(backend, noisy, [length], init_collapse(1, blank=2), 2)
        assert row(found, b) == row(alone, 0)
        assert (int(after.label[b]), int(after.frames[b])) == (int(state.label[0]), length)
        assert (found.ids[b, int(found.counts[b]) :] == -1).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_far_from_the_start_is_as_near_it(backend: str) -> None:
    log_probs = torch.randn(1, 20, 4, generator=torch.Generator().manual_seed(6))
    near, _ = collapse(backend, log_probs, [20], init_collapse(1, blank=3), 3)
    start = CollapseState(label=torch.tensor([3]), first=torch.tensor([0]), frames=torch.tensor([10**10]))
    far, _ = collapse(backend, log_probs, [20], start, 3)
    assert row(far, 0) == [(label, first + 10**10, last + 10**10) for label, first, last in row(near, 0)]
