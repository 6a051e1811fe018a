"""Requests played against a pool block by block, to check what `kvslab.capacity` claims.

`simulation` steps one pool; `trace` reads the requests of a real service and plays them
against several planners at once.
"""

from kvslab.simulate.simulation import Admission, Request, Simulation, SimulationResult, poisson_requests
from kvslab.simulate.trace import Replay, Tally, load_of_requests, read_trace, replay_all, sha256_of

__all__ = [
    "Admission",
    "Replay",
    "Request",
    "Simulation",
    "SimulationResult",
    "Tally",
    "load_of_requests",
    "poisson_requests",
    "read_trace",
    "replay_all",
    "sha256_of",
]
