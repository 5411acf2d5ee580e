"""Word times, by default from an aligner that shares nothing with the models that are trained and judged on them.

PocketSphinx (BSD, its packaged en-us model) finds the best path of the transcript through the whole clip, with optional
silence between words. Times are borders of its 10 ms frames; a frame covers 25.6 ms, so a border lies up to 8 ms
before the middle between the two frames' centres: word ends are stated a little early, delays a little long.

    python -m recipes.align --manifest dev.jsonl --out aligned.jsonl [--processes 1] [--skip-subset alphanumeric]
        [--with ctc [--model earlybird-en]]

`--with ctc` aligns with a checkpoint's CTC head instead (recipes/align_ctc.py), in steps of 80 ms: for training data
where PocketSphinx is slow or loses the path.

One JSON object a line: `{"audio", "text", "words": [{"text", "start_ms", "end_ms"}]}`; `words` are the whitespace words
of `text`, one to one. A word without letters (a lone dash) is never spoken: it takes no time, at the end of the word
before it. What cannot be aligned goes to `<out>.failed.jsonl` with the reason, and is not tried again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

import asr
from asr.errors import AudioFormatError, ConfigError, EarlybirdError
from asr.units import MEL_SAMPLES, SAMPLE_RATE, samples_to_ms
from recipes.data import Clip, load_audio, read_manifest
from recipes.pronounce import Phones, pronounce

FRAME_MS = MEL_SAMPLES * 1000 // SAMPLE_RATE
_SHORTEST_CLIP_FRAMES = 10
# The default beams lose the path in noisy or heavily accented clips; these hardly prune, at some cost in time, and are
# used for those clips only.
_WIDE_BEAMS = {"beam": 1e-120, "pbeam": 1e-120, "wbeam": 1e-100}


class Unalignable(EarlybirdError):
    """A clip whose transcript cannot be placed in its audio; the message is the reason, without the clip's name."""


@dataclass(frozen=True, kw_only=True)
class AlignedWord:
    """A whitespace word of the transcript and when it was spoken, in whole milliseconds from the clip's start."""

    text: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, kw_only=True)
class AlignedClip:
    """A clip's name and transcript, as in its manifest, with its words in order."""

    audio: str
    text: str
    words: tuple[AlignedWord, ...]

    def to_json(self) -> str:
        """One line of an alignment file."""
        return json.dumps(asdict(self), ensure_ascii=False)


class Aligner(Protocol):
    """Finds when words were spoken."""

    def align(self, samples: Tensor, text: str) -> tuple[AlignedWord, ...]:
        """The whitespace words of `text` in audio [N] float32 at 16 kHz, in order; raises Unalignable."""


@dataclass(frozen=True)
class AlignerChoice:
    """Which aligner: "pocketsphinx", or "ctc" with the checkpoint whose head it is."""

    name: str = "pocketsphinx"
    model: str = "earlybird-en"

    def open(self) -> Aligner:
        """Loads it."""
        if self.name == "pocketsphinx":
            return WordAligner()
        from recipes.align_ctc import CtcAligner  # which needs this module

        return CtcAligner(asr.load(self.model))


def spoken_words(text: str) -> list[list[str]]:
    """For each whitespace word of `text`, the dictionary words spoken for it, lower case of [a-z'].

    Raises:
        Unalignable: if a word holds a digit or a letter outside a-z, whose spoken form is not known.

    >>> spoken_words("Well-known tea - it’s")
    [['well', 'known'], ['tea'], [], ["it's"]]
    """
    groups = []
    for word in text.split():
        plain = word.lower().replace("’", "'").replace("‘", "'")
        if any(letter.isdigit() for letter in plain):
            raise Unalignable("digits in the transcript")
        if any(letter.isalpha() and not "a" <= letter <= "z" for letter in plain):
            raise Unalignable("letters outside a-z in the transcript")
        groups.append([part for part in re.findall(r"[a-z']+", plain) if part.strip("'")])
    return groups


class WordAligner:
    """Aligns transcripts with audio; holds the aligner's model, about 100 MB.

    Not to be shared between threads or processes.

    Raises:
        ConfigError: if pocketsphinx is not installed.
    """

    def __init__(self) -> None:
        self._narrow = _open_decoder({})
        self._wide: Any = None  # built for the first clip that needs it

    def align(self, samples: Tensor, text: str) -> tuple[AlignedWord, ...]:
        """Word times of one clip.

        Args:
            samples: [N] float32 in [-1, 1] at 16 kHz.
            text: the verbatim transcript.

        Returns:
            The whitespace words of `text`, in order; starts and ends never go back, ends are within the clip.

        Raises:
            Unalignable: with the reason.
        """
        groups = spoken_words(text)
        spoken = [part for group in groups for part in group]
        if not spoken:
            raise Unalignable("no spoken word in the transcript")
        if samples.shape[0] < _SHORTEST_CLIP_FRAMES * MEL_SAMPLES:
            raise Unalignable(f"shorter than {_SHORTEST_CLIP_FRAMES * FRAME_MS} ms")
        pcm = (samples.clamp(-1, 1) * 32767).to(torch.int16).numpy().tobytes()
        spans = _force(self._narrow, spoken, pcm)
        if spans is None:
            if self._wide is None:
                self._wide = _open_decoder(_WIDE_BEAMS)
            spans = _force(self._wide, spoken, pcm)
        if spans is None:
            raise Unalignable("no path of the transcript through the audio")
        return group_spans(text.split(), groups, spans, duration_ms=samples_to_ms(samples.shape[0]))


def _open_decoder(beams: dict[str, float]) -> Any:
    try:
        from pocketsphinx import Decoder
    except ImportError as error:
        raise ConfigError(f"alignment needs pocketsphinx: pip install 'earlybird-asr[train]' ({error})") from error
    return Decoder(samprate=SAMPLE_RATE, bestpath=False, lm=None, loglevel="FATAL", **beams)


def _force(decoder: Any, spoken: Sequence[str], pcm: bytes) -> list[tuple[int, int]] | None:
    """(start_ms, end_ms) of each word, or None if the search lost the path."""

    def lookup(word: str) -> Phones | None:
        phones = decoder.lookup_word(word)
        return tuple(phones.split()) if phones else None

    for word in dict.fromkeys(spoken):
        if lookup(word) is None:
            phones = pronounce(word, lookup)
            if phones is None:
                raise Unalignable(f"no pronunciation for {word!r}")
            decoder.add_word(word, " ".join(phones), True)
    decoder.set_align_text(" ".join(spoken))
    decoder.start_utt()
    decoder.process_raw(pcm, full_utt=True)
    decoder.end_utt()
    if decoder.hyp() is None:
        return None
    found: list[str] = []
    spans: list[tuple[int, int]] = []
    for segment in decoder.seg():
        word = re.sub(r"\(\d+\)$", "", segment.word)
        if word[0] not in "<[" and not word.startswith("++"):
            found.append(word)
            spans.append((segment.start_frame * FRAME_MS, (segment.end_frame + 1) * FRAME_MS))
    return spans if found == list(spoken) else None  # a path cut short is no alignment


def group_spans(
    words: Sequence[str], groups: Sequence[Sequence[str]], spans: Sequence[tuple[int, int]], *, duration_ms: int
) -> tuple[AlignedWord, ...]:
    """Words with their times.

    Args:
        words: the whitespace words.
        groups: the spoken words of each.
        spans: (start_ms, end_ms) of each spoken word, in order.
        duration_ms: of the clip, which no time passes.
    """
    aligned = []
    place, last_end = 0, 0
    for word, group in zip(words, groups, strict=True):
        if group:
            start = min(spans[place][0], duration_ms - 1)
            last_end = min(spans[place + len(group) - 1][1], duration_ms)
            place += len(group)
        else:
            start = last_end
        aligned.append(AlignedWord(text=word, start_ms=start, end_ms=last_end))
    return tuple(aligned)


def read_alignments(path: str | Path) -> dict[str, AlignedClip]:
    """The clips of an alignment file by their manifest name.

    Raises:
        ConfigError: if a line is not one that `main` writes.
    """
    clips = {}
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                words = tuple(AlignedWord(**word) for word in entry["words"])
                clips[entry["audio"]] = AlignedClip(audio=entry["audio"], text=entry["text"], words=words)
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ConfigError(f"{path}, line {number}: not an aligned clip ({error!r})") from error
    return clips


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    clip: Clip
    aligned: AlignedClip | None
    reason: str


@lru_cache(maxsize=1)  # one per process: the model takes a second to load
def _opened(choice: AlignerChoice) -> Aligner:
    torch.set_num_threads(1)
    return choice.open()


def _align_clip(choice: AlignerChoice, clip: Clip) -> _Outcome:
    if clip.text is None:
        return _Outcome(clip=clip, aligned=None, reason="no transcript")
    try:
        words = _opened(choice).align(load_audio(clip.path), clip.text)
    except (Unalignable, AudioFormatError) as error:
        return _Outcome(clip=clip, aligned=None, reason=str(error))
    return _Outcome(clip=clip, aligned=AlignedClip(audio=clip.audio, text=clip.text, words=words), reason="")


def _outcomes(clips: Sequence[Clip], choice: AlignerChoice, *, processes: int) -> Iterator[_Outcome]:
    if processes == 1:
        yield from map(partial(_align_clip, choice), clips)
    else:
        # Clip.extra is a read-only view, which does not travel between processes.
        plain = [Clip(**{**vars(clip), "extra": {}}) for clip in clips]
        with ProcessPoolExecutor(max_workers=processes) as pool:
            yield from pool.map(partial(_align_clip, choice), plain, chunksize=8)


def _names_in(path: Path) -> set[str]:
    """Clips named by complete lines; an unfinished last line (a run that was killed) is cut off."""
    if not path.exists():
        return set()
    whole = path.read_bytes()
    kept = whole[: whole.rfind(b"\n") + 1]
    if len(kept) < len(whole):
        path.write_bytes(kept)
    return {json.loads(line)["audio"] for line in kept.decode("utf-8").splitlines()}


def align_manifest(
    clips: Iterable[Clip], out: Path, *, processes: int, choice: AlignerChoice | None = None, report_every: int = 100
) -> Counter[str]:
    """Align what `out` and `<out>.failed.jsonl` do not hold yet, appending to them.

    Args:
        choice: the aligner; None: PocketSphinx.

    Returns:
        How many clips failed for each reason, earlier runs included.
    """
    failed_path = out.with_name(out.name + ".failed.jsonl")
    clips = tuple(clips)
    done = _names_in(out) | _names_in(failed_path)
    todo = [clip for clip in clips if clip.audio not in done]
    print(f"{len(todo)} of {len(clips)} clips to align", file=sys.stderr)
    began, audio_ms, failed_count = time.monotonic(), 0, 0
    with out.open("a", encoding="utf-8") as good, failed_path.open("a", encoding="utf-8") as bad:
        for count, outcome in enumerate(_outcomes(todo, choice or AlignerChoice(), processes=processes), start=1):
            if outcome.aligned is not None:
                good.write(outcome.aligned.to_json() + "\n")
            else:
                failed_count += 1
                bad.write(
                    json.dumps({"audio": outcome.clip.audio, "reason": outcome.reason}, ensure_ascii=False) + "\n"
                )
            audio_ms += outcome.clip.duration_ms
            if count % report_every == 0 or count == len(todo):
                good.flush()
                bad.flush()
                speed = audio_ms / 1000 / max(time.monotonic() - began, 1e-3)
                line = f"{count}/{len(todo)} clips, {failed_count} failed, {speed:.1f} s of audio per second"
                print(line, file=sys.stderr, flush=True)
    with failed_path.open(encoding="utf-8") as lines:
        return Counter(json.loads(line)["reason"] for line in lines)


def build_parser() -> argparse.ArgumentParser:
    """The command line of `python -m recipes.align`."""
    parser = argparse.ArgumentParser(prog="python -m recipes.align", description="Word times by forced alignment.")
    parser.add_argument("--manifest", type=Path, required=True, help="JSON lines of clips")
    parser.add_argument("--out", type=Path, required=True, help="alignment file; what it holds is not done again")
    parser.add_argument("--with", dest="aligner", choices=("pocketsphinx", "ctc"), default="pocketsphinx")
    parser.add_argument("--model", default="earlybird-en", help="whose CTC head aligns")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--skip-subset", action="append", default=[], help="a subset_tag to leave out; repeatable")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when every clip was tried, 2 when a setting is wrong."""
    args = build_parser().parse_args(argv)
    try:
        if args.processes < 1:
            raise ConfigError(f"--processes is {args.processes}; it must be 1 or more")
        clips = [clip for clip in read_manifest(args.manifest) if clip.subset_tag not in args.skip_subset]
        args.out.parent.mkdir(parents=True, exist_ok=True)
        choice = AlignerChoice(args.aligner, args.model)
        reasons = align_manifest(clips, args.out, processes=args.processes, choice=choice)
    except EarlybirdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{len(clips)} clips, {sum(reasons.values())} not aligned")
    for reason, count in reasons.most_common():
        print(f"{count:6d}  {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
