"""Whether a run can ever start in a cluster: its nodes if nobody else used them, and the quotas of its namespace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pumasi.core.planning import plan
from pumasi.errors import DoesNotFit, Forbidden, NotThere, Unreachable
from pumasi.kube.api import Api
from pumasi.pools.base import Order
from pumasi.pools.kubernetes import manifests, notation, quotas
from pumasi.pools.kubernetes.discovery import unlabelled
from pumasi.pools.kubernetes.manifests import CodeObjects
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.pools.kubernetes.record import Record
from pumasi.pools.kubernetes.rooms import Rooms
from pumasi.registry import FLOWS

if TYPE_CHECKING:
    from pumasi.core.spec import Spec


class Fit:
    """Of one run. `is_split`, once it was checked: it will have several pods at a time, wherever they go."""

    def __init__(self, api: Api, spec: Spec, framework: str, record: Record, code: CodeObjects, rooms: Rooms) -> None:
        self._api = api
        self._spec = spec
        self._framework = framework
        self._record = record
        self._code = code
        self._rooms = rooms
        self.is_split = False

    async def check(self) -> None:
        """What no wait can help is told at once. Who may not see the nodes, or can't for the moment, will learn it."""
        try:
            await self._rooms.peek()
        except Forbidden:
            self.is_split = self._spec.slots > 1
            await self._check_quotas([1] * self._spec.at_once)
            return
        except Unreachable:
            return
        try:
            shares = self._best_shares(self._spec.at_once)
        except DoesNotFit as error:
            raise self._explained(error) from None
        self.is_split = FLOWS.get(self._spec.strategy).is_single and len(shares) > 1
        await self._check_quotas(shares)

    def _explained(self, error: DoesNotFit) -> DoesNotFit:
        if said := unlabelled(self._rooms.view.nodes, self._spec[KubernetesOptions].node_selector):
            return DoesNotFit(said, "Check --node-selector: kubectl get nodes --show-labels")
        hint = f"{_asked_for(self._spec)} --node-selector and --toleration decide which nodes count."
        reason = f"Even if nobody else used the cluster: {error.message}"
        reason += f" {self._rooms.about_volume()}" if self._rooms.volume.single else ""
        return DoesNotFit(reason, hint)

    def _best_shares(self, slots: int) -> list[int]:
        """Those of the fewest nodes that it takes, if nobody else uses them."""
        most = self._spec[KubernetesOptions].max_per_node
        return list(plan(self._rooms.capacity(), slots, most_per_node=most).placement.values())

    async def _check_quotas(self, shares: Iterable[int]) -> None:
        """Who may not list them learns it when the pods are refused."""
        try:
            found = await self._api.list(f"/api/v1/namespaces/{self._record.namespace}/resourcequotas")
        except (Forbidden, NotThere, Unreachable):
            return
        if not found:
            return
        pods = self._samples(shares)
        if not self._record.manager:
            from pumasi.pools.kubernetes.manager_job import RESOURCES

            pods.append({"spec": {"containers": [{"resources": RESOURCES}]}})
        if said := quotas.never(found, quotas.asked_by(pods)):
            manager = "" if self._record.manager else " One of the pods is the run's manager."
            raise DoesNotFit(f"{said}{manager}", quotas.hint(self._api.connection.kubectl(self._record.namespace)))

    def least_needs(self, order: Order) -> dict[str, float]:
        """What its pods ask of a quota, on the fewest nodes that they can be on."""
        try:
            shares = self._best_shares(sum(config["slots"] for config in order.configs))
        except DoesNotFit:  # A node has gone meanwhile.
            shares = [config["slots"] for config in order.configs]
        return quotas.asked_by(self._samples(shares, order.spec))

    def _samples(self, shares: Iterable[int], spec: Spec | None = None) -> list[manifests.Object]:
        return [sample(spec or self._spec, self._framework, self._code, share) for share in shares]


def sample(spec: Spec, framework: str, code: CodeObjects, share: int) -> manifests.Object:
    """A pod with that many slots, as it would be made."""
    gang = manifests.GangSpec("run", "main", 0, manifests.Owner("", "", ""), "hub", True, "", framework, code)
    return manifests.pod(spec, gang, 0, "node", {"slots": share})


def _asked_for(spec: Spec) -> str:
    """Each slot asks for 1 CPU (less with --cpus 0.5). Or, where the user has said how many: (set by --cpus)."""
    options = spec[KubernetesOptions]
    cores, asked = manifests.cores_of(spec), []
    if spec.gpu == "required":
        asked.append(f"1 {options.gpu_resource} (another kind with --gpu-resource)")
    if cores:
        why = "less with --cpus 0.5" if options.cpus is None else "set by --cpus"
        asked.append(f"{cores:g} CPU{'s' * (cores > 1)} ({why})")
    if options.memory:
        asked.append(f"{notation.quantity(options.memory)} of memory (set by --memory)")
    return f"Each slot asks for {', '.join(asked)}."
