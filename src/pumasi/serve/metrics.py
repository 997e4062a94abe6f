"""What happened so far, as Prometheus reads it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32)


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str = "") -> Iterable[str]:
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}{"," if labels else ""}le="{bound}"}} {total}'
        suffix = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{suffix} {self._sum:.6f}"
        yield f"{name}_count{suffix} {total}"


class Metrics:
    """Paths are those that are served; all others count as one, whatever a client makes up."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self.batches = Histogram(_ROWS)
        self.reloads = 0

    def request(self, path: str, status: int, seconds: float) -> None:
        self._requests[path, status] += 1
        self._seconds.setdefault(path, Histogram(_SECONDS)).observe(seconds)

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """`gauges`: what is so right now, with a sentence about each."""
        lines = [*_head("pumasi_requests_total", "counter", "Requests that were answered, by path and status.")]
        lines += [
            f'pumasi_requests_total{{path="{path}",code="{status}"}} {count}'
            for (path, status), count in sorted(self._requests.items())
        ]
        lines += _head("pumasi_request_seconds", "histogram", "From the last byte of a request to its answer.")
        for path, histogram in sorted(self._seconds.items()):
            lines += histogram.lines("pumasi_request_seconds", f'path="{path}"')
        lines += _head("pumasi_batch_inputs", "histogram", "Inputs that the model was given at once.")
        lines += self.batches.lines("pumasi_batch_inputs")
        lines += _head("pumasi_reloads_total", "counter", "Times that changed files were loaded.")
        lines += [f"pumasi_reloads_total {self.reloads}"]
        for name, (about, value) in gauges.items():
            lines += [*_head(name, "gauge", about), f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, about: str) -> Iterable[str]:
    return (f"# HELP {name} {about}", f"# TYPE {name} {kind}")
