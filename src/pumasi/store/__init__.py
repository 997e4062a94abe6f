"""The store: a run's record, which outlives the run.

SQLite holds what is asked for by key (runs, events, metrics); plain files hold what only grows (logs). Any number of
pumasi processes use one store at the same time. What only some commands need is imported inside the functions that
need it: `pumasi ps` is typed often, and waits for every import here.
"""

from pumasi.store.home import default_home
from pumasi.store.records import EventRow, MetricRow, RunRecord
from pumasi.store.store import Store

__all__ = ["EventRow", "MetricRow", "RunRecord", "Store", "default_home"]
