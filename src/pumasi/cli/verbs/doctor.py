"""pumasi doctor: what this machine has, and what is missing."""

from __future__ import annotations

import os
import sys

from pumasi.cli.grammar import JSON, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.view.output import paint, show, show_json
from pumasi.cli.view.text import pad
from pumasi.core.printable import clean

VERB = Verb(
    name="doctor",
    usage=("pumasi doctor [options]",),
    about="""Tells what this machine has for training: Python and frameworks, GPUs, MPI, memory, cores, disk, a cluster
    or not; what is missing, and how to get it. Looks only: nothing is changed.""",
    options=(JSON,),
    examples=(("pumasi doctor", ""),),
)
_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "missing": ("-", "dim")}


def main(arguments: Arguments) -> int:
    from pumasi.doctor import Machine, about_pumasi, examine
    from pumasi.runs.config import current_folder
    from pumasi.store import default_home

    place = Machine(current_folder(), default_home(os.environ), os.environ)
    findings = [about_pumasi(), *examine(place)]
    if arguments.has("json"):
        show_json([finding._asdict() for finding in findings])
        return 0
    for finding in findings:
        mark, colour = _MARKS[finding.status]
        show([f"{paint(mark, colour, sys.stdout)} {pad(finding.topic, 14)} {clean(finding.text)}"])
        if finding.hint:
            show([f"{' ' * 17}{paint(clean(finding.hint), 'dim', sys.stdout)}"])
    return 0
