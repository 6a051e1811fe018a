"""Guards the house: imports point down only, planning has no float, optional packages stay out of it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from kvslab.tables.house import ROOMS, ROOT, direct_imports, house_table, imported, room_of

FILES = sorted(ROOT.rglob("*.py"))
# Exact integers only, and no heavy package: every room up to `fit`, and the bytes as numbers.
PLANNING_ROOMS = ROOMS[ROOMS.index("formats") : ROOMS.index("simulate")]
PLANNING = [
    path
    for path in FILES
    if path.relative_to(ROOT).parts[0].removesuffix(".py") in ("intmath", *PLANNING_ROOMS)
    or path.relative_to(ROOT).as_posix() in ("memory/pool.py", "memory/spans.py")
]
# True division is exact on a Fraction; these modules use it on nothing else.
FRACTIONS = ("capacity",)
HEAVY = {"torch", "pandas", "matplotlib", "numpy", "seaborn"}
# Beside `files`: a scratch file that is thrown away, and a slab of many GiB that a caller asks for by name.
WRITERS = ("files.py", "mxfp4/resources.py", "memory/views.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    room = room_of(path)
    if not room:
        return
    assert room in ROOMS, f"{room} has no place in the house: add it to ROOMS"
    for module in imported(ast.parse(path.read_text(encoding="utf-8"))):
        if module.startswith("kvslab."):
            target = module.split(".")[1]
            assert target == room or ROOMS.index(target) < ROOMS.index(room), f"{path.name} imports {module}"


@pytest.mark.parametrize("path", PLANNING, ids=lambda p: str(p.relative_to(ROOT)))
def test_planning_uses_no_float(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), (
            f"a float at line {node.lineno}"
        )
        assert not (isinstance(node, ast.Name) and node.id == "float"), f"float at line {node.lineno}"
        if room_of(path) not in FRACTIONS:
            assert not isinstance(getattr(node, "op", None), ast.Div), "true division makes a float"


def test_planning_loads_no_heavy_package() -> None:
    for path in PLANNING:
        heads = {name.split(".")[0] for name in imported(ast.parse(path.read_text(encoding="utf-8")))}
        assert not heads & HEAVY, path
    code = f"import sys, kvslab; sys.exit(bool(sys.modules.keys() & {HEAVY!r}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, "import kvslab is heavy"


def test_every_file_is_written_by_the_one_room_that_writes_whole_files() -> None:
    """A writer that is killed must leave the old file or the new one; only `files` promises that."""
    for path in FILES:
        if path.relative_to(ROOT).as_posix() in WRITERS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(
                getattr(node, "func", None), "attr", getattr(getattr(node, "func", None), "id", "")
            )
            assert name not in ("write_text", "write_bytes"), f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call) and name == "open":
                modes = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                modes += [k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)]
                assert not any(mode in ("w", "wb", "a", "ab", "x", "xb") for mode in modes), (
                    f"{path}:{node.lineno}"
                )


def test_no_circle_of_modules() -> None:
    """Inside a room too: what imports in a circle cannot be read in an order."""
    modules = {module_name(path): imported(ast.parse(path.read_text(encoding="utf-8"))) for path in FILES}
    ready: set[str] = set()
    left = {name: uses & modules.keys() - {name} for name, uses in modules.items()}
    while free := {name for name, uses in left.items() if uses <= ready}:
        ready |= free
        left = {name: uses for name, uses in left.items() if name not in free}
    assert not left, sorted(left)


def module_name(path: Path) -> str:
    parts = ("kvslab", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_modules_are_readable_in_one_sitting() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in FILES
        if (n := len(p.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}


def test_the_picture_of_the_house_is_the_house() -> None:
    frame = house_table()
    assert tuple(frame["room"]) == ROOMS
    assert frame["num_files"].sum() == len([path for path in FILES if room_of(path)])
    assert all(frame["what"].str.len() > 20)
    arrows = set(direct_imports(frame))
    # The way that data takes, by hand.
    way = [("models", "layers"), ("groups", "layers"), ("slab", "groups"), ("plan", "slab")]
    way += [("capacity", "plan"), ("fit", "capacity"), ("memory", "plan")]
    assert set(way) <= arrows
    assert ("fit", "slab") not in arrows, "what follows from other arrows is left out"
