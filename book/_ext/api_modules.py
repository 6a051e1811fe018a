"""The directive ``api-modules``: one section for every module of a package, so that none is forgotten.

A name is described once, in the module that has its source; a package that passes it on links there.
It also keeps napoleon from reading the first words of "Bytes of one row: the sum of its parts." as a type.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def module_names(package: str) -> list[str]:
    """Return the package and its public modules, in the order of their names.

    The files are listed and nothing is imported: a module whose optional dependency is missing counts too.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"{package} is not an installed package")
    root = Path(spec.submodule_search_locations[0])
    names = []
    for file in root.rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if not any(part.startswith("_") for part in parts):
            names.append(".".join((package, *parts)))
    return sorted(names)


def passed_on(name: str) -> dict[str, str]:
    """Return what a package passes on from its modules: name -> where it is described."""
    spec = find_spec(name)
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return {}
    links: dict[str, str] = {}
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module != name:
            inner = passed_on(node.module)
            links |= {
                a.name: inner.get(a.name, f"{node.module}.{a.name}") for a in node.names if a.asname is None
            }
    return {found: target for found, target in links.items() if target.startswith(name)}


class ApiModules(SphinxDirective):
    """``{api-modules} package`` writes a heading and an ``automodule`` for each module.

    Of the modules named in the option ``brief`` only the docstring is shown: the command line's functions
    take what typer makes of them, and ``--help`` describes them better.
    """

    required_arguments = 1
    option_spec: ClassVar = {"brief": str.split}

    def run(self) -> list[nodes.Node]:
        """Build the sections by parsing reStructuredText, the language that autodoc writes."""
        sections: list[nodes.Node] = []
        for name in module_names(self.arguments[0]):
            section = nodes.section(ids=[nodes.make_id(f"module-page-{name}")], names=[name])
            section += nodes.title(name, name)
            brief = "   :no-members:" if name in self.options.get("brief", ()) else ""
            lines = ["```{eval-rst}", f".. automodule:: {name}", "   :ignore-module-all:", brief, ""]
            links = passed_on(name)
            if links:
                refs = [f":py:obj:`{found} <{target}>`" for found, target in sorted(links.items())]
                lines += ["Passes on " + ", ".join(refs) + ".", ""]
            source = "\n".join([*lines, "```", ""])
            self.state.nested_parse(StringList(source.splitlines(), self.get_source_info()[0]), 0, section)
            sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("api-modules", ApiModules)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
