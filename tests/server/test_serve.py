"""The server as a process: it starts, answers, and stops when it is told to."""

import asyncio
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from asr.errors import ConfigError
from asr.model import Model
from server.cli import main
from server.serve import serve_until_stopped, tls_context
from server.settings import ServeSettings
from tests.scripted import say, scripted_model
from tests.server.live_server import client, run, serving, session
from tests.server.live_thread import served

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("scripted"))


def get(port: int, path: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_page_health_and_metrics_come_from_the_same_port(model: Model) -> None:
    with served(model, delay_ms=80, chunk_ms=80) as server:
        assert "<title>Earlybird live captions</title>" in get(server.port, "/")[1]
        assert get(server.port, "/healthz") == (200, "alive\n")
        assert server.worker.warm.wait(30)
        assert get(server.port, "/readyz") == (200, "ready\n")
        assert "earlybird_slots 2.0" in get(server.port, "/metrics")[1]
        assert get(server.port, "/nowhere")[0] == 404
        assert get(server.port, "/v1/stream")[0] == 426, "a websocket is needed there"
        assert get(server.port, "/v1/stream", Origin="http://evil.com")[0] == 403


def test_tokens_guard_sessions_and_metrics(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model, tokens=(TOKEN,)) as server:
            for fields in ({}, {"token": "wrong"}, {"token": TOKEN + "x"}):
                async with client(server) as one:
                    await one.say("start", encoding="pcm_f32le", sample_rate=16_000, **fields)
                    error = await one.until("error")
                    assert (error["code"], error["fatal"]) == ("unauthorized", True)
                    assert TOKEN not in error["text"]
            async with session(server, token=TOKEN) as one:
                assert one.messages[0]["type"] == "ready"
            async with client(server, additional_headers={"Authorization": f"Bearer {TOKEN}"}) as one:
                await one.say("start", encoding="pcm_f32le", sample_rate=16_000)
                assert (await one.receive())["type"] == "ready"
            status, _ = await asyncio.to_thread(get, server.port, "/metrics")
            assert status == 401

    run(scenario())


def test_connections_are_limited(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model, max_sessions=1) as server:
            most = server.settings.max_connections
            server._open_sockets = most
            with pytest.raises(Exception, match="503"):
                async with client(server):
                    pass
            server._open_sockets = 0
            async with client(server):
                pass

    run(scenario())


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {cert} "
        "-addext subjectAltName=IP:127.0.0.1",
        shell=True,
        check=True,
        capture_output=True,
    )
    return cert, key


def test_tls(model: Model, tmp_path: Path) -> None:
    if not any((Path(folder) / "openssl").exists() for folder in os.environ["PATH"].split(os.pathsep)):
        pytest.skip("there is no openssl here to make a certificate")
    cert, key = certificate(tmp_path)
    context = tls_context(cert, key)
    assert context is not None
    trusting = ssl.create_default_context(cafile=str(cert))

    async def scenario() -> None:
        from server.client import StreamClient
        from server.listen import listen, to_pcm
        from server.websocket import CaptionServer

        settings = ServeSettings(port=0, delay_ms=80, chunk_ms=80)
        async with CaptionServer(model, settings, tls=context) as server:
            url = f"wss://127.0.0.1:{server.port}/v1/stream"
            shown: list[dict[str, object]] = []

            async def pieces():  # type: ignore[no-untyped-def]
                yield to_pcm(say(model, "the a"))

            one = StreamClient(url, {"encoding": "pcm_s16le", "sample_rate": 16_000}, tls=trusting)
            await listen(one, pieces(), shown.append, stop=asyncio.Event())
            assert "".join(str(message["text"]) for message in shown if message["type"] == "words") == "the a"

    run(scenario())


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    assert tls_context(None, None) is None
    with pytest.raises(ConfigError, match="needs both"):
        tls_context(tmp_path / "cert.pem", None)
    with pytest.raises(ConfigError, match="cannot be used"):
        tls_context(tmp_path / "cert.pem", tmp_path / "key.pem")


def test_an_address_that_is_taken(model: Model) -> None:
    with served(model, delay_ms=80, chunk_ms=80) as server:
        settings = ServeSettings(port=server.port, delay_ms=80, chunk_ms=80)
        with pytest.raises(ConfigError, match=f"127.0.0.1:{server.port} cannot be listened on"):
            asyncio.run(serve_until_stopped(model, settings, tls=None, scorer=None, log=lambda line: None))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--host", "0.0.0.0"], "can be reached by others"),
        (["--origin", "example.org"], "origin is 'example.org'"),
        (["--tls-cert", "a.pem"], "needs both --tls-cert and --tls-key"),
        (["--tokens", "/no/such/file"], "tokens cannot be read"),
        (["--max-sessions", "0"], "--max-sessions"),
        (["--model", "missing", "--max-sessions", "1"], "missing"),
    ],
)
def test_wrong_usage_ends_with_2(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *flags]) == 2
    assert says in capsys.readouterr().err


def test_listening_to_nobody_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    clip = Path(__file__).resolve().parent.parent.parent / "samples" / "audio" / "1034-121119-0000.opus"
    assert main(["listen", str(clip), "--url", "ws://127.0.0.1:9/v1/stream"]) == 1
    assert "ws://127.0.0.1:9/v1/stream" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_serves_the_shipped_model_and_stops_on_a_signal() -> None:
    command = [sys.executable, "-m", "server.cli", "serve", "--port", "0", "--max-sessions", "1"]
    program = "import sys; from server.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *command[3:]], stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert process.stderr is not None
    try:
        port = 0
        for line in process.stderr:
            if found := re.search(r"captions at http://127\.0\.0\.1:(\d+)/ with up to 1 sessions", line):
                port = int(found[1])
                break
        clip = Path(__file__).resolve().parent.parent.parent / "samples" / "audio" / "1034-121119-0000.opus"
        listened = subprocess.run(
            [sys.executable, "-c", program, "listen", str(clip), "--url", f"ws://127.0.0.1:{port}/v1/stream"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert listened.returncode == 0, listened.stderr
        assert len(listened.stdout.split()) >= 6
        assert "words, delay from a word's end to its commitment: median" in listened.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.stderr.close()
