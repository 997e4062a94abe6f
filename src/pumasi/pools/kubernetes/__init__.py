"""A Kubernetes cluster as a pool. Nothing is installed there: a run is made of plain objects (see `manifests`), and who
reaches the cluster sees it. This machine has a copy of the runs that were started or looked at from here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from pumasi.pools.pool import Absence, Listed, Listing, Pool, Preview, Room, Say, Seen

if TYPE_CHECKING:
    from pathlib import Path

    from pumasi.core.launch import Program
    from pumasi.core.spec import Spec
    from pumasi.pools.base import Request, Runner
    from pumasi.pools.kubernetes.options import KubernetesOptions
    from pumasi.pools.kubernetes.target import Target
    from pumasi.program.site import Site
    from pumasi.store import RunRecord, Store

HEADS = ("namespace", "id", "state", "age", "slots", "framework", "user", "command")


class KubernetesPool(Pool):
    name = "k8s"
    synonyms = ("kubernetes", "kube", "cluster")
    argument = "CONTEXT"
    argument_help = "of your kubeconfig"
    kind = "clusters"
    outlives_manager = True
    tells_notes = True
    deleted = "here and in the cluster; what it wrote to volumes stays"
    interval = 2.0
    patience = 600.0

    @property
    def options(self) -> type[KubernetesOptions]:
        from pumasi.pools.kubernetes.options import KubernetesOptions

        return KubernetesOptions

    def words(self) -> Any:
        from pumasi.pools.kubernetes.command_line import WORDS

        return WORDS

    def serving(self) -> Any:
        from pumasi.pools.kubernetes.serving import options

        return options

    # ---- before a run starts

    def settle(self, spec: Spec) -> Spec:
        from pumasi.pools.kubernetes.settling import settled

        return settled(spec)

    def site(self) -> Site:
        from pumasi.pools.kubernetes.settling import ImageWithVolume

        return ImageWithVolume()

    def notes(self, spec: Spec) -> Iterator[str]:
        from pumasi.pools.kubernetes.settling import readable

        return readable(spec.env)

    def folder(self, spec: Spec, home: Path, run: str) -> str:
        from pumasi.pools.kubernetes.manifests import folder_of

        return folder_of(spec, run)

    def preview(self, request: Request, *, detached: bool, say: Say) -> Preview:
        from pumasi.pools.kubernetes.rehearsal import rehearsed

        return rehearsed(request, say, detached=detached)

    # ---- the run itself

    def open(self, request: Request, *, adopt: bool) -> AbstractAsyncContextManager[Runner]:
        from pumasi.pools.kubernetes.beginning import open_runner

        return open_runner(request, adopt=adopt)

    def detach(self, store: Store, record: RunRecord, request: Request) -> None:
        from pumasi.pools.kubernetes.beginning import make_detached
        from pumasi.pools.kubernetes.reach import ask
        from pumasi.pools.kubernetes.runs import target_of

        try:
            ask(target_of(record), partial(make_detached, request))
        except BaseException:
            store.delete_run(record.id)
            raise

    def program_left(self, spec: Spec, run: str) -> Program:
        from pumasi.pools.kubernetes.runs import program_left

        return program_left(spec, run)

    async def hand_over(self, run: str, store: Store) -> Request | None:
        from pumasi.pools.kubernetes.handing_over import hand_over

        return await hand_over(run, store)

    # ---- runs from outside

    def scope(self, argument: str, flags: Mapping[str, str]) -> Target:
        from pumasi.pools.kubernetes.command_line import target

        return target(argument, flags)

    def list(self, store: Store, scope: Target) -> Listing:
        from pumasi.pools.kubernetes import runs

        rows, now = runs.rows(scope)
        found = [runs.listed(store, scope, row, now) for row in rows]
        nothing = ("The cluster has no runs there.", f"Start one: pumasi run {scope.words} train.py")
        return Listing(found, HEADS, now, nothing)

    def find(
        self, store: Store, scope: Target, prefix: str | None, *, running_first: bool = False, careful: bool = False
    ) -> RunRecord:
        from pumasi.pools.kubernetes.runs import find

        return find(store, scope, prefix, running_first=running_first, careful=careful)

    def place_words(self, record: RunRecord) -> str:
        return f"{record.spec['on']}, namespace {record.spec.get('namespace')}"

    def look_after(self, store: Store, record: RunRecord) -> bool:
        """A run goes on without a manager: it is looked up how it stands."""
        if store.manager_pid(record.id) is None:
            from pumasi.pools.kubernetes.runs import refresh

            refresh(store, record)
        return False

    def tend(self, store: Store, record: RunRecord) -> None:
        from pumasi.pools.kubernetes.copying import attend

        self.look_after(store, record)
        if store.run(record.id).ended is None:
            attend(store, record)

    def kept_up(self, store: Store, record: RunRecord) -> AbstractContextManager[Callable[[], None]]:
        if store.is_complete(record.id):
            return nullcontext(lambda: None)
        from pumasi.pools.kubernetes.copying import attend, copied

        if record.ended is None and attend(store, record):
            return nullcontext(lambda: None)
        return copied(store, record)

    def catch_up(self, store: Store, record: RunRecord) -> None:
        from pumasi.pools.kubernetes.copying import copy_logs

        copy_logs(store, record)

    def why_unattended(self, store: Store, record: RunRecord) -> Absence | None:
        from pumasi.pools.kubernetes.runs import why_unattended

        return why_unattended(store, record)

    def whys_unattended(self, scope: Target, runs: Sequence[Listed], now: float) -> Mapping[str, Absence]:
        from pumasi.pools.kubernetes.runs import whys_unattended

        return whys_unattended(scope, [each.row for each in runs], now)

    # ---- going on, ending, removing

    def can_go_on(self, store: Store, record: RunRecord) -> bool:
        from pumasi.pools.kubernetes.runs import is_there

        is_left = record.ended is None and not record.detached and store.manager_pid(record.id) is None
        return is_left and is_there(record)

    def reopen(self, store: Store, record: RunRecord) -> RunRecord:
        return record

    def is_over(self, store: Store, record: RunRecord) -> bool:
        return store.run(record.id).ended is not None

    def ask_to_stop(self, store: Store, record: RunRecord, *, force: bool, tell: Say) -> Callable[[], RunRecord]:
        from pumasi.pools.kubernetes.stopping import ask_to_stop

        return ask_to_stop(self, store, record, force=force, tell=tell)

    def remove(self, record: RunRecord) -> None:
        from pumasi.pools.kubernetes.runs import remove

        remove(record)

    # ---- nodes

    def looking(
        self, scope: Target, flags: Mapping[str, str]
    ) -> AbstractAsyncContextManager[Callable[[], Awaitable[Seen]]]:
        from pumasi.pools.kubernetes.nodes import looking

        return looking(scope, flags)

    def summary(self, seen: Seen, flags: Mapping[str, str]) -> Sequence[str]:
        from pumasi.pools.kubernetes.nodes import summary

        return summary(seen, flags)

    def room(self, scope: Target, flags: Mapping[str, Sequence[str]]) -> Room:
        from pumasi.pools.kubernetes.nodes import room

        return room(scope, flags)

    def fetch_lines(self, run: str, result: Mapping[str, Any]) -> Sequence[str]:
        from pumasi.pools.kubernetes.fetching import fetch_lines

        return fetch_lines(run, result)


POOL = KubernetesPool()
