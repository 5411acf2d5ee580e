"""Plots of how soon words come: the histogram of word emission delays, and word error rate over delay.

`python -m recipes.awed RESULTS.jsonl [MORE.jsonl …] --out DIR` reads what `recipes.evaluate --out` wrote and writes
`delays.png`, `frontier.png` and the plotted numbers beside them as JSON. Each file is one curve a chunk size, so that
models can be laid over one another.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr.errors import ConfigError, EarlybirdError

__all__ = ["BIN_MS", "draw", "frontier", "histogram", "read_results"]

BIN_MS = 20
"""Width of a bin; bin k holds the delays d with k · 20 <= d < (k + 1) · 20 ms."""

Entry = dict[str, Any]


def histogram(delays_ms: Sequence[int]) -> list[tuple[int, int]]:
    """(lower edge in ms, count) of the bins that hold something, lowest first; negative delays are kept.

    >>> histogram([-1, 0, 19, 20, 420])
    [(-20, 1), (0, 2), (20, 1), (420, 1)]
    """
    counts = Counter(delay // BIN_MS * BIN_MS for delay in delays_ms)
    return sorted(counts.items())


def read_results(paths: Sequence[Path]) -> list[Entry]:
    """The lines of result files, each with the file's stem as `run`.

    Raises:
        ConfigError: if a file cannot be read or a line is none that `recipes.evaluate` writes.
    """
    found: list[Entry] = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                known = {name: entry[name] for name in ("model", "delay_ms", "chunk_ms", "wer", "interval", "delay")}
                found.append({"run": path.stem, **known, "histogram": entry["histogram"]})
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ConfigError(f"{path}, line {number}: no line of an evaluation with delays ({error!r})") from error
    return found


def frontier(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The points of each curve, by run and chunk size, in the order of τ.

    A point states what a delay must not be read without: the share of words matched and of words deleted.
    """
    curves: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: (entry["run"], entry["chunk_ms"], entry["delay_ms"])):
        delay = entry["delay"]
        point = {name: entry[name] for name in ("model", "delay_ms", "chunk_ms", "wer", "interval")}
        kept = ("p50_ms", "p90_ms", "p95_ms", "matched_share", "deletion_rate")
        curves.setdefault(f"{entry['run']}, {entry['chunk_ms']} ms chunks", []).append(
            point | {name: delay[name] for name in kept}
        )
    return curves


def draw(entries: Sequence[Entry], folder: Path) -> list[Path]:
    """Writes the two plots and their numbers; gives the files.

    Args:
        entries: of `read_results`, at least one.

    Raises:
        ConfigError: if there is nothing to draw, or matplotlib is not installed.
    """
    if not entries:
        raise ConfigError("there is no evaluated setting to draw")
    figures = _figures()
    folder.mkdir(parents=True, exist_ok=True)
    curves = frontier(entries)
    (folder / "frontier.json").write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")
    figure = figures.Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        heard = [point for point in points if point["p50_ms"] is not None]
        low = [point["wer"] - point["interval"][0] if point["interval"] else 0.0 for point in heard]
        high = [point["interval"][1] - point["wer"] if point["interval"] else 0.0 for point in heard]
        at, wer = [point["p50_ms"] / 1000 for point in heard], [point["wer"] for point in heard]
        axes.errorbar(at, wer, yerr=(low, high), marker="o", capsize=3, label=name)
        for x, y, point in zip(at, wer, heard, strict=True):
            axes.annotate(f"τ {point['delay_ms']}", (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set(xlabel="median word emission delay, s (audio clock)", ylabel="word error rate, % (95 % interval)")
    axes.legend(fontsize=7)
    figure.savefig(folder / "frontier.png", dpi=120)

    figure = figures.Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    shown: dict[str, list[tuple[int, int]]] = {}
    for entry in entries:
        name = f"{entry['run']}, τ {entry['delay_ms']} ms, {entry['chunk_ms']} ms chunks"
        shown[name] = [(edge, count) for edge, count in entry["histogram"]]
        total = max(1, sum(count for _, count in shown[name]))
        edges = [edge / 1000 for edge, _ in shown[name]]
        shares = [100 * count / total for _, count in shown[name]]
        axes.bar(edges, shares, width=BIN_MS / 1000, align="edge", alpha=0.5, label=name)
    axes.set(xlabel="word emission delay, s (audio clock)", ylabel=f"% of matched words a {BIN_MS} ms bin")
    axes.legend(fontsize=7)
    figure.savefig(folder / "delays.png", dpi=120)
    (folder / "delays.json").write_text(json.dumps({"bin_ms": BIN_MS, "counts": shown}) + "\n", encoding="utf-8")
    return [folder / f"{name}.{kind}" for name in ("frontier", "delays") for kind in ("json", "png")]


def _figures() -> Any:
    try:
        from matplotlib import figure
    except ImportError as error:
        raise ConfigError(f"plots need matplotlib: pip install 'earlybird-asr[train]' ({error})") from error
    return figure


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when drawn, 2 when a file is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULTS")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    try:
        for path in draw(read_results(args.results), args.out):
            print(path)
    except EarlybirdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
