"""Data to and from lhotse, and its batches of clips of like lengths.

    python -m recipes.cuts export --manifest M.jsonl [--alignments A.jsonl] --out CUTS.jsonl.gz
    python -m recipes.cuts import CUTS.jsonl.gz --out DIR

`export` makes a lhotse CutSet of a manifest, word times as alignments of its supervisions. `import` makes of each
supervision of a CutSet a clip of DIR/train.jsonl, 16 kHz mono in DIR/audio with whatever the cut does to its recording
(parts, speed, noise, reverberation), and of their word alignments DIR/aligned.jsonl. What has no text or no sound is
left out and counted. Licence and source are the supervision's custom fields of these names; `--licence` and `--source`
are for those without.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import soundfile
import torch

from asr.errors import ConfigError, EarlybirdError
from asr.units import SAMPLE_RATE
from recipes.align import AlignedClip, AlignedWord, read_alignments
from recipes.data import Clip, read_manifest

__all__ = ["BucketedOrder", "export_cuts", "import_cuts"]

BUCKETS = 10
KIND = "word"
"""The name of word alignments in lhotse."""


def _lhotse() -> Any:
    try:
        import lhotse
    except ImportError as error:
        raise ConfigError(f"this needs lhotse: pip install 'earlybird-asr[train]' ({error})") from error
    return lhotse


def export_cuts(clips: Sequence[Clip], aligned: Mapping[str, AlignedClip]) -> Any:
    """A CutSet of whole recordings with one supervision each, word times where `aligned` has them.

    Raises:
        ConfigError: if lhotse is not installed.
    """
    lhotse = _lhotse()
    from lhotse.supervision import AlignmentItem

    cuts = []
    for clip in clips:
        recording = lhotse.Recording.from_file(clip.path, recording_id=clip.audio)
        words = aligned[clip.audio].words if clip.audio in aligned else ()
        items = [AlignmentItem(w.text, w.start_ms / 1000, (w.end_ms - w.start_ms) / 1000) for w in words]
        supervision = lhotse.SupervisionSegment(
            id=clip.audio,
            recording_id=clip.audio,
            start=0.0,
            duration=recording.duration,
            text=clip.text,
            speaker=clip.speaker,
            custom={"source": clip.source, "licence": clip.licence},
            alignment={KIND: items} if items else None,
        )
        cuts.append(lhotse.MonoCut(clip.audio, 0.0, recording.duration, 0, [supervision], recording=recording))
    return lhotse.CutSet.from_cuts(cuts)


def import_cuts(
    cuts: Any, folder: Path, *, source: str | None = None, licence: str | None = None
) -> tuple[int, Counter[str]]:
    """Writes the supervisions of a CutSet as clips.

    Args:
        cuts: lhotse's, with audio.
        folder: for audio/, train.jsonl and aligned.jsonl.
        source, licence: of supervisions that state none.
    Returns:
        How many clips there are now, and how many were left out for each reason.

    Raises:
        ConfigError: if a supervision has no source or licence and none is given, or two have one id.
    """
    (folder / "audio").mkdir(parents=True, exist_ok=True)
    left_out: Counter[str] = Counter()
    names: set[str] = set()
    with (
        (folder / "train.jsonl").open("w", encoding="utf-8") as manifest,
        (folder / "aligned.jsonl").open("w", encoding="utf-8") as alignments,
    ):
        for cut in cuts.trim_to_supervisions(keep_overlapping=False):
            supervision = cut.supervisions[0]
            text = (supervision.text or "").strip()
            samples = torch.from_numpy(cut.resample(SAMPLE_RATE).load_audio()).mean(0)  # [N]
            if not text or not samples.shape[0]:
                left_out["no text" if not text else "no sound"] += 1
                continue
            # Names become paths below audio/, so that ids with slashes stay apart and none leaves the folder.
            name = "audio/" + "".join(c if c.isalnum() or c in "-." else "_" for c in supervision.id) + ".flac"
            if name in names:
                raise ConfigError(f"two supervisions would be {name}; ids must differ in letters and digits")
            names.add(name)
            custom = supervision.custom or {}
            entry: dict[str, object] = {
                "audio": name,
                "duration": samples.shape[0] / SAMPLE_RATE,
                "text": text,
                "speaker": supervision.speaker,
                "source": custom.get("source", source),
                "licence": custom.get("licence", licence),
            }
            if None in (entry["source"], entry["licence"]):
                raise ConfigError(f"{supervision.id} states no source or licence; give --source and --licence")
            soundfile.write(folder / name, samples.clamp(-1, 1).numpy(), SAMPLE_RATE)
            manifest.write(json.dumps(entry, ensure_ascii=False) + "\n")
            words = _words(cut)
            if words:
                clip = AlignedClip(audio=name, text=" ".join(word.text for word in words), words=words)
                alignments.write(clip.to_json() + "\n")
    return len(names), left_out


def _words(cut: Any) -> tuple[AlignedWord, ...]:
    """Word times on the clock of a cut with one supervision; silences between words have no text.

    lhotse leaves alignments on the clock of the recording, whatever part of it a cut is.
    """
    (supervision,) = cut.supervisions
    items = (supervision.alignment or {}).get(KIND, ())
    origin = 0.0
    for track, offset in [(t.cut, t.offset) for t in cut.tracks] if hasattr(cut, "tracks") else [(cut, 0.0)]:
        if any(one.id == supervision.id for one in track.supervisions):
            origin = track.start - offset
    times = [(item.symbol, round(1000 * (item.start - origin)), round(1000 * (item.end - origin))) for item in items]
    return tuple(
        AlignedWord(text=text, start_ms=max(0, start), end_ms=max(0, end)) for text, start, end in times if text.strip()
    )


class BucketedOrder:
    """Batches of like lengths that hold about a duration, without end (lhotse's DynamicBucketingSampler).

    All clips come once before one comes again.

    Args:
        durations_ms: of the clips; none longer than a batch.
        batch_seconds: what a batch holds with its padding, or a little less; the last clip may lie above it.
        seed: of the order.

    Raises:
        ConfigError: if there is no clip, one does not fit, or lhotse is not installed.
    """

    def __init__(self, durations_ms: Sequence[int], *, batch_seconds: float, seed: int) -> None:
        longest = max(durations_ms, default=0)
        if not longest or longest > 1000 * batch_seconds:
            raise ConfigError(
                f"{len(durations_ms)} clips, the longest of {longest} ms, do not fit batches of {batch_seconds} s"
            )
        lhotse = _lhotse()
        from lhotse.dataset import DynamicBucketingSampler

        cuts = [
            lhotse.MonoCut(str(i), start=0.0, duration=length / 1000, channel=0)
            for i, length in enumerate(durations_ms)
        ]
        ordered = sorted(durations_ms)
        bins = sorted({ordered[len(ordered) * k // BUCKETS] / 1000 for k in range(1, BUCKETS)})
        mean = sum(ordered) / len(ordered) / 1000
        # All clips lie in the buckets at once; the second number is only what lhotse wants to see before it warns.
        room = max(len(cuts), round(2 * batch_seconds * (BUCKETS + 1) / min(mean, *bins)))
        self._sampler = DynamicBucketingSampler(
            cuts,
            max_duration=batch_seconds,
            shuffle=True,
            duration_bins=bins,
            buffer_size=room,
            world_size=1,
            rank=0,
            seed=seed,
        )
        self._place = (0, 0)  # epoch, and batches taken of it
        self._batches = self._epoch(0)

    def _epoch(self, epoch: int) -> Any:
        self._sampler.set_epoch(epoch)
        return iter(self._sampler)

    def take(self) -> list[int]:
        """The places of the next batch's clips."""
        epoch, taken = self._place
        batch = next(self._batches, None)
        if batch is None:
            epoch, taken = epoch + 1, 0
            self._batches = self._epoch(epoch)
            batch = next(self._batches)
        self._place = (epoch, taken + 1)
        return [int(cut.id) for cut in batch]

    @property
    def place(self) -> tuple[int, int]:
        """Where the order is: what `go_to` takes."""
        return self._place

    def go_to(self, place: tuple[int, int]) -> None:
        """Goes on from where `place` was read."""
        epoch, taken = place
        self._batches = self._epoch(epoch)
        for _ in range(taken):
            next(self._batches)
        self._place = (epoch, taken)


def build_parser() -> argparse.ArgumentParser:
    """The command line of `python -m recipes.cuts`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(dest="way", required=True)
    export = ways.add_parser("export", help="a manifest to a CutSet")
    export.add_argument("--manifest", type=Path, required=True)
    export.add_argument("--alignments", type=Path)
    export.add_argument("--out", type=Path, required=True, help="a .jsonl or .jsonl.gz file")
    take = ways.add_parser("import", help="a CutSet to a manifest with audio and word times")
    take.add_argument("cuts", type=Path)
    take.add_argument("--source", help="where the recordings come from, for those that do not say")
    take.add_argument("--licence", help="theirs, for those that do not say")
    take.add_argument("--out", type=Path, required=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when written, 2 when a file or a setting is wrong."""
    args = build_parser().parse_args(argv)
    try:
        if args.way == "export":
            aligned = read_alignments(args.alignments) if args.alignments is not None else {}
            cuts = export_cuts(read_manifest(args.manifest), aligned)
            cuts.to_file(args.out)
            print(f"{len(cuts)} cuts")
        else:
            cuts = _lhotse().CutSet.from_file(args.cuts)
            count, left_out = import_cuts(cuts, args.out, source=args.source, licence=args.licence)
            print(f"{count} clips, {left_out.total()} left out")
            for reason, number in left_out.most_common():
                print(f"{number:6d}  {reason}")
    except (EarlybirdError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
