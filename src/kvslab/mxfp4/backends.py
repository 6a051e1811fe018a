"""The registry of backends: a name, what it needs, and the module that is loaded on first use."""

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from kvslab.errors import InputError
from kvslab.mxfp4.checks import PagedView
from kvslab.mxfp4.contract import Rule


class Backend(Protocol):
    """What every backend module offers.

    Shapes, dtypes and devices are already checked, and no tensor is empty.  Values are not
    where the caller passes `checked=False`: never write at a slot out of range, and read a
    block out of range as rows that do not exist.  Inputs and outputs may be strided.
    """

    def missing(self, device: torch.device) -> str | None:
        """What is missing to run on a device; None if nothing is."""

    def quantize(self, x: torch.Tensor, rule: Rule, values: torch.Tensor, scales: torch.Tensor) -> None:
        """Quantize `x[N, 128]` into `values[N, 64]` and `scales[N, 4]`."""

    def dequantize(self, values: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
        """Dequantize into `out[N, 128]`."""

    def insert(self, view: PagedView, x: torch.Tensor, slots: torch.Tensor, rule: Rule) -> None:
        """Quantize `x[N, 128]` and write each row at its slot."""

    def gather(
        self, view: PagedView, block_table: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Read rows into `out[B, L, 128]`; rows past a length are zero."""

    def logits(
        self,
        q: torch.Tensor,
        weights: torch.Tensor,
        view: PagedView,
        block_table: torch.Tensor,
        context_lens: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Indexer logits `out[T, L]`; -inf past the context."""

    def topk(self, scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The `k` largest of each row: values and int32 indices, -1 where a value is -inf.

        NaN counts as -inf, and of equal scores the lower index comes first.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A registered backend.

    Attributes:
        module: Where it lives.
        packages: What must be installed, by import name, and how pip calls it.
    """

    module: str
    packages: Mapping[str, str]


BACKENDS: dict[str, Entry] = {
    "codec": Entry(module="kvslab.mxfp4.codec_backend", packages={}),
    "reference": Entry(module="kvslab.mxfp4.reference", packages={}),
    "cpu": Entry(module="kvslab.mxfp4.cpu", packages={"numba": "numba"}),
    "triton": Entry(module="kvslab.mxfp4.triton_backend", packages={"triton": "triton"}),
    "flashinfer": Entry(module="kvslab.mxfp4.flashinfer", packages={"flashinfer": "flashinfer-python"}),
}
"""The backends by name, each loaded on first use."""
AUTO = "auto"
"""The name that lets the tensors' device pick a backend."""


def checked_backend(name: object, device: torch.device) -> tuple[str, Backend]:
    """The backend of a name, loaded, if it can run on a device; `auto` picks one.

    `auto` takes `triton` on CUDA and `cpu` elsewhere.

    Raises:
        InputError: There is no such backend, or the message says what it lacks here.
    """
    if name == AUTO:
        name = "triton" if device.type == "cuda" else "cpu"
    if not isinstance(name, str) or name not in BACKENDS:
        raise InputError("backend", name, f"{AUTO} or one of {', '.join(BACKENDS)}")
    entry = BACKENDS[name]
    lacking = [pip for module, pip in entry.packages.items() if importlib.util.find_spec(module) is None]
    if lacking:
        raise InputError("backend", name, f"the package {', '.join(lacking)}, which is not installed")
    backend = cast(Backend, importlib.import_module(entry.module))
    missing = backend.missing(device)
    if missing is not None:
        raise InputError("backend", name, missing)
    return name, backend


def available(device: torch.device | str = "cpu") -> tuple[str, ...]:
    """The backends that can run on a device.

    >>> "reference" in available("cpu")
    True
    """
    found = []
    for name in BACKENDS:
        try:
            found.append(checked_backend(name, torch.device(device))[0])
        except InputError:
            continue
    return tuple(found)
