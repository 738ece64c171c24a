"""The schedule: a step as data, its proof, and its execution on lanes."""

from overlap.schedule.plan import Plan
from overlap.schedule.planner import make_plan
from overlap.schedule.validate import validate

__all__ = ["Plan", "make_plan", "validate"]
