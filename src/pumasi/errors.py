"""Every error that Pumasi raises on purpose, and the exit code that each ends the CLI with.

PumasiError
├── UsageError         2  what was asked for makes no sense: an option, a value, a file
│   ├── SpecError      2  a field of the spec or of pumasi.yaml, with its place
│   └── DoesNotFit     2  the request is larger than the pool can ever give
├── NotFound           6  no such run
└── SystemTrouble      7  this machine or the cluster stands in the way: a full disk, a read-only home
    ├── StoreTooNew    7  the store was written by a newer Pumasi
    ├── RunBusy        7  another manager steers this run
    └── ClusterTrouble 7  the cluster can't be reached, or does not answer as it should
        ├── Unreachable   7  no answer, or none but "later", for as long as it was worth trying
        ├── Unauthorized  7  the cluster does not know who asks
        ├── Forbidden     7  the cluster's rules do not allow it
        ├── NotThere      7  the cluster has no such object
        ├── Conflict      7  the object exists already, or was changed by somebody else meanwhile
        ├── Rejected      7  the cluster does not take an object like this
        └── Expired       7  a list or watch goes back further than the cluster remembers

A run that ends badly is no error but an outcome: see `core.outcome`, which has the codes 0, 1, 3, 4 and 5.
"""

from __future__ import annotations

from typing import ClassVar


class PumasiError(Exception):
    """A sentence for the user, and a hint that says what to do about it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(PumasiError):
    exit_code = 2


class SpecError(UsageError):
    pass


class DoesNotFit(UsageError):
    pass


class NotFound(PumasiError):
    exit_code = 6


class SystemTrouble(PumasiError):
    exit_code = 7


class StoreTooNew(SystemTrouble):
    pass


class RunBusy(SystemTrouble):
    pass


class ClusterTrouble(SystemTrouble):
    """`said` has the cluster's own words, where it said any."""

    def __init__(self, message: str, hint: str = "", *, said: str = "") -> None:
        super().__init__(message, hint)
        self.said = said


class Unreachable(ClusterTrouble):
    """`after`: for how many seconds the cluster asks to be left alone. `silent`: nothing came, in all the time that
    there was."""

    after: float = 0.0
    silent: bool = False


class Unauthorized(ClusterTrouble):
    pass


class Forbidden(ClusterTrouble):
    pass


class NotThere(ClusterTrouble):
    pass


class Conflict(ClusterTrouble):
    pass


class Rejected(ClusterTrouble):
    pass


class Expired(ClusterTrouble):
    pass
