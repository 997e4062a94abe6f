"""Sees to it that there is a browser for the tests of pages: Debian's chromium.

python -m tools.browser
"""

from __future__ import annotations

import sys

from tools.common import ToolError, need_programs


def say(text: str) -> None:
    sys.stderr.write(f"browser: {text}\n")


def main() -> int:
    try:
        need_programs({"chromium": "chromium"}, say)
    except ToolError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
