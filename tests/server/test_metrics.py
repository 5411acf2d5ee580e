from asr.words import DecodeStats, DraftCount, Word
from server.metrics import Metrics
from server.worker import Report
from streaming.batcher import Said
from streaming.events import Closed, Heartbeat, Words


def figures(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def word(end_ms: int, emitted_ms: int) -> Word:
    return Word(text="a", start_ms=0, end_ms=end_ms, emitted_ms=emitted_ms, confidence=1.0)


def test_words_are_counted_by_their_delay_on_both_clocks() -> None:
    metrics = Metrics()
    event = Words(text=" a a", words=(word(100, 550), word(200, 1_150)), first=0)
    metrics.report(Report(said={"s1": [Said(event=event, wall_ms=(470, None))]}))
    found = figures(metrics)
    assert found["earlybird_words_total"] == 2
    assert found['earlybird_word_delay_seconds_bucket{clock="audio",le="0.5"}'] == 1
    assert found['earlybird_word_delay_seconds_bucket{clock="audio",le="1.0"}'] == 2
    assert found['earlybird_word_delay_seconds_count{clock="wall"}'] == 1
    assert found['earlybird_word_delay_seconds_sum{clock="wall"}'] == 0.47


def test_steps_and_their_fill() -> None:
    metrics = Metrics()
    metrics.report(Report())
    metrics.report(
        Report(rows=3, took_ms=90.0, said={"s1": [Said(event=Heartbeat(received_ms=500, processed_ms=300))]})
    )
    found = figures(metrics)
    assert found["earlybird_step_seconds_count"] == 1
    assert found['earlybird_step_seconds_bucket{le="0.1"}'] == 1
    assert found['earlybird_step_seconds_bucket{le="0.08"}'] == 0
    assert found['earlybird_step_rows_bucket{le="3.0"}'] == 1
    assert found["earlybird_lag_seconds_sum"] == 0.2


def test_ends_by_reason_with_what_they_cost() -> None:
    metrics = Metrics()
    stats = DecodeStats(
        decoder_calls=5, watchdog_re_anchors=2, drafts={"ctc": DraftCount(proposed=(3, 2), accepted=(3, 1))}
    )
    metrics.report(Report(said={"s1": [Said(event=Closed(audio_ms=4_000, stats=stats), reason="idle")]}))
    found = figures(metrics)
    assert found['earlybird_sessions_closed_total{reason="idle"}'] == 1
    assert found["earlybird_audio_seconds_total"] == 4
    assert found["earlybird_decoder_calls_total"] == 5
    assert found["earlybird_watchdog_re_anchors_total"] == 2
    assert found['earlybird_drafts_total{drafter="ctc",result="accepted"}'] == 4
    assert found['earlybird_drafts_total{drafter="ctc",result="rejected"}'] == 1


def test_servers_do_not_share_figures() -> None:
    first, second = Metrics(), Metrics()
    first.opened.inc()
    assert figures(second)["earlybird_sessions_opened_total"] == 0
