"""Hypothesis strategies: stacks of layers, from two layers upward."""

from hypothesis import strategies as st

from kvslab.layers import CacheLayer, FullHistory, LayerSpec, LocalChunk, SlidingWindow

ALIGNMENTS = st.sampled_from([1, 64, 512, 576])


@st.composite
def latent_stacks(draw: st.DrawFn) -> tuple[CacheLayer, ...]:
    """Latent layers with windows and states beside them, shaped like DeepSeek-V4 but with other sizes."""
    alignment = draw(ALIGNMENTS)
    latent_bytes = draw(st.sampled_from([32, 68, 512, 584]))
    key_bytes = draw(st.sampled_from([17, 68, 132]))
    state_bytes = draw(st.sampled_from([64, 2048, 8192]))
    latent = {
        ratio: LayerSpec(
            kind="mla_attention",
            block_size=256,
            row_bytes=latent_bytes,
            compress_ratio=ratio,
            alignment=alignment,
        )
        for ratio in (4, 128)
    }
    keys = LayerSpec(
        kind="mla_attention", block_size=256, row_bytes=key_bytes, compress_ratio=4, alignment=alignment
    )

    def windowed(block_size: int, row_bytes: int, window: int) -> LayerSpec:
        return LayerSpec(
            kind="sliding_window_mla",
            block_size=block_size,
            row_bytes=row_bytes,
            alignment=alignment,
            retention=SlidingWindow(window_tokens=window),
        )

    tensors = {
        0: [windowed(64, latent_bytes, 128)],
        4: [
            keys,
            windowed(4, state_bytes // 4, 8),
            windowed(64, latent_bytes, 128),
            latent[4],
            windowed(4, state_bytes, 8),
        ],
        128: [windowed(64, latent_bytes, 128), latent[128], windowed(8, state_bytes, 128)],
    }
    ratios = draw(st.lists(st.sampled_from([0, 4, 128]), min_size=1, max_size=24).filter(lambda r: 4 in r))
    return tuple(
        CacheLayer(name=f"{i}.{j}", spec=spec)
        for i, ratio in enumerate(ratios)
        for j, spec in enumerate(tensors[ratio])
    )


@st.composite
def uniform_stacks(draw: st.DrawFn) -> tuple[CacheLayer, ...]:
    """Full, windowed and chunked layers whose pages divide one another."""
    row_bytes = draw(st.sampled_from([256, 4096]))
    specs = [
        LayerSpec(
            kind="full_attention",
            block_size=16,
            row_bytes=row_bytes * draw(st.sampled_from([1, 2, 4])),
            retention=FullHistory(),
        ),
        LayerSpec(
            kind="sliding_window",
            block_size=16,
            row_bytes=row_bytes,
            retention=SlidingWindow(window_tokens=1024),
        ),
        LayerSpec(
            kind="chunked_local_attention",
            block_size=16,
            row_bytes=row_bytes,
            retention=LocalChunk(chunk_tokens=512),
        ),
    ]
    picks = draw(st.lists(st.integers(0, 2), min_size=2, max_size=40))
    return tuple(CacheLayer(name=f"layer.{i}", spec=specs[pick]) for i, pick in enumerate(picks))


stacks = st.one_of(latent_stacks(), uniform_stacks())
