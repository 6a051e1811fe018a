"""Guards several workers: a stage that plans for itself would name block ids that another has not."""

import pytest

from kvslab.capacity import Load, plan_stages
from kvslab.errors import BudgetError, InputError
from kvslab.generations import GENERATIONS, generation_named
from kvslab.layers import CacheLayer
from kvslab.models import load_layers
from kvslab.plan import Plan

PRO = load_layers("deepseek-v4-pro")
BUDGET = 28_410_134_921


def stages(cut: int) -> tuple[tuple[CacheLayer, ...], tuple[CacheLayer, ...]]:
    first = tuple(layer for layer in PRO if int(layer.name.split(".")[2]) < cut)
    return first, PRO[len(first) :]


def test_one_stage_is_the_plain_plan() -> None:
    for generation in GENERATIONS.values():
        staged = plan_stages(generation, [PRO], [BUDGET])
        assert staged.stages[0].slab == generation.lay_out(PRO)
        assert staged.num_blocks == Plan(slab=generation.lay_out(PRO), budget_bytes=BUDGET).num_blocks


@pytest.mark.parametrize("slab", ["padded", "bucketed", "overlay"])
def test_the_pool_is_the_smallest_stages(slab: str) -> None:
    staged = plan_stages(generation_named(slab), stages(40), [BUDGET, BUDGET])
    strides = [plan.slab.block_stride for plan in staged.stages]
    assert strides[0] > strides[1]
    assert {plan.num_blocks for plan in staged.stages} == {BUDGET // strides[0]}
    assert all(plan.pool_bytes <= BUDGET for plan in staged.stages)
    names = [page.layer.name for plan in staged.stages for page in plan.slab.pages]
    assert sorted(names) == sorted(layer.name for layer in PRO)


def test_an_empty_group_is_free() -> None:
    windows = tuple(layer for layer in PRO if layer.name.endswith("swa_cache"))
    rest = tuple(layer for layer in PRO if layer not in windows)
    staged = plan_stages(generation_named("overlay"), [windows, rest], [BUDGET, BUDGET])
    assert len(staged.groups) == 5
    assert [len(plan.slab.groups) for plan in staged.stages] == [2, 3]
    assert staged.stages[0].slab.block_stride == 31 * 32_768
    plan_stages(generation_named("padded"), [windows, rest], [BUDGET, BUDGET])


def test_an_override_holds_on_every_stage() -> None:
    staged = plan_stages(generation_named("overlay"), stages(30), [BUDGET, 1], num_blocks_override=500)
    assert [plan.num_blocks for plan in staged.stages] == [500, 500]
    load = Load.of(1_048_576, max_in_flight_tokens=2048)
    # 499 usable blocks: the states in flight take 513 + 257 + 2 * 35 blocks before any token is kept.
    assert staged.auto_fit_max_model_len(load, "stride", keep_null_block=True) < 2048


def test_ranks_multiply_requests_and_not_their_length() -> None:
    load = Load.of(131_072, max_in_flight_tokens=8192)
    one = plan_stages(generation_named("overlay"), stages(30), [BUDGET, BUDGET])
    eight = plan_stages(generation_named("overlay"), stages(30), [BUDGET, BUDGET], num_data_parallel_ranks=8)
    assert eight.max_concurrency(load, "steady") == 8 * one.max_concurrency(load, "steady")
    longest = [plan.auto_fit_max_model_len(load, "tuple", keep_null_block=False) for plan in (one, eight)]
    assert longest == [131_072, 131_072]


def test_faults_are_named() -> None:
    generation = generation_named("overlay")
    with pytest.raises(InputError, match="budgets: got 1, need one for each of the 2 stages"):
        plan_stages(generation, stages(30), [BUDGET])
    with pytest.raises(InputError, match=r"layers: got 'model\.layers\.0\.attn\.swa_cache', need a name"):
        plan_stages(generation, [PRO, PRO], [BUDGET, BUDGET])
    with pytest.raises(BudgetError, match="budget: got 5 bytes"):
        plan_stages(generation, stages(30), [BUDGET, 5])
    with pytest.raises(InputError, match="num_data_parallel_ranks: got 0"):
        plan_stages(generation, [PRO], [BUDGET], num_data_parallel_ranks=0)
