"""How many requests a second `pumasi serve` answers, and how fast, beside the same model behind a bare Flask app.
Goal: at least 3 times as many, and no request fails.

32 clients ask all the time, each over a connection of its own that it keeps for as long as the server does. Both
servers run the same small model (an embedding, a mean, a sigmoid: the model takes little, so that the servers are
compared) with the same preprocessing and the same call of Keras, and are measured in turn. Flask is the latest from the
package index, in a temporary folder, with the server that comes with it, threaded: Flask's documentation says that it
is not for production, but it is what `pumasi serve` replaces. Keras on JAX may not be called by two threads at a time,
hence a lock.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.models_to_serve import make_reviews

CLIENTS = 32
SECONDS = 6.0
ROUNDS = 3
GOAL = 3.0
BODY = json.dumps({"input": "I loved this film: the plot was brilliant, and it was funny in a wonderful way"}).encode()
FLASK = """
import os, sys, threading
os.environ["KERAS_BACKEND"] = "jax"
import keras
from flask import Flask, jsonify, request
from pumasi.serve.preprocessing import Text

text, lock = Text.load("final.keras.preprocessing.json"), threading.Lock()
model = keras.saving.load_model("final.keras")
app = Flask(__name__)

@app.post("/predict")
def predict():
    rows = text.encode([request.get_json()["input"]])
    with lock:
        good = float(model.predict_on_batch(rows)[0, 0])
    return jsonify(predictions=[{"label": "good" if good > 0.5 else "bad", "probabilities": {"good": good}}])

model.predict_on_batch(text.encode(["warm"]))
import logging
logging.getLogger("werkzeug").setLevel(logging.ERROR)
app.run("127.0.0.1", int(sys.argv[1]), threaded=True)
"""


class Measured:
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.failures = 0

    @property
    def rate(self) -> float:
        return len(self.seconds) / SECONDS

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.seconds, n=100)[98]


async def client(port: int, until: float, measured: Measured) -> None:
    head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
    writer = None
    while time.perf_counter() < until:
        began = time.perf_counter()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            told = json.loads(await reader.readexactly(length))
            assert told["predictions"][0]["label"] == "good"
            lasting = b"connection: close" not in answer and answer.startswith(b"http/1.1")
        except (OSError, EOFError, ValueError, KeyError, AssertionError):
            measured.failures += 1
            lasting = False
        else:
            measured.seconds.append(time.perf_counter() - began)
        if not lasting and writer is not None:
            writer.close()
            writer = None
    if writer is not None:
        writer.close()


async def load(port: int) -> Measured:
    measured = Measured()
    until = time.perf_counter() + SECONDS
    await asyncio.gather(*(client(port, until, measured) for _ in range(CLIENTS)))
    return measured


@contextmanager
def running(command: list[str], folder: Path, port: int, path: str = "") -> Iterator[None]:
    environ = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while asyncio.run(_answers(port)) is False:
            assert process.poll() is None, f"{command} ended"
            assert time.monotonic() < deadline, f"{command} does not answer"
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(30)


async def _answers(port: int) -> bool:
    measured = Measured()
    await client(port, time.perf_counter() + 0.01, measured)
    return bool(measured.seconds)


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_reviews(folder)
        packages = str(folder / "packages")
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", packages, "flask"], check=True)
        pumasi = str(Path(sys.executable).with_name("pumasi"))
        ports = {"pumasi serve": free_port(), "Flask": free_port()}
        found: dict[str, list[Measured]] = {which: [] for which in ports}
        served = [pumasi, "serve", "final.keras", "--rate", "0", "--port", str(ports["pumasi serve"])]
        bare = [sys.executable, "-c", FLASK, str(ports["Flask"])]
        with running(served, folder, ports["pumasi serve"]), running(bare, folder, ports["Flask"], packages):
            for _ in range(ROUNDS):
                for which, port in ports.items():
                    found[which].append(asyncio.run(load(port)))
    rates = {which: statistics.median(each.rate for each in all_rounds) for which, all_rounds in found.items()}
    late = {which: statistics.median(each.p99 for each in all_rounds) for which, all_rounds in found.items()}
    failures = {which: sum(each.failures for each in all_rounds) for which, all_rounds in found.items()}
    for which in ports:
        print(
            f"{which:<14}{rates[which]:8.0f} requests/s   p99 {1000 * late[which]:7.1f} ms   {failures[which]} failed"
        )
    ratio = rates["pumasi serve"] / rates["Flask"]
    print(
        f"ratio         {ratio:8.1f} x (goal: at least {GOAL:g} x)   p99 {late['pumasi serve'] / late['Flask']:.2f} x"
    )
    return int(ratio < GOAL or failures["pumasi serve"] > 0)


if __name__ == "__main__":
    sys.exit(main())
