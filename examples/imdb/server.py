"""A page where one types a review and sees whether it is good or bad.

    python server.py --model FILE
    python server.py --dir DIR       # all models of the folder vote

Only this machine can ask, unless --host says otherwise. All other options are those of `pumasi serve`.
"""

import argparse
import sys
from pathlib import Path

import reviews

from pumasi.cli.main import main as pumasi


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", metavar="FILE")
    which.add_argument("--dir", metavar="DIR", type=Path)
    options, others = parser.parse_known_args()
    served = [options.model] if options.model else [str(reviews.models_in(options.dir)[0]), "--vote", str(options.dir)]
    return pumasi(["serve", *served, *others])


if __name__ == "__main__":
    sys.exit(main())
