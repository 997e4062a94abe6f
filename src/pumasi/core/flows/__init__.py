"""Which task comes next. A flow is pure: what has ended goes in, what to start comes out."""

from pumasi.core.flows.base import MAIN, Flow, FlowType, Task, Words, log_of

__all__ = ["MAIN", "Flow", "FlowType", "Task", "Words", "log_of"]
