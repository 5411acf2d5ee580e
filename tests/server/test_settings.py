from pathlib import Path

import pytest

from asr.errors import ConfigError
from server.settings import (
    ServeSettings,
    bearer,
    check_exposure,
    is_loopback,
    origin_fits,
    read_tokens,
    token_fits,
)

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tokens": ("short",)}, "a bearer token has 5 characters; at least 16"),
        ({"tokens": (TOKEN + "é",)}, "all ASCII"),
        ({"origins": ("example.org",)}, "origin is 'example.org'"),
        ({"origins": ("https://example.org/path",)}, "scheme and host"),
        ({"max_sessions": 0}, "max_sessions is 0"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ServeSettings(**settings)  # type: ignore[arg-type]


def test_a_server_that_others_can_reach_needs_tokens_or_the_word() -> None:
    for host in ("0.0.0.0", "192.168.1.2", "::", "example.org"):
        settings = ServeSettings(host=host)
        with pytest.raises(ConfigError, match=r"can be reached by others; give --tokens FILE, or --open"):
            check_exposure(settings, open_to_all=False)
        check_exposure(settings, open_to_all=True)
        check_exposure(ServeSettings(host=host, tokens=(TOKEN,)), open_to_all=False)
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert is_loopback(host)
        check_exposure(ServeSettings(host=host), open_to_all=False)


def test_tokens_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# ours\n\n  {TOKEN}  \nsecond-token-of-ours\n")
    assert read_tokens(path) == (TOKEN, "second-token-of-ours")
    path.write_text("# nobody\n")
    with pytest.raises(ConfigError, match="has no token"):
        read_tokens(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(tmp_path / "none")


def test_tokens() -> None:
    known = (TOKEN, "another-token-here")
    assert token_fits(TOKEN, known)
    assert token_fits("another-token-here", known)
    for wrong in (None, "", TOKEN[:-1], TOKEN + "0", "é" * 16):
        assert not token_fits(wrong, known)
    assert bearer(f"bearer  {TOKEN} ") == TOKEN
    assert bearer(None) is bearer("Basic x") is None


@pytest.mark.parametrize(
    ("origin", "host", "fits"),
    [
        (None, "a.org", True),  # no browser
        ("http://127.0.0.1:8765", "127.0.0.1:8765", True),
        ("http://localhost:8765", "localhost:8765", True),
        ("http://[::1]:8765", "[::1]:8765", True),
        ("https://192.168.1.2", "192.168.1.2", True),
        ("http://127.0.0.1:8000", "127.0.0.1:8765", False),  # another server of the same machine
        ("http://evil.com:8765", "evil.com:8765", False),  # a name that was made to point here
        ("https://mine.org", "mine.org", True),  # listed
        ("https://mine.org", "127.0.0.1", True),
        ("http://mine.org", "mine.org", False),
        ("null", "127.0.0.1:8765", False),
        ("http://127.0.0.1:8765", None, False),
        ("http://[", "127.0.0.1", False),
    ],
)
def test_origins(origin: str | None, host: str | None, fits: bool) -> None:
    assert origin_fits(origin, host, ("https://mine.org",)) is fits
