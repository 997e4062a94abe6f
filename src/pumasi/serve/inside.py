"""The server in a pod: `kube.serving` has the other side. What goes wrong is the last that the pod says."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

from pumasi.errors import PumasiError

PORT = 8000
TOKEN = "PUMASI_SERVE_TOKEN"  # noqa: S105
NOTICE = 8.0
"""Seconds in which the nodes of a cluster learn that a pod goes, and send nobody to it any more."""


def main(text: str) -> int:
    """`text`: the files and the rate, as JSON."""
    try:
        from pumasi.serve.limits import Limits
        from pumasi.serve.running import Options, leave, run

        asked = json.loads(text)
        options = Options(
            Path(asked["model"]),
            Path(asked["votes"]) if asked["votes"] else None,
            Path(asked["preprocessing"]) if asked["preprocessing"] else None,
            host="::" if socket.has_dualstack_ipv6() else "0.0.0.0",  # noqa: S104
            port=PORT,
            rate=asked["rate"],
            token=os.environ.get(TOKEN, ""),
            limits=Limits(notice=NOTICE),
        )
        return leave(run(options, _say, lambda started: _say(f"{', '.join(started.ensemble.names)}: ready.")))
    except PumasiError as error:
        _say(str(error))
        return leave(error.exit_code)
    except ModuleNotFoundError as error:
        _say(f"The image has no {error.name}.\n--image has to have numpy and the framework of the model.")
        return 2
    except OSError as error:
        from pumasi.serve.sources import unreadable

        _say(str(unreadable(error.filename or "A file", error)))
        return leave(2)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
