"""What is done about the pods of one attempt: a state and an observation go in, the new state and actions come out.

    new ─► syncing ─► creating ─► up ─► draining ─► over        (phases; an adopted gang skips creating)

Everything that becomes of a gang of pods is decided here: whether it is refused, when its pods are deleted, when they
are deleted by force, and how the attempt ended. It is pure, like `core.manage`, and can be tested by the thousand
without a cluster, a clock or a wait. `pods.PodGang` is the edge: it watches, reads logs, executes actions, and passes
on what it observes. The rules:

- An observation counts only while it is waited for. Repeated and foreign ones change nothing, and nothing is done after
  the end.
- All or nothing: at the first pod that is refused or can't start, no further pod is created and all are deleted.
- Whatever shows that the attempt ends (a pod or an agent does, or an end was asked for) sets a deadline. What the API
  still lists at the deadline is deleted by force; nothing is before.
- The edge answers each `Create`, `Delete`, `Force`, `ReadInit`, `ListEvents`, `ListNodes`, `Introduce` and
  `OpenService` with one observation, whatever the cluster does, and each `ReadLog` with `LogEnded` or `LogForbidden`
  unless `StopReading` came first.

Before an end shows there is no deadline here: `core.manage` limits how long a gang may take to be whole.
"""

from pumasi.pools.kubernetes.gang.deciding import MARGIN
from pumasi.pools.kubernetes.gang.machine import step
from pumasi.pools.kubernetes.gang.state import GangState, Phase, begin

__all__ = ["MARGIN", "GangState", "Phase", "begin", "step"]
