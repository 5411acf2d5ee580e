import subprocess
import sys

import pytest

import asr
from tests.test_layers import ROOT


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert modules_after("import asr, streaming").isdisjoint({"torch", "numpy", "tokenizers", "soundfile"})
    assert modules_after("import asr; asr.Word, asr.Transcript, asr.EarlybirdError").isdisjoint({"torch"})


def test_every_public_name_is_there() -> None:
    assert {"load", "transcribe", "Transcript", "Word", "EarlybirdError"} <= set(asr.__all__)
    for name in asr.__all__:
        assert getattr(asr, name).__name__ == name
        assert name in dir(asr)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'asr' has no attribute 'transcribble'"):
        _ = asr.transcribble
