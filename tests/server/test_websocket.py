"""Sessions over a real socket, with a recogniser whose speech is known."""

import pytest

from asr.model import Model
from tests.scripted import say, scripted_model
from tests.server.live_server import eventually, run, serving, session


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("scripted"))


def test_audio_in_words_out_and_a_goodbye_with_the_delays(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server, session(server) as one:
            await one.audio(say(model, "the don't a"))
            await one.say("end")
            closed = await one.until("closed")
            assert one.text == "the don't a"
            assert closed["reason"] == "end"
            assert closed["delay_ms"]["audio"]["words"] == closed["delay_ms"]["wall"]["words"] == 3
            words = [word for message in one.of("words") for word in message["words"]]
            assert [word["text"] for word in words] == ["the", "don't", "a"]
            for word in words:
                assert 0 <= word["start_ms"] < word["end_ms"]
                assert word["delay_ms"]["audio"] == word["emitted_ms"] - word["end_ms"]
                assert isinstance(word["delay_ms"]["wall"], int)
            assert [segment["text"] for segment in one.of("segment")] == ["the don't a"]
            seqs = [message["seq"] for message in one.messages if "seq" in message]
            assert seqs == list(range(1, len(seqs) + 1))
            await one.socket.wait_closed()
            assert one.socket.close_code == 1000
            await eventually(lambda: not len(server.registry))

    run(scenario())


def test_flushes(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server, session(server) as one:
            await one.say("flush", id="empty")
            assert (await one.until("flushed"))["id"] == "empty"
            await one.audio(say(model, "the"))
            await one.say("flush", id=1)
            await one.say("flush", id=2)
            await one.audio(say(model, "a"))
            await one.say("end")
            await one.until("closed")
            assert [message["id"] for message in one.of("flushed")] == ["empty", 1, 2]
            kinds = [m["type"] for m in one.messages if m["type"] in ("words", "flushed")]
            assert kinds == ["flushed", "words", "flushed", "flushed", "words"]

    run(scenario())
