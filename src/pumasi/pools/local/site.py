"""Programs of this machine, which may pretend to be several nodes."""

from __future__ import annotations

from pumasi.core.spec import Spec
from pumasi.pools.local.options import LocalOptions
from pumasi.program.site import ThisMachine


class ThisMachineAsNodes(ThisMachine):
    def shares(self, spec: Spec) -> tuple[int, ...]:
        return spec[LocalOptions].nodes or super().shares(spec)
