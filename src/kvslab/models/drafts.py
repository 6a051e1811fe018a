"""Draft models beside a target: their layers are layers like others, where pages allow it.

A draft's layers join the target's stack.  Mixed kinds of layers need pages that
divide one another; a draft with windows beside a latent (MLA) target rarely has
them.  For that one case the engine has a fallback: the draft's windows are *stored*
as full attention, with the target's block size, so that all layers share one block
table and nothing needs to be equal::

    draft page = target block_size * draft row_bytes

The windows then free nothing: the draft costs what a full layer costs.

Not modelled: releases since about vLLM 0.25 can also pad a page that does not divide,
where the attention backend reads pages by the block stride; here it is refused.

Source: vLLM PR 48776 (sparse-MLA targets with sliding-window drafts); vllm-ascend issue
13213 quotes the refusal.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvslab.layers import CacheLayer, FullHistory, RecurrentState
from kvslab.models.options import ModelStack


def with_prefix(layers: Sequence[CacheLayer], prefix: str) -> tuple[CacheLayer, ...]:
    """The same layers under other names, so that a draft's do not meet the target's."""
    return tuple(CacheLayer(name=f"{prefix}{layer.name}", spec=layer.spec) for layer in layers)


def pages_unify(layers: Sequence[CacheLayer]) -> bool:
    """Whether one group, or equal pages, can hold these layers.

    They can where all keep everything in blocks of one size, where all pages are of
    one size, and where each page divides the largest (a state's page is padded).
    """
    specs = {layer.spec for layer in layers}
    if all(isinstance(s.retention, FullHistory) for s in specs) and len({s.block_size for s in specs}) == 1:
        return True
    largest = max(spec.page_bytes for spec in specs)
    return all(isinstance(s.retention, RecurrentState) or largest % s.page_bytes == 0 for s in specs)


def join_draft(target: ModelStack, draft: ModelStack) -> ModelStack:
    """Put a draft model's layers behind the target's, with the fallback where it applies.

    Where the pages cannot be made equal and the fallback does not apply, the stack
    stays as it is: the generation of the planner decides, and says which layers
    and sizes it refuses.

    Args:
        target: The model.
        draft: The draft; its layers come last, on the last pipeline stage.
    """
    layers = with_prefix(draft.layers, "draft.")
    notes = list(draft.notes)
    block_sizes = {layer.spec.block_size for layer in target.layers}
    latent = all(layer.spec.kind == "mla_attention" for layer in target.layers)
    windows = [layer for layer in layers if layer.spec.kind == "sliding_window"]
    if windows and latent and len(block_sizes) == 1 and not pages_unify((*target.layers, *layers)):
        (block_size,) = block_sizes
        largest = max(target.layers, key=lambda layer: layer.spec.page_bytes)
        first = windows[0]
        layers = tuple(
            CacheLayer(
                name=layer.name,
                spec=replace(
                    layer.spec, kind="full_attention", block_size=block_size, retention=FullHistory()
                ),
            )
            if layer.spec.kind in ("sliding_window", "full_attention")
            else layer
            for layer in layers
        )
        page = next(layer.spec.page_bytes for layer in layers if layer.name == first.name)
        notes.append(
            f"{len(windows)} draft windows stored as full attention: the page of {first.name!r},"
            f" {first.spec.page_bytes:,} bytes, does not divide the {largest.spec.page_bytes:,} bytes of"
            f" {largest.name!r}; it becomes {page:,} bytes of {block_size} tokens"
        )
    return replace(target, drafts=(*target.drafts, *layers), notes=(*target.notes, *notes))
