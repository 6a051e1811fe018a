"""Guards the house: imports point down only, planning has no float, optional packages stay out of it."""

import ast
from pathlib import Path

import pytest

import kvslab

ROOT = Path(kvslab.__file__).parent

# From the ground up. A module may import from earlier rows, and inside its own package.
ROOMS = (
    "errors",
    "intmath",
    "inputs",
    "outputs",
    "formats",
    "layers",
    "models",
    "groups",
    "slab",
    "lockstep",
    "generations",
    "axes",
    "layout_choice",
    "plan",
    "capacity",
    "fit",
    "workers",
    "summary",
    "simulate",
    "trace",
    "spans",
    "pool",
    "views",
    "mxfp4",
    "hazards",
    "published",
    "reproduce",
    "enginelog",
    "explain",
    "case_file",
    "cases",
    "tables",
    "sweep",
    "results",
    "plots",
    "book",
    "cli",
)
FILES = sorted(ROOT.rglob("*.py"))
PLANNING = (
    "intmath",
    "layers",
    "models",
    "groups",
    "slab",
    "lockstep",
    "generations",
    "axes",
    "layout_choice",
    "plan",
    "capacity",
    "spans",
    "pool",
    "workers",
    "fit",
)
# True division is exact on a Fraction; these modules use it on nothing else.
FRACTIONS = ("capacity",)


def room_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return first


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            if node.module == "kvslab":
                names |= {f"kvslab.{alias.name}" for alias in node.names}
            assert node.level == 0, "imports are absolute"
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    assert room in ROOMS, f"{room} has no place in the house: add it to ROOMS"
    for module in imported(ast.parse(path.read_text(encoding="utf-8"))):
        if module.startswith("kvslab."):
            target = module.split(".")[1]
            assert target == room or ROOMS.index(target) < ROOMS.index(room), f"{path.name} imports {module}"


@pytest.mark.parametrize(
    "path", [p for p in FILES if room_of(p) in PLANNING], ids=lambda p: str(p.relative_to(ROOT))
)
def test_planning_uses_no_float(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), (
            f"a float at line {node.lineno}"
        )
        assert not (isinstance(node, ast.Name) and node.id == "float"), f"float at line {node.lineno}"
        if room_of(path) not in FRACTIONS:
            assert not isinstance(getattr(node, "op", None), ast.Div), "true division makes a float"


def test_planning_loads_no_heavy_package() -> None:
    for path in FILES:
        if room_of(path) in PLANNING:
            heads = {name.split(".")[0] for name in imported(ast.parse(path.read_text(encoding="utf-8")))}
            assert not heads & {"torch", "pandas", "matplotlib", "numpy", "seaborn"}, path


def test_modules_are_readable_in_one_sitting() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in FILES
        if (n := len(p.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}
