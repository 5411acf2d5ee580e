"""What scoring the whole vocabulary costs: each kernel against the plain PyTorch one and a loop over `kenlm` queries.

`python -m recipes.ngram_benchmark --arpa FILE --text FILE --model M --units decoder --batch 1 16 64`
States are those that the text leads to. All contestants score the same states, in turn, after a warm-up; medians count.
`kenlm` is asked token by token, for the rows of one batch; the largest difference between its scores and the kernels'
stands beside the times.
Exit code: 0; 2 if a setting or a file is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.checkpoint import load
from asr.errors import ConfigError, EarlybirdError
from lm_fusion.build import read_lines, sentence_case
from lm_fusion.ngram import Automaton
from lm_fusion.ngram_units import Units, ctc_units, decoder_units

__all__ = ["KenlmLoop", "Rows", "entries", "measure", "rows_of", "table"]

REPEATS = 5
TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Attributes: states: [B] int64 of the automaton; histories: the tokens that led to each, from a begin on."""

    states: Tensor
    histories: tuple[tuple[int, ...], ...]


def rows_of(automaton: Automaton, sentences: Sequence[Sequence[int]], count: int) -> Rows:
    """The first `count` places in sentences, one behind another through all of them.

    Raises:
        ConfigError: if the text has fewer places.
    """
    states: list[Tensor] = []
    histories: list[tuple[int, ...]] = []
    for sentence in sentences:
        state = automaton.init_states(1)
        for place, token in enumerate(sentence):
            if len(states) == count:
                break
            states.append(state)
            histories.append(tuple(sentence[:place]))
            _, state = automaton.advance_by(state, torch.tensor([token], device=state.device))
    if len(states) < count:
        raise ConfigError(f"the text has {len(states)} tokens, {count} are needed")
    return Rows(states=torch.cat(states), histories=tuple(histories))


class KenlmLoop:
    """Scores of all tokens by one query each, as they would be had from the `kenlm` package.

    Args:
        path: an ARPA file or a KenLM binary.
        names: what the model calls each token.

    Raises:
        ConfigError: if the package is not installed.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        try:
            import kenlm
        except ImportError as error:
            raise ConfigError(f"comparing with kenlm needs the package kenlm ({error})") from error
        self._model, self._new_state = kenlm.Model(str(path)), kenlm.State
        self._names = list(names)

    def states(self, histories: Sequence[Sequence[int]]) -> list[Any]:
        """KenLM's states behind histories, each from a begin on."""
        return [self._state(history) for history in histories]

    def _state(self, history: Sequence[int]) -> Any:
        state = self._new_state()
        self._model.BeginSentenceWrite(state)
        for token in history:
            after = self._new_state()
            self._model.BaseScore(state, self._names[token], after)
            state = after
        return state

    def scores(self, states: Sequence[Any]) -> list[list[float]]:
        """Log10 probabilities, [B][V]."""
        score, after = self._model.BaseScore, self._new_state()
        return [[score(state, name, after) for name in self._names] for state in states]


def measure(
    automaton: Automaton,
    rows: Rows,
    backends: Sequence[str],
    kenlm: KenlmLoop | None,
    *,
    repeats: int = REPEATS,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, list[float]], float | None]:
    """Seconds of each contestant's runs over the same rows, and the largest difference from kenlm in natural log.

    Raises:
        ConfigError: if a kernel's scores are not the reference's, or not kenlm's to 1e-4.
        KernelUnavailable: if a backend is not there.
    """
    contestants: dict[str, Callable[[], Any]] = {}
    scored: dict[str, Tensor] = {}
    for backend in backends:
        runner = automaton.to(automaton.device, backend)
        contestants[backend] = partial(_scores, runner, rows.states)
        scored[backend] = contestants[backend]().cpu()  # the warm-up too: a first call compiles
    first = scored[backends[0]]
    if any(not torch.equal(first, other) for other in scored.values()):
        raise ConfigError(f"the scores of {', '.join(backends)} are not the same")
    difference = None
    if kenlm is not None:
        states = kenlm.states(rows.histories)
        contestants["kenlm"] = lambda: kenlm.scores(states)
        theirs = torch.tensor(kenlm.scores(states), dtype=torch.float64) * math.log(10)
        difference = float((first.double() - theirs).abs().max())
        if difference > TOLERANCE:
            raise ConfigError(f"scores are up to {difference:.2e} from kenlm's, more than {TOLERANCE}")
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            begin = clock()
            run()
            seconds[name].append(clock() - begin)
    return seconds, difference


def _scores(automaton: Automaton, states: Tensor) -> Tensor:
    scores, _ = automaton.advance(states)
    if scores.is_cuda:
        torch.cuda.synchronize(scores.device)
    return scores


def entries(batch: int, seconds: dict[str, list[float]], difference: float | None) -> list[dict[str, object]]:
    """One a contestant, with how many times as long it takes as the first kernel that is not plain PyTorch."""
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    fast = next((name for name in medians if name not in ("reference", "kenlm")), "reference")
    return [
        {
            "batch": batch,
            "contestant": name,
            "median_microseconds": round(median * 1e6, 1),
            "least_microseconds": round(min(seconds[name]) * 1e6, 1),
            "times_as_long": round(median / medians[fast], 2),
            "as": fast,
            "largest_difference_from_kenlm": difference,
        }
        for name, median in medians.items()
    ]


def table(found: Sequence[dict[str, object]]) -> str:
    """The entries for people."""
    lines = [f"{'batch':>5} {'contestant':>10} {'median µs':>12} {'ratio':>9}"]
    for entry in found:
        lines.append(
            f"{entry['batch']:>5} {entry['contestant']:>10} {entry['median_microseconds']:>12} "
            f"{entry['times_as_long']:>8}x"
        )
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    """The command line of `python -m recipes.ngram_benchmark`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arpa", type=Path, required=True, help="the n-gram model, read by both sides")
    parser.add_argument("--text", type=Path, required=True, help="text or manifest that leads to the states")
    parser.add_argument("--model", default="earlybird-en")
    parser.add_argument("--units", choices=("decoder", "ctc"), default="decoder")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--backends", nargs="+", default=["reference", "numba"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--no-kenlm", action="store_true", help="leave the loop over kenlm queries out")
    return parser


def units_of(name: str, kind: str) -> Units:
    """The tokens of a model.

    Raises:
        ConfigError: if it has no CTC head, and its pieces are asked for.
        CheckpointError: if there is no such model.
    """
    model = load(name)
    if kind == "decoder":
        return decoder_units(model.vocabulary, model.config.vocabulary)
    if model.ctc_tokenizer is None:
        raise ConfigError(f"the model {name} has no CTC head")
    return ctc_units(model.ctc_tokenizer)


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    args = build_parser().parse_args(argv)
    try:
        torch.set_num_threads(args.threads)
        units = units_of(args.model, args.units)
        automaton = Automaton.load(args.arpa, units, device=args.device, backend="reference")
        kenlm = None if args.no_kenlm else KenlmLoop(args.arpa, [name or "<unk>" for name in units.names])
        sentences = [units.encode(sentence_case(line)) for line in read_lines(args.text)]
        found: list[dict[str, object]] = []
        for batch in args.batch:
            rows = rows_of(automaton, sentences, batch)
            found += entries(batch, *measure(automaton, rows, args.backends, kenlm, repeats=args.repeats))
    except (EarlybirdError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    shared = {**automaton.describe(), "threads": args.threads, "repeats": args.repeats}
    shared.pop("backend")
    print(table(found))
    print("".join(json.dumps(shared | entry) + "\n" for entry in found), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
