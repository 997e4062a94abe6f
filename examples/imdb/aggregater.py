"""Averages the models of a folder.

    python aggregater.py --dir ./models --savefile final_model.h5

They have to be the models of all trainers, trained alike from the same beginning: others do not make a good average,
and are those of an earlier time as a rule. A model counts as much as it has seen reviews.
"""

import argparse
import json
import sys
from pathlib import Path

import reviews

from pumasi import models
from pumasi.errors import PumasiError

OWN = ("data", "rows")


def training_of(model):
    path = Path(f"{model}.training.json")
    return json.loads(path.read_text()) if path.is_file() else {}


def check(trained):
    """Of each model, what it was trained with. One of another trainer than ours says nothing, and is believed."""
    (first, one), *_ = trained.items()
    for model, other in trained.items():
        for key in sorted({*one, *other}.difference(OWN)):
            if one.get(key) != other.get(key):
                sys.exit(f"{first} and {model} were not trained alike: '{key}' differs. Is one of an earlier time?")
    seen = [each["data"] for each in trained.values() if each]
    if len(set(seen)) < len(seen):
        sys.exit(f"Two models have seen the same part of the data; they have seen {', '.join(seen)}.")
    if seen and one["parts"] and len(seen) < one["parts"]:
        sys.exit(f"There are {len(seen)} of {one['parts']} models: those of {', '.join(seen)}. Train the others first.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path("models"))
    parser.add_argument("--savefile", type=Path, default=Path("final_model.h5"))
    options = parser.parse_args()
    final = options.savefile.resolve()
    trained = {model: training_of(model) for model in reviews.models_in(options.dir.resolve(), but=final)}
    check(trained)
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        models.average(list(trained), final, [each.get("rows", 1) for each in trained.values()], force=True)
    except PumasiError as error:
        sys.exit(str(error))
    print(f"{options.savefile} is the average of {len(trained)} models.")


if __name__ == "__main__":
    main()
