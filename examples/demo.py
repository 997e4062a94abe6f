"""`make demo`: one script, unchanged, with 1 slot and with 2; the two end with the same weights."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "digits"
PUMASI = Path(sys.executable).with_name("pumasi")


def train(slots, out):
    command = ["run", "--slots", str(slots), "train.py", "--epochs", "5", "--out", str(out)]
    print(f"\n$ cd examples/digits; pumasi {' '.join(command)}", flush=True)
    subprocess.run([PUMASI, *command], cwd=FOLDER, check=True)
    with np.load(out) as weights:
        return [weights[name] for name in weights.files]


def main():
    print("Reads 1,797 handwritten digits (they come with scikit-learn) with a small network, in JAX.")
    with tempfile.TemporaryDirectory() as folder:
        one = train(1, Path(folder) / "one.npz")
        two = train(2, Path(folder) / "two.npz")
    far = max(float(np.abs(a - b).max()) for a, b in zip(one, two, strict=True))
    print(f"\nLargest difference between the {sum(w.size for w in one):,} weights of the two: {far:.1e}")
    if far > 1e-4:
        sys.exit("They do not agree: that is a bug in Pumasi.")
    print("They agree: two processes have trained one model together.")
    print("\nNext: . .venv/bin/activate; pumasi ps; pumasi metrics; pumasi run --help")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
