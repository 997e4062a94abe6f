"""Writes the reviews in N parts, for N trainers that train on one each.

    python splitter.py --n_container N --savedir DIR

DIR gets 0.npz, 1.npz and so on, at one stroke, in place of those of an earlier call. The reviews themselves, those for
the test, and preprocessing.json are beside DIR.
"""

import argparse
import os
import sys
from pathlib import Path

import reviews

from pumasi import data
from pumasi.errors import PumasiError


def main(about, make):
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    number = os.environ.get("WORKER_NUMBER")
    parser.add_argument("--n_container", type=int, default=number, required=not number, metavar="N")
    parser.add_argument("--savedir", type=Path, required=True, metavar="DIR")
    options = parser.parse_args()
    folder = options.savedir.absolute()
    try:
        made = make(reviews.prepare(folder.parent), options.n_container, folder, force=True)
    except PumasiError as error:
        sys.exit(str(error))
    print(f"{options.savedir} has {', '.join(f'{part.name} ({part.rows:,} reviews)' for part in made.parts)}.")


if __name__ == "__main__":
    main(__doc__, data.split)
