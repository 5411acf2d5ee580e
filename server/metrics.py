"""What the server measures, in Prometheus's format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from server.worker import Report
from streaming.batcher import Said
from streaming.events import Closed, Heartbeat, Words

CONTENT_TYPE = CONTENT_TYPE_LATEST
DELAY_BUCKETS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
STEP_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.16, 0.24, 0.32, 0.5, 1.0, 2.0, 5.0)
ROW_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


class Metrics:
    """One server's figures, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.sessions = Gauge(
            "earlybird_sessions", "Sessions, by whether their client is there", ["client"], registry=registry
        )
        self.slots = Gauge("earlybird_slots", "Sessions that can live at once", registry=registry)
        self.connections = Gauge("earlybird_connections", "Open websocket connections", registry=registry)
        self.opened = Counter("earlybird_sessions_opened", "Sessions begun", registry=registry)
        self.resumed = Counter("earlybird_sessions_resumed", "Sessions gone on with", registry=registry)
        self.closed = Counter("earlybird_sessions_closed", "Sessions ended, by reason", ["reason"], registry=registry)
        self.refused = Counter("earlybird_refusals", "Connections refused, by error code", ["code"], registry=registry)
        self.errors = Counter(
            "earlybird_errors", "Errors told to clients in sessions, by code", ["code"], registry=registry
        )
        self.words = Counter("earlybird_words", "Words committed", registry=registry)
        self.audio = Counter("earlybird_audio_seconds", "Audio of sessions that ended", registry=registry)
        self.calls = Counter("earlybird_decoder_calls", "Decoder calls of sessions that ended", registry=registry)
        self.drafts = Counter(
            "earlybird_drafts",
            "Outputs drafted in sessions that ended, by drafter and whether they were right",
            ["drafter", "result"],
            registry=registry,
        )
        self.re_anchors = Counter(
            "earlybird_watchdog_re_anchors", "Times the watchdog intervened in sessions that ended", registry=registry
        )
        self.delay = Histogram(
            "earlybird_word_delay_seconds",
            "From the end of a word to its commitment, on the audio's clock and on the wall's",
            ["clock"],
            buckets=DELAY_BUCKETS,
            registry=registry,
        )
        self.step = Histogram(
            "earlybird_step_seconds", "Time of one step of all that were due", buckets=STEP_BUCKETS, registry=registry
        )
        self.rows = Histogram("earlybird_step_rows", "Sessions in a step", buckets=ROW_BUCKETS, registry=registry)
        self.lag = Histogram(
            "earlybird_lag_seconds",
            "Audio taken for decoding and not decoded, after a session's block",
            buckets=DELAY_BUCKETS[1:],
            registry=registry,
        )

    def text(self) -> bytes:
        """All figures."""
        return generate_latest(self._registry)

    def report(self, report: Report) -> None:
        """Counts a turn of the worker."""
        if report.rows:
            self.step.observe(report.took_ms / 1000)
            self.rows.observe(report.rows)
        for said in report.said.values():
            for one in said:
                self._said(one)

    def _said(self, said: Said) -> None:
        event = said.event
        if isinstance(event, Words):
            self.words.inc(len(event.words))
            for word, wall_ms in zip(event.words, said.wall_ms, strict=True):
                self.delay.labels("audio").observe(word.delay_ms / 1000)
                if wall_ms is not None:
                    self.delay.labels("wall").observe(wall_ms / 1000)
        elif isinstance(event, Heartbeat):
            self.lag.observe(event.lag_ms / 1000)
        elif isinstance(event, Closed):
            self.closed.labels(said.reason).inc()
            self.audio.inc(event.audio_ms / 1000)
            self.calls.inc(event.stats.decoder_calls)
            self.re_anchors.inc(event.stats.watchdog_re_anchors)
            for drafter, count in event.stats.drafts.items():
                self.drafts.labels(drafter, "accepted").inc(sum(count.accepted))
                self.drafts.labels(drafter, "rejected").inc(sum(count.proposed) - sum(count.accepted))
