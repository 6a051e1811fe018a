"""How to cite the software and each table, as BibTeX; `CITATION.cff` says the same."""

from kvslab import __version__

AUTHORS = "The kvslab authors"
TITLE = "kvslab: what one KV-cache block costs"
YEAR = 2026
LICENSE = "Apache-2.0"


def _entry(kind: str, key: str, fields: dict[str, str]) -> str:
    width = max(map(len, fields))
    body = ",\n".join(f"  {name:<{width}} = {{{value}}}" for name, value in fields.items())
    return f"@{kind}{{{key},\n{body}\n}}\n"


def _plain(text: str) -> str:
    """Text with the characters escaped that BibTeX would take for commands."""
    for character in "&%_#$":
        text = text.replace(character, f"\\{character}")
    return text


def software_bibtex() -> str:
    """The entry of the software.

    >>> print(software_bibtex().splitlines()[0])
    @software{kvslab,
    """
    fields = {
        "author": f"{{{AUTHORS}}}",
        "title": f"{{{TITLE}}}",
        "version": __version__,
        "year": str(YEAR),
        "license": LICENSE,
    }
    return _entry("software", "kvslab", fields)


def table_bibtex(id: str, title: str, checksum: str) -> str:
    """The entry of one table of `results/`.

    Args:
        id: The table's id, e.g. `kvslab/strides`.
        title: Its title.
        checksum: SHA-256 of its CSV, hexadecimal.

    >>> print(table_bibtex("kvslab/strides", "Block stride", "ab" * 32).splitlines()[0])
    @misc{kvslab-strides,
    """
    fields = {
        "author": f"{{{AUTHORS}}}",
        "title": f"{{{_plain(title)}}}",
        "howpublished": f"Table \\texttt{{{_plain(id)}}} of kvslab {__version__}",
        "year": str(YEAR),
        "note": f"SHA-256 {checksum}",
    }
    return _entry("misc", id.replace("/", "-"), fields)
