"""A serving engine's startup log: what its lines state, and which planner and formula give them."""

from kvslab.logs.explanation import Explained, Explanation, Fit, Reading, explain
from kvslab.logs.lines import FACTS, EngineLog, Statement, lines_of, parse_log, read_log

__all__ = [
    "FACTS",
    "EngineLog",
    "Explained",
    "Explanation",
    "Fit",
    "Reading",
    "Statement",
    "explain",
    "lines_of",
    "parse_log",
    "read_log",
]
