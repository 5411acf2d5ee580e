"""The caption page in a real Chromium, with a recording as its microphone and the model that is shipped."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import asr
from asr.audio import open_audio
from asr.model import Model
from server.pages import FILES
from server.websocket import CaptionServer
from tests.scripted import scripted_model
from tests.server.live_thread import served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CLIP = Path(__file__).resolve().parent.parent.parent / "samples" / "audio" / "2952-407-0000.opus"
SECONDS = 240.0

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium"),
]
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
DESKTOP = {"viewport": {"width": 1280, "height": 800}}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clip as a WAV, half a second of silence before it."""
    samples = np.concatenate([np.zeros(8_000, np.float32), *open_audio(CLIP).blocks()])
    path = tmp_path_factory.mktemp("page") / "microphone.wav"
    soundfile.write(path, samples, 16_000, subtype="PCM_16")
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[CaptionServer]:
    with served(asr.load("earlybird-en"), max_sessions=2, delay_ms=480, chunk_ms=320) as running:
        yield running


@pytest.fixture(scope="module")
def browser(recording: Path) -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--use-fake-device-for-media-stream",
                f"--use-file-for-fake-audio-capture={recording}%noloop",
            ],
        )
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, server: CaptionServer) -> Iterator[Callable[..., Any]]:
    """Opens the page; an error of its scripts fails the test."""
    contexts, errors = [], []

    def open_page(*, microphone: bool = True, **options: Any) -> Any:
        context = browser.new_context(**{**DESKTOP, **options}, permissions=["microphone"] if microphone else [])
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"http://127.0.0.1:{server.port}/")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


def until(page: Any, condition: Callable[[], bool]) -> None:
    """Waits until it is so; the page's policy forbids waiting inside it."""
    limit = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < limit, page.inner_text("body")
        page.wait_for_timeout(50)


def words_on(page: Any) -> int:
    return int(page.inner_text("#count"))


def test_speech_becomes_captions_with_delays_and_subtitles(opened: Callable[..., Any], tmp_path: Path) -> None:
    page = opened()
    page.click("#microphone")
    seen, tails = "", set()
    while words_on(page) < 25:
        text, tail = page.inner_text("#captions p >> nth=0 >> span >> nth=0"), page.inner_text(".tail")
        assert text.startswith(seen), "committed text changed"
        seen = text
        tails.add(tail)
        page.wait_for_timeout(50)
    assert any(tails), "no preview was ever shown"
    until(page, lambda: page.locator("#chart circle").count() >= 25)
    assert page.inner_text("#p50").endswith(" s")
    assert "words, median" in page.get_attribute("#chart", "aria-label")
    page.click("#stop")
    until(page, lambda: page.inner_text("#status") == "Finished")
    assert "Japanese temples" in page.inner_text("#captions")
    assert "Japanese temples" in page.text_content("#spoken"), "a screen reader hears finished sentences"
    files = {}
    for kind in ("srt", "vtt", "json"):
        with page.expect_download() as download:
            page.click(f"#{kind}")
        assert download.value.suggested_filename.endswith(f".{kind}")
        files[kind] = Path(download.value.path()).read_text(encoding="utf-8")
    assert files["srt"].startswith("1\n00:00:")
    assert "Japanese temples" in files["srt"]
    assert all(len(line) <= 42 for line in files["srt"].splitlines())
    assert files["vtt"].startswith("WEBVTT\n\n00:00:")
    words = json.loads(files["json"])["words"]
    assert len(words) == words_on(page)
    assert set(words[0]) == {"text", "start_ms", "end_ms", "emitted_ms", "delay_ms", "confidence"}


def test_a_phrase_added_mid_stream_changes_the_text(opened: Callable[..., Any]) -> None:
    page = opened()
    page.click("#microphone")
    until(page, lambda: "courts" in page.inner_text("#captions"))
    page.locator("#boost").fill("3")
    page.fill("#phrases", "Hakata\nJodo")
    page.locator("#delay").fill("560")
    until(page, lambda: "sect" in page.inner_text("#captions"))
    page.wait_for_timeout(3_000)  # of recording: the end of the sentence
    page.click("#stop")
    until(page, lambda: page.inner_text("#status") == "Finished")
    assert (page.inner_text("#delay-shown"), page.inner_text("#boost-shown")) == ("560 ms", "3.0")
    assert "the Jodo sect" in page.inner_text("#captions"), "without the phrases it is heard as Jodos"
    assert "at hakata" in page.inner_text("#captions").lower(), "and this as Haakata"


def test_a_dropped_file_is_played_out_in_real_time(opened: Callable[..., Any], recording: Path) -> None:
    page = opened(**PHONE)
    started = time.monotonic()
    page.set_input_files("#file", str(recording))
    until(page, lambda: page.inner_text("#status") == "Finished")
    assert time.monotonic() - started >= soundfile.info(recording).duration - 0.2
    assert words_on(page) > 30
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]  # type: ignore[index]


def test_a_broken_connection_is_gone_on_with(opened: Callable[..., Any], server: CaptionServer) -> None:
    page = opened()
    page.click("#microphone")
    until(page, lambda: words_on(page) >= 8)
    before = page.inner_text("#captions p >> nth=0 >> span >> nth=0")
    for connection in list(server._connections.values()):
        assert server._loop is not None
        server._loop.call_soon_threadsafe(connection._socket.transport.abort)
    until(page, lambda: words_on(page) >= 22)
    page.click("#stop")
    until(page, lambda: page.inner_text("#status") == "Finished")
    text = page.inner_text("#captions")
    assert text.startswith(before)
    assert text.count("Japanese temples") == 1


def test_a_refused_microphone_is_explained(opened: Callable[..., Any]) -> None:
    page = opened(microphone=False)
    page.click("#microphone")
    until(page, lambda: page.is_visible("#message"))
    assert "The microphone was refused. Allow it for this page" in page.inner_text("#message")
    assert page.is_visible("#microphone")


def test_a_page_that_is_not_secure_says_how_it_would_be(opened: Callable[..., Any], server: CaptionServer) -> None:
    page = opened()
    page.add_init_script("Object.defineProperty(window, 'isSecureContext', { value: false })")
    page.reload()
    assert page.is_disabled("#microphone")
    assert "Open this page over https" in page.inner_text("#message")
    assert page.is_enabled("#choose"), "files work all the same"


def test_the_page_can_be_used_with_the_keyboard_alone(opened: Callable[..., Any]) -> None:
    page = opened()
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    for control in ("captions", "microphone", "choose", "delay", "SUMMARY"):
        assert control in reached
    page.focus("#microphone")
    page.keyboard.press("Enter")
    until(page, lambda: page.evaluate("document.activeElement.id") == "stop")
    until(page, lambda: words_on(page) >= 1)
    page.keyboard.press("Enter")
    until(page, lambda: page.inner_text("#status") == "Finished")


def test_every_control_has_a_name(opened: Callable[..., Any]) -> None:
    page = opened()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input:not([hidden]), textarea, svg[role=img]')]
            .filter((e) => !(e.labels?.length || e.textContent.trim() || e.ariaLabel)).map((e) => e.id)"""
    )
    assert nameless == []


def test_all_of_it_comes_from_the_server_itself(opened: Callable[..., Any], server: CaptionServer) -> None:
    page = opened()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    assert len(asked) >= len(FILES) - 1
    assert all(url.startswith(f"http://127.0.0.1:{server.port}/") for url in asked)


CUES = """async ([segments]) => {
  const { cues, srt, vtt } = await import('/captions.js');
  return [cues(segments), srt(segments), vtt(segments)];
}"""


def test_cues(opened: Callable[..., Any]) -> None:
    page = opened()

    def spoken(text: str, ms: int = 400) -> list[dict[str, object]]:
        return [
            {"text": word, "start_ms": ms * at, "end_ms": ms * at + ms - 50} for at, word in enumerate(text.split())
        ]

    def made(*segments: list[dict[str, object]]) -> Any:
        return page.evaluate(CUES, [list(segments)])

    assert made() == [[], "", "WEBVTT\n"]
    cues, srt, vtt = made(spoken("Fish & <chips>."))
    assert srt == "1\n00:00:00,000 --> 00:00:01,150\nFish & <chips>.\n"
    assert vtt == "WEBVTT\n\n00:00:00.000 --> 00:00:01.150\nFish &amp; &lt;chips&gt;.\n"
    cues, _, _ = made(spoken(" ".join(["word"] * 100)))
    assert all(len(cue["lines"]) <= 2 and max(map(len, cue["lines"])) <= 42 for cue in cues)
    assert all(cue["end_ms"] - cue["start_ms"] <= 7_000 for cue in cues)
    assert " ".join(line for cue in cues for line in cue["lines"]) == " ".join(["word"] * 100)
    cues, _, _ = made([{"text": "a", "start_ms": 0, "end_ms": 20}], [{"text": "b", "start_ms": 100, "end_ms": 120}])
    assert [(cue["start_ms"], cue["end_ms"]) for cue in cues] == [(0, 100), (100, 400)]


def test_the_page_under_a_prefix_of_a_proxy(opened: Callable[..., Any]) -> None:
    page = opened()
    found = page.evaluate(
        """async () => {
          const { streamUrl } = await import('/stream.js');
          return ['http://a:1/', 'https://b.org/captions/', 'https://b.org/captions/?x=1#y'].map(streamUrl);
        }"""
    )
    assert found == ["ws://a:1/v1/stream", "wss://b.org/captions/v1/stream", "wss://b.org/captions/v1/stream"]


def test_a_server_that_wants_a_token_is_given_it(browser: Any, tmp_path: Path) -> None:
    model: Model = scripted_model(tmp_path)
    token = "0123456789abcdef"
    with served(model, tokens=(token,), delay_ms=80, chunk_ms=80) as guarded:
        context = browser.new_context(permissions=["microphone"])
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{guarded.port}/")
        page.click("#microphone")
        until(page, lambda: page.is_visible("#message"))
        assert "a bearer token of this server is needed" in page.inner_text("#message")
        page.fill("#token", token)
        page.click("#microphone")
        until(page, lambda: page.inner_text("#status") == "Live")
        context.close()
