import io

from rich.console import Console

from server.progress import BarProgress, QuietProgress, batch_progress


def terminal() -> tuple[Console, io.StringIO]:
    screen = io.StringIO()
    return Console(file=screen, force_terminal=True, width=120, legacy_windows=False), screen


def test_without_a_terminal_there_are_only_the_lines() -> None:
    stream = io.StringIO()
    progress = batch_progress(stream)
    assert isinstance(progress, QuietProgress)
    progress.begin(files=2, seconds=7_200)
    progress.heard(16_000)
    progress.finished(expected=1.0, seconds=2.0)
    progress.log("error: x")
    progress.close()
    assert stream.getvalue() == "error: x\n"


def test_on_a_terminal_there_are_files_hours_and_what_is_left() -> None:
    console, screen = terminal()
    progress = BarProgress(console)
    progress.begin(files=2, seconds=7_200)
    progress.heard(3_600 * 16_000)
    progress.finished(expected=3_000.0, seconds=6_600.0)
    progress.log("error: [b]x[/b]")
    progress.close()
    shown = screen.getvalue()
    assert "error: [b]x[/b]" in shown, "a file's name is no markup"
    (row,) = progress._bar.tasks
    assert (row.completed, row.total) == (3_600, 10_800), "what a file was longer than expected is added"
    assert row.fields == {"done": 1, "files": 2, "hours": "1.00/3.00 h"}
    assert row.visible


def test_more_audio_than_expected_is_no_more_than_all() -> None:
    progress = BarProgress(terminal()[0])
    progress.begin(files=1, seconds=1.0)
    progress.heard(32_000)
    progress.close()
    (row,) = progress._bar.tasks
    assert row.completed == row.total == 2.0
