"""Frames as the agent sends them, and what a user sees of them."""

from __future__ import annotations

from collections.abc import Sequence

from pumasi.cli.view.printer import HOLD, Printer
from pumasi.core.frames import Frame, OpenLines, parse_frames

MS = 1763240000123


class Screen:
    """Remembers what was written, and to which stream."""

    def __init__(self) -> None:
        self.writes: list[tuple[str, bytes]] = []

    def __call__(self, to_stderr: bool, data: bytes) -> None:
        self.writes.append(("stderr" if to_stderr else "stdout", data))

    def on(self, stream: str) -> bytes:
        return b"".join(data for name, data in self.writes if name == stream)


def frames(*texts: tuple[int, bytes, bytes]) -> list[Frame]:
    return [Frame(rank, seq, MS, kind, text) for seq, (rank, kind, text) in enumerate(texts)]


def shown(recorded: Sequence[Frame], *, prefixed: bool = True, exact: bool = False, colour: bool = False) -> Screen:
    screen = Screen()
    printer = Printer(screen, prefixed=prefixed, exact=exact, colour=colour)
    printer.output(recorded)
    printer.finish()
    return screen


def test_one_process_is_shown_byte_by_byte_as_it_wrote() -> None:
    wrote = frames((0, b"~", b" 1/10"), (0, b"~", b" 2/10"), (0, b"|", b"done \xff\x00"), (0, b">", b"no newline"))
    assert shown(wrote, prefixed=False, exact=True).on("stdout") == b" 1/10\r 2/10\rdone \xff\x00\nno newline"


def test_each_stream_goes_where_the_program_sent_it_and_the_order_is_kept() -> None:
    wrote = frames((0, b"|", b"one"), (0, b"|", b"two"), (0, b":", b"oh"), (0, b"|", b"three"))
    assert shown(wrote, prefixed=False, exact=True).writes == [
        ("stdout", b"one\ntwo\n"),
        ("stderr", b"oh\n"),
        ("stdout", b"three\n"),
    ]


def test_several_processes_have_their_rank_in_front_of_each_line() -> None:
    wrote = frames((0, b"|", b"zero"), (3, b"|", b"three"), (3, b":", b"oh"), (0, b"|", b""))
    screen = shown(wrote)
    assert screen.on("stdout") == b"[0] zero\n[3] three\n[0] \n"
    assert screen.on("stderr") == b"[3] oh\n"


def test_on_a_terminal_the_ranks_have_colours() -> None:
    assert shown(frames((1, b"|", b"hello")), colour=True).on("stdout") == b"\x1b[33m[1]\x1b[0m hello\n"


def test_a_long_line_that_comes_in_pieces_is_not_torn_by_another_rank() -> None:
    wrote = frames((0, b">", b"aa"), (1, b"|", b"one"), (0, b">", b"bb"), (0, b":", b"err"), (0, b"|", b"cc"))
    assert shown(wrote).on("stdout") == b"[1] one\n[0] aabbcc\n"


def test_a_line_without_an_end_is_shown_in_parts_and_never_held_as_a_whole() -> None:
    screen = Screen()
    printer = Printer(screen, prefixed=True)
    piece = b"x" * 4096
    for _ in range(25_000):
        printer.output(frames((0, b">", piece)))
        assert len(printer.unfinished(0)) < HOLD
    printer.output(frames((0, b"|", b"end")))
    text = screen.on("stdout")
    assert text.replace(b"[0] ", b"").replace(b"\n", b"") == piece * 25_000 + b"end"
    assert max(map(len, text.split(b"\n"))) < HOLD + 4096 + len(b"[0] ")


def test_of_a_progress_bar_only_what_stays_is_shown() -> None:
    wrote = frames(
        (0, b"^", b""), (0, b"^", b"10%"), (0, b"^", b"50%"), (1, b"|", b"other"), (0, b":", b"100%"), (0, b"|", b"bye")
    )
    screen = shown(wrote)
    assert screen.on("stderr") == b"[0] 100%\n"
    assert screen.on("stdout") == b"[1] other\n[0] bye\n"


def test_a_progress_bar_that_never_ends_its_line_leaves_its_last_state() -> None:
    assert shown(frames((0, b"~", b"10%"), (0, b"~", b"90%"))).on("stdout") == b"[0] 90%\n"


def test_windows_line_ends_are_line_ends() -> None:
    assert (
        shown(frames((0, b"~", b"hello"), (0, b"|", b""), (0, b"|", b"next"))).on("stdout") == b"[0] hello\n[0] next\n"
    )


def test_the_last_words_without_a_newline_are_shown_at_the_end() -> None:
    assert shown(frames((2, b">", b"Killed"))).on("stdout") == b"[2] Killed\n"


def test_what_stands_on_the_current_line_is_known_while_it_stands_there() -> None:
    printer = Printer(Screen(), prefixed=True)
    printer.output(frames((0, b"^", b"40%"), (1, b">", b"Epoch")))
    assert printer.unfinished(0) == b"40%"
    assert printer.unfinished(1) == b"Epoch"
    printer.output(frames((0, b":", b"done"), (1, b"|", b" 2")))
    assert printer.unfinished(0) == printer.unfinished(1) == b""


def test_many_lines_are_written_at_once() -> None:
    chunk = b"".join(b"%d.%d %d|loss: 0.31\n" % (line % 4, line, MS) for line in range(1000))
    screen = shown(list(parse_frames(chunk)))
    assert len(screen.writes) == 1
    assert screen.on("stdout").count(b"\n") == 1000


def two_attempts(*kinds: bytes) -> list[Frame]:
    """A rank begins a line and is killed; its next attempt, whose numbers start again, goes on from the beginning."""
    first = [Frame(1, seq, MS, kind, b"1/70 loss: 0.5") for seq, kind in enumerate(kinds, start=1)]
    return [*first, Frame(1, 1, MS, b"|", b"attempt 1")]


def test_a_line_that_an_attempt_left_open_is_closed_before_the_next_one() -> None:
    assert shown(two_attempts(b">"), prefixed=False, exact=True).on("stdout") == b"1/70 loss: 0.5\nattempt 1\n"
    assert shown(two_attempts(b"~"), prefixed=False, exact=True).on("stdout") == b"1/70 loss: 0.5\r\nattempt 1\n"
    assert shown(two_attempts(b">")).on("stdout") == b"[1] 1/70 loss: 0.5\n[1] attempt 1\n"
    assert shown(two_attempts(b"~", b"~")).on("stdout") == b"[1] 1/70 loss: 0.5\n[1] attempt 1\n"


def test_a_line_that_was_left_open_is_closed_on_the_stream_where_it_stands() -> None:
    screen = shown(two_attempts(b"}"), prefixed=False, exact=True)
    assert screen.writes == [("stderr", b"1/70 loss: 0.5\n"), ("stdout", b"attempt 1\n")]


def test_an_attempt_that_comes_in_another_batch_closes_the_line_too() -> None:
    screen = Screen()
    printer = Printer(screen, prefixed=False, exact=True)
    for frame in two_attempts(b">"):
        printer.output([frame])
    assert screen.on("stdout") == b"1/70 loss: 0.5\nattempt 1\n"


def test_what_has_been_closed_is_not_closed_again() -> None:
    closed = OpenLines().closing(two_attempts(b">"))
    assert len(closed) == 3
    assert OpenLines().closing(closed) == closed


def test_the_last_attempt_gains_no_newline() -> None:
    assert shown(two_attempts(b">")[:1], prefixed=False, exact=True).on("stdout") == b"1/70 loss: 0.5"
    empty = [Frame(0, 1, MS, b"|", b"one"), Frame(0, 2, MS, b"~", b""), Frame(0, 1, MS, b"|", b"two")]
    assert shown(empty, prefixed=False, exact=True).on("stdout") == b"one\n\rtwo\n"


def test_an_end_of_an_attempt_closes_the_lines_of_its_ranks_and_no_others() -> None:
    screen = Screen()
    printer = Printer(screen, prefixed=True)
    printer.output(frames((0, b">", b"zero"), (1, b">", b"one")))
    printer.end_attempt([1])
    assert screen.on("stdout") == b"[1] one\n"
    printer.end_attempt()
    assert screen.on("stdout") == b"[1] one\n[0] zero\n"
