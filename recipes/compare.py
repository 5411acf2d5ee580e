"""Two runs of `recipes.evaluate` over the same clips, setting by setting: who writes better, and who is sooner.

`python -m recipes.compare BEFORE.jsonl AFTER.jsonl` prints a table, a line a setting that both have. The change of the
word error rate is paired: clips are drawn together (2000 times, seed 1), so that what is hard for both does not hide
what differs. Where its interval holds 0, the clips do not tell the two apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from asr.comparison import paired_difference
from asr.errors import ConfigError, EarlybirdError
from asr.metrics import WordErrors

__all__ = ["compared", "main", "read_runs"]

Entry = dict[str, Any]
SETTING = ("delay_ms", "chunk_ms", "snr_db", "gain_db")


def read_runs(path: Path) -> dict[tuple[Any, ...], Entry]:
    """The lines of a result file by their setting.

    Raises:
        ConfigError: if it cannot be read, or a line does not count the errors of every clip.
    """
    found: dict[tuple[Any, ...], Entry] = {}
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            entry = json.loads(line)
            if not isinstance(entry, dict) or not {*SETTING, "errors", "delay"} <= set(entry):
                raise ConfigError(f"{path}, line {number}: no line of recipes.evaluate with the errors of every clip")
            found[tuple(entry[name] for name in SETTING)] = entry
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return found


def compared(before: dict[tuple[Any, ...], Entry], after: dict[tuple[Any, ...], Entry]) -> Iterator[Entry]:
    """What changed in every setting that both runs have, in the order of `before`; rates in per cent, delays in ms.

    Raises:
        ConfigError: if they share no setting, or not the clips of one.
    """
    shared = [key for key in before if key in after]
    if not shared:
        raise ConfigError(f"no setting ({', '.join(SETTING)}) in common: {list(before)} and {list(after)}")
    for key in shared:
        old, new = (
            {name: WordErrors(*counts) for name, counts in run[key]["errors"].items()} for run in (before, after)
        )
        if set(old) != set(new):
            raise ConfigError(f"{key}: the runs are of other clips, {len(old)} and {len(new)} of them")
        names = [name for name in old if old[name].reference_length]
        change = paired_difference([new[name] for name in names], [old[name] for name in names], seed=1)
        yield {
            **dict(zip(SETTING, key, strict=True)),
            "clips": len(names),
            "wer": [_rate([errors[name] for name in names]) for errors in (old, new)],
            "change": [round(100 * value, 2) for value in (change.difference, change.low, change.high)],
            **{name: [run[key]["delay"][name] for run in (before, after)] for name in ("p50_ms", "p90_ms", "p95_ms")},
            "deleted": [sum(errors[name].deletions for name in names) for errors in (old, new)],
        }


def _rate(errors: Sequence[WordErrors]) -> float:
    return round(100 * sum(one.errors for one in errors) / sum(one.reference_length for one in errors), 2)


def table(entries: Sequence[Entry]) -> str:
    """As Markdown."""
    lines = ["| τ | chunk | WER % | change | median delay | p90 | p95 | deleted words |", "|" + "---|" * 8]
    for entry in entries:
        change, low, high = entry["change"]
        pairs = [" → ".join(str(value) for value in entry[name]) for name in ("p50_ms", "p90_ms", "p95_ms", "deleted")]
        cells = [
            f"{entry['delay_ms']} ms",
            f"{entry['chunk_ms']} ms",
            " → ".join(str(value) for value in entry["wer"]),
            f"{change:+} ({low:+} to {high:+})",
            *pairs,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON line a setting instead of the table")
    args = parser.parse_args(argv)
    try:
        entries = list(compared(read_runs(args.before), read_runs(args.after)))
    except EarlybirdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(json.dumps(entry) for entry in entries) if args.json else table(entries))
    return 0


if __name__ == "__main__":
    sys.exit(main())
