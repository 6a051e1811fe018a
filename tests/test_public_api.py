"""Guards the front door: a public name that nobody explains, or an example that shows nothing."""

import inspect

import pytest

import kvslab

NAMES = [name for name in kvslab.__all__ if not name.startswith("__")]


def documented(name: str) -> str:
    """The docstring of a class or function; of `GENERATIONS`, that of its module."""
    found = getattr(kvslab, name)
    return inspect.getdoc(found if callable(found) else inspect.getmodule(kvslab.generation_named)) or ""


def test_the_front_door_is_small() -> None:
    assert len(NAMES) <= 24
    assert kvslab.__all__ == sorted(kvslab.__all__, key=lambda name: (not name.isupper(), name))


@pytest.mark.parametrize("name", [name for name in NAMES if callable(getattr(kvslab, name))])
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>>" in documented(name), f"{name} has no example"


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isfunction(getattr(kvslab, name))])
def test_every_public_function_names_its_arguments_and_errors(name: str) -> None:
    text = documented(name)
    for argument in inspect.signature(getattr(kvslab, name)).parameters:
        assert f"    {argument}:" in text, f"{name} does not explain {argument}"
    assert "Raises:" in text, f"{name} does not say what it raises"
    assert "Source:" in text, f"{name} does not say what it rests on"


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in NAMES
        if inspect.isclass(getattr(kvslab, name)) and hasattr(getattr(kvslab, name), "__dataclass_fields__")
    ],
)
def test_every_public_value_names_its_fields(name: str) -> None:
    text = documented(name)
    for field, about in getattr(kvslab, name).__dataclass_fields__.items():
        assert f"    {field}:" in text or not about.init, f"{name} does not explain {field}"
    assert "Source:" in text, f"{name} does not say what it rests on"
