"""lhotse: data there and back, parts of recordings, what is left out, and batches of like lengths."""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path

import pytest
import soundfile
import torch

from asr.errors import ConfigError
from recipes.align import AlignedClip, AlignedWord, read_alignments
from recipes.cuts import BucketedOrder, export_cuts, import_cuts, main
from recipes.data import load_audio, read_manifest
from tests.tiny_model import bursts

lhotse = pytest.importorskip("lhotse")


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Path]:
    """Two clips, the first with word times: (manifest, alignments)."""
    lines = []
    for i, text in enumerate(("the dog", "a cat")):
        sound = bursts(0.8 + 0.2 * i, i)
        soundfile.write(tmp_path / f"{i}.flac", sound.numpy(), 16_000)
        entry = {"audio": f"{i}.flac", "duration": len(sound) / 16_000, "text": text, "speaker": f"s{i}"}
        lines.append(entry | {"source": "toy", "licence": "CC0"})
    (tmp_path / "clips.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = (AlignedWord(text="the", start_ms=100, end_ms=240), AlignedWord(text="dog", start_ms=300, end_ms=620))
    (tmp_path / "aligned.jsonl").write_text(AlignedClip(audio="0.flac", text="the dog", words=words).to_json() + "\n")
    return tmp_path / "clips.jsonl", tmp_path / "aligned.jsonl"


def test_there_and_back_is_the_same_data(
    data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, alignments = data
    cuts, out = tmp_path / "cuts.jsonl.gz", tmp_path / "back"
    assert main(["export", "--manifest", str(manifest), "--alignments", str(alignments), "--out", str(cuts)]) == 0
    assert [cut.supervisions[0].text for cut in lhotse.CutSet.from_file(cuts)] == ["the dog", "a cat"]
    assert main(["import", str(cuts), "--out", str(out)]) == 0
    assert capsys.readouterr().out == "2 cuts\n2 clips, 0 left out\n"
    before, after = read_manifest(manifest), read_manifest(out / "train.jsonl")
    for old, new in zip(before, after, strict=True):
        assert (new.text, new.speaker, new.source, new.licence) == (old.text, old.speaker, old.source, old.licence)
        assert new.duration_ms == old.duration_ms
        assert torch.equal(load_audio(new.path), load_audio(old.path))
    (aligned,) = read_alignments(out / "aligned.jsonl").values()
    assert aligned.audio == after[0].audio
    assert aligned.words == read_alignments(alignments)["0.flac"].words


def test_parts_of_a_recording_have_their_own_sound_and_clock(data: tuple[Path, Path], tmp_path: Path) -> None:
    manifest, alignments = data
    (whole, _) = export_cuts(read_manifest(manifest), read_alignments(alignments))
    supervision = whole.supervisions[0]
    items = supervision.alignment["word"]
    parts = [
        lhotse.SupervisionSegment(
            id=f"a/{i}",
            recording_id=whole.recording.id,
            start=start,
            duration=0.4,
            text=item.symbol,
            custom={"source": "parts", "licence": "CC0"},
            alignment={"word": [item, item._replace(symbol="", start=item.end)]},
        )
        for i, (start, item) in enumerate(zip((0.0, 0.25), items, strict=True))
    ]
    whole.supervisions = parts
    assert import_cuts(lhotse.CutSet.from_cuts([whole]), tmp_path / "out") == (2, {})
    clips = read_manifest(tmp_path / "out" / "train.jsonl")
    assert [clip.audio for clip in clips] == ["audio/a_0.flac", "audio/a_1.flac"]
    sound = load_audio(tmp_path / "0.flac")
    torch.testing.assert_close(load_audio(clips[1].path), sound[4_000:10_400], atol=1e-4, rtol=0)
    aligned = read_alignments(tmp_path / "out" / "aligned.jsonl")
    assert aligned["audio/a_1.flac"].words == (AlignedWord(text="dog", start_ms=50, end_ms=370),)


def test_what_is_mixed_in_moves_no_word(data: tuple[Path, Path], tmp_path: Path) -> None:
    """Another recording lies below the words, and begins before them."""
    manifest, alignments = data
    first, second = export_cuts(read_manifest(manifest), read_alignments(alignments))
    mixed = second.drop_supervisions().mix(first, offset_other_by=0.15)
    trimmed = lhotse.CutSet.from_cuts([mixed])
    assert import_cuts(trimmed, tmp_path / "out")[0] == 1
    (aligned,) = read_alignments(tmp_path / "out" / "aligned.jsonl").values()
    assert aligned.words == read_alignments(alignments)["0.flac"].words
    (clip,) = read_manifest(tmp_path / "out" / "train.jsonl")
    both = load_audio(tmp_path / "1.flac")[2_400:][:12_800] + load_audio(tmp_path / "0.flac")
    torch.testing.assert_close(load_audio(clip.path), both.clamp(-1, 1), atol=1e-3, rtol=0)


def test_what_a_cut_does_to_its_sound_is_done(data: tuple[Path, Path], tmp_path: Path) -> None:
    manifest, alignments = data
    cuts = export_cuts(read_manifest(manifest), read_alignments(alignments))
    import_cuts(cuts.perturb_volume(0.5), tmp_path / "soft")
    (soft, _) = read_manifest(tmp_path / "soft" / "train.jsonl")
    torch.testing.assert_close(load_audio(soft.path), load_audio(tmp_path / "0.flac") / 2, atol=1e-4, rtol=0)


def test_clips_without_text_are_counted_and_facts_must_be_stated(
    data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cuts = export_cuts(read_manifest(data[0]), {})
    first, second = cuts
    first.supervisions[0].text = " "
    second.supervisions[0].custom = None
    path = tmp_path / "cuts.jsonl"
    cuts = lhotse.CutSet.from_cuts([first, second])
    cuts.to_file(path)
    assert main(["import", str(path), "--out", str(tmp_path / "a")]) == 2
    assert "1.flac states no source or licence; give --source and --licence" in capsys.readouterr().err
    facts = ["--source", "mine", "--licence", "own"]
    assert main(["import", str(path), "--out", str(tmp_path / "b"), *facts]) == 0
    assert capsys.readouterr().out == "1 clips, 1 left out\n     1  no text\n"
    (clip,) = read_manifest(tmp_path / "b" / "train.jsonl")
    assert (clip.source, clip.licence) == ("mine", "own")
    twice = lhotse.CutSet.from_cuts([second, second.with_id("other")])
    with pytest.raises(ConfigError, match=r"two supervisions would be audio/1\.flac\.flac"):
        import_cuts(twice, tmp_path / "c", source="mine", licence="own")


# -- batches ---------------------------------------------------------------------------------------------------------

LENGTHS = [500 + 37 * (i * 7919 % 200) for i in range(120)]


@pytest.mark.parametrize("lengths", [LENGTHS, [900], [900, 900, 900], [500, 9000]])
def test_all_clips_come_once_in_batches_that_fit(lengths: list[int]) -> None:
    order = BucketedOrder(lengths, batch_seconds=20.0, seed=1)
    for epoch in range(2):
        seen: list[int] = []
        while len(seen) < len(lengths):
            batch = order.take()
            assert order.place[0] == epoch
            held = [lengths[i] for i in batch]
            assert sum(held) - max(held) <= 20_000
            seen += batch
        assert sorted(seen) == list(range(len(lengths)))


def test_a_batch_holds_like_lengths_and_hardly_any_padding() -> None:
    order = BucketedOrder(LENGTHS, batch_seconds=20.0, seed=1)
    batches: list[list[int]] = []
    while order.place[0] == 0 and sum(map(len, batches)) < len(LENGTHS):
        batches.append([LENGTHS[i] for i in order.take()])
    padded = sum(len(batch) * max(batch) for batch in batches)
    assert padded < 1.25 * sum(LENGTHS)  # in batches as they come it is 1.8


def test_the_seed_sets_the_order_and_epochs_differ() -> None:
    def taken(seed: int, count: int = 60) -> list[list[int]]:
        order = BucketedOrder(LENGTHS, batch_seconds=20.0, seed=seed)
        return [order.take() for _ in range(count)]

    first = taken(1)
    assert first == taken(1)
    assert first != taken(2)
    epochs = list(chain(*first))
    assert epochs[:120] != epochs[120:240]


@pytest.mark.parametrize("count", [0, 3, 50])
def test_an_order_goes_on_from_its_place(count: int) -> None:
    order, again = (BucketedOrder(LENGTHS, batch_seconds=20.0, seed=1) for _ in range(2))
    for _ in range(count):
        order.take()
    again.go_to(order.place)
    assert [again.take() for _ in range(40)] == [order.take() for _ in range(40)]
    assert again.place == order.place


def test_clips_that_fit_no_batch_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"2 clips, the longest of 3000 ms, do not fit batches of 2\.0 s"):
        BucketedOrder([500, 3000], batch_seconds=2.0, seed=1)
    with pytest.raises(ConfigError, match="0 clips"):
        BucketedOrder([], batch_seconds=2.0, seed=1)


def test_without_lhotse_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lhotse", None)
    with pytest.raises(ConfigError, match=r"pip install 'earlybird-asr\[train\]'"):
        BucketedOrder([500], batch_seconds=2.0, seed=1)
