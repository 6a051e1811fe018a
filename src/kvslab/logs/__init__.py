"""A serving engine's startup log: what its lines state, and which planner and formula give them."""

from kvslab.logs.explanation import Explained, Explanation, Fit, Reading, explain
from kvslab.logs.lines import FACTS, EngineLog, Statement, parse_log

__all__ = [
    "FACTS",
    "EngineLog",
    "Explained",
    "Explanation",
    "Fit",
    "Reading",
    "Statement",
    "explain",
    "parse_log",
]
