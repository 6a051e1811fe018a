"""The house itself: the package's rooms, what each is for and which it builds on, from its own source."""

import ast
from pathlib import Path

import pandas as pd

STAGES = (
    ("the ground", ("errors", "intmath", "files", "printed")),
    ("config to layers", ("formats", "layers", "models")),
    ("layers to groups to slab", ("groups", "slab", "generations", "layouts")),
    ("slab to plan to requests", ("plan", "capacity", "fit", "simulate")),
    ("plan to bytes", ("memory", "mxfp4")),
    ("what others printed", ("published", "logs")),
    ("for people", ("tables", "sweep", "results", "plots", "book", "cli")),
)
"""The rooms along the way that data takes; a module imports from earlier rooms and from its own."""

ROOMS = tuple(room for _, rooms in STAGES for room in rooms)
"""All rooms, in that order."""

ROOT = Path(__file__).parents[1]
"""The folder of the package."""


def is_module(name: str) -> bool:
    """Whether a dotted name is a module of this package.

    >>> is_module("kvslab.fit.search"), is_module("kvslab.fit.fit")
    (True, False)
    """
    first, *parts = name.split(".")
    path = ROOT.joinpath(*parts)
    return first == "kvslab" and (path.with_suffix(".py").is_file() or (path / "__init__.py").is_file())


def imported(tree: ast.AST) -> set[str]:
    """Modules that parsed source imports, anywhere in it; a module's names do not count as modules."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name for name in inner if is_module(name)} or {node.module}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def room_of(path: Path) -> str:
    """The room that a file of the package is in; empty for the package's own front door."""
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "" if first.startswith("__") else first


def house_table() -> pd.DataFrame:
    """One row per room, in the order of `ROOMS`.

    Columns: stage, room, what (first line of its docstring), num_files, num_lines, imports
    (rooms, in order).
    """
    rows = []
    for stage, rooms in STAGES:
        for room in rooms:
            files = [path for path in sorted(ROOT.rglob("*.py")) if room_of(path) == room]
            texts = [path.read_text(encoding="utf-8") for path in files]
            trees = [ast.parse(text) for text in texts]
            used = {
                name.split(".")[1] for tree in trees for name in imported(tree) if name.startswith("kvslab.")
            }
            door = next(
                tree for path, tree in zip(files, trees, strict=True) if path.stem in (room, "__init__")
            )
            rows.append(
                {
                    "stage": stage,
                    "room": room,
                    "what": (ast.get_docstring(door) or "").partition("\n")[0],
                    "num_files": len(files),
                    "num_lines": sum(len(text.splitlines()) for text in texts),
                    "imports": tuple(name for name in ROOMS if name in used - {room}),
                }
            )
    return pd.DataFrame(rows)


def direct_imports(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """`(room, room that it builds on)` without the pairs that follow from others.

    >>> direct_imports(pd.DataFrame({"room": ["a", "b", "c"], "imports": [(), ("a",), ("a", "b")]}))
    [('b', 'a'), ('c', 'b')]
    """
    uses = dict(zip(frame["room"], frame["imports"], strict=True))
    below: dict[str, set[str]] = {}
    for room, rooms in uses.items():  # earlier rooms come first
        below[room] = set(rooms).union(*(below.get(name, set()) for name in rooms))
    return [
        (room, name)
        for room, rooms in uses.items()
        for name in rooms
        if not any(name in below.get(other, set()) for other in rooms)
    ]
