"""Writes N copies of the reviews, for N trainers that train on all of them.

python copier.py --n_container N --savedir DIR
"""

from splitter import main

from pumasi import data

if __name__ == "__main__":
    main(__doc__, data.copy)
