"""Where the slots of a request go.

`planner` answers; `group` searches one group of nodes, `domains` searches racks or zones; `explanation` says why.
"""

from pumasi.core.planning.fragmentation import DEFAULT_MIX
from pumasi.core.planning.planner import Node, Plan, plan

__all__ = ["DEFAULT_MIX", "Node", "Plan", "plan"]
