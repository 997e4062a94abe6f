"""Events: what is written is read again, in this version, by an earlier one and by a later one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pumasi.cli.help import events_table
from pumasi.core import events
from pumasi.core.events import EVENTS, Event, kind_of, pack, to_json, unpack

RECORDED = Path(__file__).parent.parent / "recorded" / "0.1.0"


def sent(event: Event) -> Event:
    """Through JSON, as it crosses a process."""
    kind, data = json.loads(json.dumps(pack(event)))
    return unpack(kind, data)


@pytest.mark.parametrize("made", EVENTS)
def test_an_event_of_which_nothing_is_known_has_defaults(made: type[Event]) -> None:
    empty = unpack(made.kind, {})
    assert type(empty) is made
    assert sent(empty) == empty


def test_what_is_written_is_read_again() -> None:
    running = events.Running(task="train-1-0", numbers=(4, 2), attempt=1, ranks=[{"rank": 0, "node": "a"}])
    assert sent(running) == running
    assert isinstance(running, events.Running)
    assert running.first == 4


def test_what_says_nothing_is_left_out() -> None:
    assert to_json(events.Starting(attempt=2)) == {"attempt": 2}
    assert to_json(events.RankEnded(rank=1, code=0)) == {"attempt": 0, "rank": 1, "code": 0, "signal": None}


def test_every_packed_event_has_the_version() -> None:
    assert pack(events.Note(text="hello")) == ("note", {"v": events.VERSION, "text": "hello"})


def test_fields_of_a_later_version_are_kept_and_passed_on() -> None:
    later = unpack("note", {"v": 7, "text": "hello", "colour": "blue"})
    assert isinstance(later, events.Note)
    assert (later.text, later.others) == ("hello", {"colour": "blue"})
    assert to_json(sent(later)) == {"text": "hello", "colour": "blue"}


def test_an_event_of_a_later_version_is_kept_and_passed_on() -> None:
    later = unpack("moved", {"v": 7, "to": "mars"})
    assert kind_of(later) == "moved"
    assert sent(later) == later
    assert to_json(later) == {"to": "mars"}


def test_events_differ_by_kind_and_by_content() -> None:
    assert events.Note(text="a") == events.Note(text="a")
    assert events.Note(text="a") != events.Note(text="b")
    assert unpack("some", {}) != unpack("other", {})


@pytest.mark.parametrize("name", ["together", "average", "detached"])
def test_the_events_of_the_version_before_are_known(name: str) -> None:
    record = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    told = json.loads(record["data"]["events.json"])
    for _, kind, data in told:
        event = unpack(kind, data)
        assert type(event) in EVENTS
        assert event.others == {}
        assert {**to_json(event), **data} == to_json(event)


def test_the_reference_has_every_event_with_every_field() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert events_table() in text
    rows = {row.split("|")[1].strip(): row for row in events_table().splitlines()}
    for made in EVENTS:
        for name in to_json(made()):
            assert f"`{name}`" in rows[f"`{made.kind}`"]
