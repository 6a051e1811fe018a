"""Guards the claim `best`: a planner that misses a better plan, or counts one wrongly, fails in silence.

The oracle tries every split of every class with every allowed block size, builds the
groups, and counts blocks by listing tokens; it shares no arithmetic with the search.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvslab.capacity import Load, max_concurrency, plan_stages
from kvslab.cli import main
from kvslab.errors import BudgetError, InputError, LayoutError, RefusedError
from kvslab.fit import (
    BLOCK_SIZES,
    FITTED,
    NOTICEABLE,
    BlockSizes,
    Peer,
    breakdown,
    fit,
    frontier,
    generation_for,
    load_from_json,
    peers,
    plan_from_json,
    plan_to_json,
    steady_requests,
    whole_page_bound,
    zero_waste_bound,
)
from kvslab.fit.classes import allowed_block_sizes, layer_classes, options_of
from kvslab.fit.search import best_options
from kvslab.generations import GENERATIONS, generation_named
from kvslab.groups import CacheGroup
from kvslab.layers import (
    CacheLayer,
    FullHistory,
    LayerSpec,
    RecurrentState,
    Retention,
    SlidingWindow,
    layers_from_json,
    layers_to_json,
)
from kvslab.models import load_layers
from kvslab.plan import Plan
from kvslab.published import budget_interval
from kvslab.slab import pack_dense
from stacks import stacks

BUDGET = 28_410_134_921  # 26.459 GiB
MILLION = 1_048_576


def small_stacks() -> st.SearchStrategy[tuple[CacheLayer, ...]]:
    """Two to eight layers of up to three kinds, pages of a few bytes."""
    specs = [
        {"kind": "mla_attention", "block_size": 64, "row_bytes": 3, "compress_ratio": 2},
        {"kind": "mla_attention", "block_size": 64, "row_bytes": 2, "compress_ratio": 4},
        {"kind": "sliding_window_mla", "block_size": 4, "row_bytes": 5, "sliding_window": 6},
        {
            "kind": "sliding_window_mla",
            "block_size": 4,
            "row_bytes": 11,
            "sliding_window": 6,
            "alignment": 16,
        },
        {"kind": "sliding_window_mla", "block_size": 64, "row_bytes": 1, "sliding_window": 100},
        {"kind": "mamba", "block_size": 16, "page_bytes": 70},
    ]
    picks = st.lists(st.integers(0, len(specs) - 1), min_size=2, max_size=8)
    return picks.map(
        lambda rows: layers_from_json(
            {"layers": [{"name": f"l{i}", **specs[pick]} for i, pick in enumerate(rows)]}
        )
    )


def blocks_between_steps(retention: Retention, block_size: int, tokens: int, load: Load) -> int:
    """Blocks that hold a token which some next token can see: the most over all phases of the window."""
    match retention:
        case RecurrentState():
            return 1
        case FullHistory():
            return len({t // block_size for t in range(tokens)})
        case SlidingWindow(window_tokens=window):
            phases = range(window, window + 2 * block_size)
            most = max(len({t // block_size for t in range(p - window + 1, p)}) for p in phases)
            # `steady` keeps a block for a window's straddle even where the window never straddles.
            kept = -(-(window - 1) // block_size) + 1
            assert most <= kept
            return min(len({t // block_size for t in range(tokens)}), kept)
        case _:
            raise AssertionError(retention)


def every_grouping(layers: Sequence[CacheLayer], load: Load, rule: BlockSizes) -> Iterator[list[CacheGroup]]:
    """Every even split with every allowed block size, built layer by layer."""
    classes: dict[object, list[CacheLayer]] = {}
    for layer in layers:
        spec = layer.spec
        classes.setdefault((spec.kind, spec.block_size, spec.retention), []).append(layer)
    ways = []
    for members in classes.values():
        declared = members[0].spec.block_size
        sizes = allowed_block_sizes(layer_classes(members)[0], load, rule)
        rows = []
        for size in sizes:
            resized = [
                m if size == declared else CacheLayer(name=m.name, spec=m.spec.with_block_size(size))
                for m in members
            ]
            columns: dict[int, list[CacheLayer]] = {}
            for layer in resized:
                columns.setdefault(layer.spec.page_bytes, []).append(layer)
            for k in range(1, max(map(len, columns.values())) + 1):
                shares = [[layer for column in columns.values() for layer in column[i::k]] for i in range(k)]
                rows.append(
                    [
                        CacheGroup(layers=tuple(s), page_bytes=tuple(layer.spec.page_bytes for layer in s))
                        for s in shares
                    ]
                )
        ways.append(rows)
    for choice in itertools.product(*ways):
        yield [group for part in choice for group in part]


def oracle(groups: Sequence[CacheGroup], load: Load, budget: int) -> Fraction:
    stride = max(sum(group.page_bytes) for group in groups)
    held, transient, total = 0, 0, 0
    for tokens, weight in load.lengths:
        held += weight * sum(blocks_between_steps(g.retention, g.block_size, tokens, load) for g in groups)
        total += weight
    for group in groups:
        if isinstance(group.retention, SlidingWindow):
            transient += len({t // group.block_size for t in range(load.max_in_flight_tokens)})
    return max(Fraction(0), Fraction(total * (budget // stride - 1 - transient), held))


@given(
    layers=small_stacks(),
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    in_flight=st.sampled_from([1, 5, 40]),
    budget=st.integers(300, 60_000),
    rule=st.sampled_from(BLOCK_SIZES),
)
@settings(deadline=None, max_examples=60)
def test_no_split_is_better(
    layers: tuple[CacheLayer, ...], lengths: list[int], in_flight: int, budget: int, rule: BlockSizes
) -> None:
    load = Load.of(lengths, max_in_flight_tokens=in_flight)
    classes = layer_classes(layers)
    chosen = best_options([options_of(c, load, load.lengths, rule) for c in classes], budget)
    best, fewest = Fraction(0), 0
    most: dict[int, Fraction] = {}
    for groups in every_grouping(layers, load, rule):
        value = oracle(groups, load, budget)
        most[len(groups)] = max(value, most.get(len(groups), Fraction(0)))
        if value > best or (value == best and len(groups) < fewest):
            best, fewest = value, len(groups)
    rising: list[tuple[int, Fraction]] = []
    for num_groups, value in sorted(most.items()):
        if value > (rising[-1][1] if rising else 0):
            rising.append((num_groups, value))
    points = frontier(layers, load, budget, block_sizes=rule)
    assert [(point.num_groups, point.requests) for point in points] == rising
    if chosen is None:
        assert best == 0
        return
    slab = generation_for(load, budget, block_sizes=rule).group(layers)
    assert (oracle(slab, load, budget), len(slab)) == (best, fewest)
    assert (
        max_concurrency(slab, Plan(slab=pack_dense(slab), budget_bytes=budget).num_blocks, load, "steady")
        == best
    )
    fitted = fit(layers, load, budget, block_sizes=rule)
    assert fitted.requests >= best  # overlay may change block sizes in its own way


@given(
    layers=stacks,
    tokens=st.integers(1, 100_000),
    in_flight=st.sampled_from([1, 700]),
    budget=st.integers(10**5, 10**9),
    rule=st.sampled_from(BLOCK_SIZES),
)
@settings(deadline=None, max_examples=100)
def test_laws_of_a_fitted_plan(
    layers: tuple[CacheLayer, ...], tokens: int, in_flight: int, budget: int, rule: BlockSizes
) -> None:
    load = Load.of(tokens, max_in_flight_tokens=in_flight)
    try:
        fitted = fit(layers, load, budget, block_sizes=rule)
    except BudgetError:
        return
    plan = fitted.plan
    for packed in (False, True):
        try:
            overlay = Plan(
                slab=generation_named("overlay").lay_out(layers, packed=packed), budget_bytes=budget
            )
        except (RefusedError, BudgetError):
            continue
        assert fitted.requests >= steady_requests(overlay, load)
    assert sorted(page.layer.name for page in plan.slab.pages) == sorted(layer.name for layer in layers)
    assert sum(choice.num_layers for choice in fitted.choices) == len(layers)
    assert sum(choice.num_groups for choice in fitted.choices) == len(plan.slab.groups)
    parts = breakdown(plan, load)
    assert parts.budget_bytes == budget
    assert all(getattr(parts, name) >= 0 for name in parts.__slots__)
    assert fitted.requests <= fitted.zero_waste_bound
    allowed = [allowed_block_sizes(members, load, rule) for members in layer_classes(layers)]
    # Overlay's own groups may have block sizes grown beyond the rule, to make pages equal.
    if all(choice.block_size in sizes for choice, sizes in zip(fitted.choices, allowed, strict=True)):
        assert fitted.requests <= fitted.whole_page_bound <= fitted.zero_waste_bound
    if plan.slab.block_outermost:
        assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


@pytest.mark.parametrize(
    ("model", "backend", "tokens", "least", "most"),
    [
        ("deepseek-v4-pro", "flashinfer", MILLION, "0.06", "0.07"),
        ("deepseek-v4-flash", "flashinfer", MILLION, "0.06", "0.07"),
        ("deepseek-v4-pro", "flashinfer", 131_072, "0.06", "0.07"),
        ("deepseek-v4-flash", "flashinfer", 131_072, "0.07", "0.08"),
        ("deepseek-v4-pro", "flashmla", MILLION, "0", "0.001"),
        ("deepseek-v4-flash", "flashmla", MILLION, "0", "0.001"),
    ],
)
def test_gain_over_the_merged_change(model: str, backend: str, tokens: int, least: str, most: str) -> None:
    budget = BUDGET if backend == "flashinfer" else budget_interval(backend).low_bytes
    fitted = fit(load_layers(model, backend=backend), Load.of(tokens, max_in_flight_tokens=1), budget)
    assert fitted.gain_over_overlay is not None
    assert Fraction(least) <= fitted.gain_over_overlay < Fraction(most)


def test_pro_at_a_million_tokens_by_hand() -> None:
    fitted = fit(load_layers("deepseek-v4-pro"), Load.of(MILLION, max_in_flight_tokens=1), BUDGET)
    # The C4 state's block of 4 tokens becomes 2: half of 1,228,800 bytes; the latent group sets the stride.
    assert fitted.plan.slab.block_stride == 1_153_024
    assert [(c.num_groups, c.declared_block_size, c.block_size) for c in fitted.choices] == [
        (1, 256, 256),
        (2, 64, 64),
        (1, 8, 8),
        (1, 4, 2),
    ]
    # 4,096 latent blocks, 2 x 3 windows, 17 and 5 of states; 2 x 1 + 1 + 1 in flight; one null block.
    assert fitted.requests == Fraction(BUDGET // 1_153_024 - 1 - 4, 4096 + 6 + 17 + 5)
    assert fitted.overlay_requests == Fraction(23_120 - 1 - 4, 4096 + 6 + 17 + 3)
    assert fitted.tokens == fitted.requests * MILLION
    kept = fit(
        load_layers("deepseek-v4-pro"), Load.of(MILLION, max_in_flight_tokens=1), BUDGET, block_sizes="keep"
    )
    assert [c.num_groups for c in kept.choices] == [1, 2, 1, 2]


def test_a_cap_on_groups() -> None:
    layers, load = load_layers("deepseek-v4-pro"), Load.of(8192, max_in_flight_tokens=1)
    points = frontier(layers, load, BUDGET)
    for cap in (5, 8, 20, 100):
        capped = fit(layers, load, BUDGET, max_groups=cap)
        assert len(capped.plan.slab.groups) <= cap
        assert capped.requests == max(point.requests for point in points if point.num_groups <= cap)
    with pytest.raises(InputError, match="max_groups: got 3, need at least one group for each of 4 classes"):
        fit(layers, load, BUDGET, max_groups=3)


def test_one_stride_for_a_mixture() -> None:
    layers = load_layers("deepseek-v4-flash")
    mix = Load(lengths=((4096, 90), (65_536, 9), (MILLION, 1)), max_in_flight_tokens=8192)
    by_requests = fit(layers, mix, BUDGET)
    by_tokens = fit(layers, mix, BUDGET, objective="tokens")
    assert by_requests.gain_over_overlay and by_requests.gain_over_overlay > Fraction("0.05")
    # Shares of tokens weigh long requests less in number, so the answers may differ.
    assert by_requests.requests >= by_tokens.requests
    one = Load.of(65_536, max_in_flight_tokens=8192)
    assert fit(layers, one, BUDGET).plan == fit(layers, one, BUDGET, objective="tokens").plan


def test_ties_go_to_fewer_groups_and_to_overlay() -> None:
    row = {"block_size": 8, "row_bytes": 4, "sliding_window": 8, "kind": "sliding_window_mla"}
    layers = layers_from_json(
        {
            "layers": [
                {"name": "m", "kind": "mla_attention", "block_size": 8, "row_bytes": 16},
                *({"name": f"w{i}", **row} for i in range(4)),
            ]
        }
    )
    # One latent page of 128 bytes, four window pages of 32: nothing to gain from any cut.
    fitted = fit(layers, Load.of(8, max_in_flight_tokens=1), 10_000, block_sizes="keep")
    assert len(fitted.plan.slab.groups) == 2
    overlay = generation_named("overlay").lay_out(load_layers("deepseek-v4-pro", backend="flashmla"))
    same = fit(
        load_layers("deepseek-v4-pro", backend="flashmla"),
        Load.of(MILLION, max_in_flight_tokens=1),
        budget_interval("flashmla").low_bytes,
        block_sizes="keep",
    )
    assert same.plan.slab == overlay
    assert same.gain_over_overlay == 0


def test_effort_does_not_grow_with_layers() -> None:
    def stack(count: int) -> tuple[CacheLayer, ...]:
        wide = {"kind": "mla_attention", "block_size": 256, "row_bytes": 128, "compress_ratio": 4}
        window = {"kind": "sliding_window_mla", "block_size": 64, "row_bytes": 512, "sliding_window": 128}
        return layers_from_json(
            {"layers": [{"name": f"{i}", **(wide if i % 2 else window)} for i in range(2 * count)]}
        )

    load = Load.of(8192, max_in_flight_tokens=1)
    few, many = (
        sum(len(options_of(c, load, load.lengths, "keep")) for c in layer_classes(stack(count)))
        for count in (100, 10_000)
    )
    assert few <= 4 * 10 and many <= 4 * 100  # 2 * sqrt(n) splits a class


def test_the_registered_generation() -> None:
    assert "fitted" not in GENERATIONS
    assert generation_named("fitted") is FITTED
    layers = load_layers("deepseek-v4-pro")
    slab = FITTED.lay_out(layers)
    assert slab.block_stride == 1_153_024
    half = len(layers) // 2
    staged = plan_stages(FITTED, [layers[:half], layers[half:]], [BUDGET, BUDGET])
    assert staged.stages[0].num_blocks == staged.stages[1].num_blocks
    with pytest.raises(InputError, match=r"slab: got 'best', need one of .*fitted"):
        generation_named("best")


@pytest.mark.parametrize("backend", ["flashinfer", "flashmla"])
def test_peers_stay_below_the_bound(backend: str) -> None:
    layers = load_layers("deepseek-v4-flash", backend=backend)
    budget = budget_interval(backend).low_bytes
    for tokens in (8192, MILLION):
        load = Load.of(tokens, max_in_flight_tokens=1)
        found: dict[str, Peer] = {peer.name: peer for peer in peers(layers, load, budget)}
        bound = zero_waste_bound(layers, load, budget)
        for peer in found.values():
            assert peer.requests is not None and 0 < peer.requests <= bound
        assert found["layer_pools"].requests <= whole_page_bound(layers, load, budget)
        assert found["fitted"].requests >= found["overlay"].requests
        assert found["fixed_pools"].requests < found["overlay"].requests
        cost = found["overlay"].cost
        assert cost is not None and cost.num_tables == 5
        # 1/256 + 2/64 + 1/4 + 1/8 blocks a token, each block one entry.
        assert cost.blocks_per_1000_tokens == 1000 * (Fraction(1, 256) + Fraction(2, 64) + Fraction(3, 8))
        assert cost.table_entries * 1000 == tokens * cost.blocks_per_1000_tokens


def test_a_peer_that_refuses_says_why() -> None:
    layers = layers_from_json(
        {
            "layers": [
                {"name": "m", "kind": "mla_attention", "block_size": 8, "row_bytes": 16},
                {
                    "name": "w",
                    "kind": "sliding_window_mla",
                    "block_size": 64,
                    "row_bytes": 16,
                    "sliding_window": 8,
                },
            ]
        }
    )
    found = {p.name: p for p in peers(layers, Load.of(64, max_in_flight_tokens=1), 100_000)}
    assert found["bucketed"].requests is None and "larger than every page" in found["bucketed"].note
    assert found["fitted"].requests
    starved = {p.name: p for p in peers(layers, Load.of(64, max_in_flight_tokens=1), 10)}
    assert starved["fitted"].requests is None and "budget: got 10 bytes" in starved["fitted"].note


def test_the_frontier_rises_to_the_optimum() -> None:
    layers = load_layers("deepseek-v4-pro")
    for tokens, rule in itertools.product((8192, MILLION), BLOCK_SIZES):
        load = Load.of(tokens, max_in_flight_tokens=1)
        points = frontier(layers, load, BUDGET, block_sizes=rule)
        assert [p.num_groups for p in points] == sorted({p.num_groups for p in points})
        assert [p.requests for p in points] == sorted({p.requests for p in points})
        assert points[-1].requests == fit(layers, load, BUDGET, block_sizes=rule).requests
        for point in points:
            assert point.requests == steady_requests(point.plan, load)
    assert frontier(layers, load, 10) == ()


def test_kernel_legal_block_sizes() -> None:
    load = Load.of(MILLION, max_in_flight_tokens=1)
    sizes = {
        c.declared_block_size: allowed_block_sizes(c, load, "kernel-legal")
        for c in layer_classes(load_layers("deepseek-v4-pro"))
    }
    assert sizes == {256: (128, 256), 64: (64, 128), 8: (1, 2, 4, 8, 16, 32, 64, 128), 4: (1, 2, 4, 8)}
    padded = LayerSpec(kind="mla_attention", block_size=64, row_bytes=2, fixed_page_bytes=500)
    alone = layer_classes([CacheLayer(name="a", spec=padded), CacheLayer(name="b", spec=padded)])[0]
    assert allowed_block_sizes(alone, load, "free") == (64,)


def test_faults_are_named() -> None:
    layers = load_layers("deepseek-v4-pro")
    load = Load.of(8192, max_in_flight_tokens=1)
    with pytest.raises(InputError, match=r"block_sizes: got 'any', need one of kernel-legal, free, keep"):
        fit(layers, load, BUDGET, block_sizes="any")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"objective: got 'speed', need one of requests, tokens"):
        fit(layers, load, BUDGET, objective="speed")  # type: ignore[arg-type]
    many = Load.of(range(1, 1002), max_in_flight_tokens=1)
    with pytest.raises(InputError, match="lengths: got 1001, need at most 1,000 different lengths"):
        fit(layers, many, BUDGET, objective="tokens")
    with pytest.raises(InputError, match="budget: got 0"):
        fit(layers, load, 0)
    with pytest.raises(BudgetError, match="budget: got 5 bytes, need one block"):
        fit(layers, load, 5)
    with pytest.raises(InputError, match=r"lengths\[0\]\.tokens: got -1"):
        load_from_json({"lengths": [{"tokens": -1}]}, max_in_flight_tokens=1)
    with pytest.raises(InputError, match="no such field"):
        load_from_json({"lengths": [{"tokens": 1, "share": 2}]}, max_in_flight_tokens=1)
    with pytest.raises(InputError, match="lengths: got 0"):
        load_from_json({"lengths": []}, max_in_flight_tokens=1)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", "x", "format: got 'x', need one of kvslab-plan-1"),
        ("num_blocks", 7, "num_blocks: got 7, need 24,639"),
        ("groups", [], "groups: got '.*', need every layer in one group"),
        ("groups", [{"block_size": 8, "layers": []}], "need at least one layer"),
        ("groups", [{"block_size": 8, "layers": [{"name": "?"}]}], "name: got '\\?', need a layer"),
        ("block_stride", 5, "past the block stride"),
        ("more", 1, "no such field"),
    ],
)
def test_a_wrong_plan_file_is_refused(field: str, value: object, message: str) -> None:
    plan = fit(load_layers("deepseek-v4-pro"), Load.of(MILLION, max_in_flight_tokens=1), BUDGET).plan
    written = plan_to_json(plan) | {field: value}
    with pytest.raises((InputError, LayoutError), match=message):
        plan_from_json(written)


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan_file, mix = tmp_path / "plan.json", tmp_path / "mix.json"
    common = ["fit", "deepseek-v4-pro", "--backend", "flashinfer", "--budget", "26.459GiB"]
    one = [*common, "--max-model-len", "1048576", "--max-in-flight-tokens", "1"]
    assert main([*one, "--export", str(plan_file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["block_stride"], answer["num_blocks"]) == (1_153_024, 24_639)
    assert answer["gain_over_overlay"] >= 0.06
    assert answer["max_concurrency"]["steady"] < answer["bound"]["whole_page"] < answer["bound"]["zero_waste"]
    assert [(c["num_groups"], c["block_size"]) for c in answer["classes"]] == [
        (1, 256),
        (2, 64),
        (1, 8),
        (1, 2),
    ]
    assert sum(len(group["layers"]) for group in answer["groups"]) == 243
    # Each part is rounded to a byte.
    assert abs(sum(answer["bytes"].values()) - answer["budget_bytes"]) <= len(answer["bytes"])
    exported = plan_from_json(json.loads(plan_file.read_text(encoding="utf-8")))
    assert (exported.slab.block_stride, exported.num_blocks) == (1_153_024, 24_639)
    assert main(one) == 0
    assert "+6.52 %" in capsys.readouterr().out
    mix.write_text('{"lengths": [{"tokens": 8192, "weight": 9}, {"tokens": 1048576}]}', encoding="utf-8")
    for objective in ("requests", "tokens"):
        assert (
            main([*common, "--mix", str(mix), "--objective", objective, "--max-groups", "8", "--json"]) == 0
        )
        answer = json.loads(capsys.readouterr().out)
        assert len(answer["lengths"]) == 2 and len(answer["groups"]) <= 8
    layers = tmp_path / "layers.json"
    layers.write_text(json.dumps(layers_to_json(load_layers("deepseek-v4-flash"))), encoding="utf-8")
    for wrong, message in (
        ([*one, "--mix", str(mix)], "max_model_len: got 1048576, need no such option beside --mix"),
        ([*common, "--mix", str(layers)], "no such field"),
        ([*common, "--mix", str(tmp_path / "none.json")], "No such file"),
        ([*one, "--block-sizes", "all"], "block_sizes: got 'all'"),
        ([*one, "--objective", "speed"], "objective: got 'speed'"),
        ([*one, "--max-groups", "2"], "max_groups: got 2"),
        ([*one, "--export", str(tmp_path / "none" / "x.json")], "need a file that can be written"),
        (["fit", str(layers), "--budget", "1GiB"], "max_model_len"),
        (["fit", "deepseek-v4-pro", "--budget", "1KiB"], "need one block"),
    ):
        assert main(wrong) == 2, wrong
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1, err


def test_gains_that_nobody_notices_keep_the_merged_groups() -> None:
    layers, load = load_layers("gpt-oss-20b"), Load.of(8192, max_in_flight_tokens=8192)
    exact = fit(layers, load, 40 * 2**30)
    kept = fit(layers, load, 40 * 2**30, min_gain=NOTICEABLE)
    assert 0 < exact.gain_over_overlay < NOTICEABLE
    assert kept.gain_over_overlay == 0 and len(kept.plan.slab.groups) == 2 < len(exact.plan.slab.groups)
    pro = load_layers("deepseek-v4-pro")
    assert fit(pro, load, 26 * 2**30, min_gain=NOTICEABLE).plan == fit(pro, load, 26 * 2**30).plan
    with pytest.raises(InputError, match="min_gain: got Fraction"):
        fit(pro, load, 26 * 2**30, min_gain=-NOTICEABLE)
