"""Packages, and the user's own commands, before the ranks start: the installer's run, and what it has made."""

from __future__ import annotations

import json
import os

from pumasi.agent.folders import write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pumasi.agent.links import Message


class Installation:
    """What `config["setup"]` asks for. Empty where nothing has to be installed."""

    def __init__(self, config: Message) -> None:
        self.setup: Message = config["setup"] or {}
        self.config = config
        self.doing = ""
        self.made: Message = {}
        """`root` is the environment that was made, `beside` the folder of programs of the Python below it, and `in_use`
        a file to lock as long as it is used."""

    def prepare(self) -> list[str]:
        """The command that installs. Raises OSError where its files can't be written."""
        folder = self.config["dir"]
        installer, order = os.path.join(folder, "installer.py"), os.path.join(folder, "setup.json")
        write_file(installer, self.config["files"]["installer.py"])
        write_file(order, json.dumps(dict(self.setup, folder=folder)))
        return [self.setup["python"], installer, order]

    def hear(self, words: Message) -> str:
        """What the installer says on its way; answers what the user should know."""
        self.doing = words.get("doing", self.doing)
        self.made = words.get("environment", self.made)
        return str(words.get("note", ""))

    def hold(self) -> None:
        """Until we end, and the ranks with us: nobody removes what is in use."""
        if self.made["in_use"]:
            import fcntl

            in_use = os.open(self.made["in_use"], os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(in_use, fcntl.LOCK_SH)

    def program(self, program: str) -> str:
        """The program of that name in the environment that was made, where it has one instead of the Python's own."""
        if not self.made:
            return program
        python, folder = self.setup["python"], os.path.join(self.made["root"], "bin")
        if program == python:
            return os.path.join(folder, "python")
        own = os.path.join(folder, os.path.basename(program))
        beside = (self.made["beside"], os.path.dirname(python))
        return own if os.path.dirname(program) in beside and "/" in program and os.path.exists(own) else program

    def activate(self, env: dict[str, str]) -> None:
        if self.made:
            root = self.made["root"]
            path = [os.path.join(root, "bin"), self.made["beside"], env.get("PATH", os.defpath)]
            env.update(VIRTUAL_ENV=root, PATH=os.pathsep.join(path))
            env.pop("PYTHONHOME", None)
