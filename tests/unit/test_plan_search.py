"""The search: its rule, its budget, and that its recipe is one."""

import json
import math

import pytest

from hayakuchi.config.recipe import read_recipe
from hayakuchi.errors import UserError
from hayakuchi.plan import search as module
from hayakuchi.plan.cost import cost_of
from hayakuchi.plan.devices import find_devices
from hayakuchi.plan.frontier import table, write_search
from hayakuchi.plan.scaling import MOST_EPOCHS, predicted_loss
from hayakuchi.plan.search import Budget, choices, chosen_recipe, parse_budget, search, warnings_of
from hayakuchi.recipes import CTRL_NANO

DAY = 86_400


def test_more_of_everything_is_better():
    assert predicted_loss(2e8, 1e9) < predicted_loss(1e8, 1e9)
    assert predicted_loss(1e8, 2e9) < predicted_loss(1e8, 1e9)
    assert predicted_loss(1e8, 1e9, batch_tokens=1e4) < predicted_loss(1e8, 1e9, batch_tokens=1e6)


def test_the_rule_agrees_with_its_paper():
    # Without repetition: 521 / N^0.353 + 1488 / D^0.353 + 1.87 (arXiv 2305.16264, appendix A).
    assert predicted_loss(1e8, 1e10) == pytest.approx(521 / 1e8**0.353 + 1_488 / 1e10**0.353 + 1.87)
    # About 20 tokens a parameter are best for their operations.
    flops = 6 * 1e8 * 2e9
    best = min((1e6 * 1.05**step for step in range(200)), key=lambda n: predicted_loss(n, flops / 6 / n))
    assert 15 < flops / 6 / best / best < 25


def test_a_repeated_text_is_worth_less_than_a_new_one():
    unique = 1e9
    once, four, forty, eighty = (predicted_loss(1e7, times * unique, unique) for times in (1, 4, 40, 80))
    assert once > four > forty
    assert four - predicted_loss(1e7, 4 * unique) < 0.02  # nearly as good as new
    assert forty - eighty < 0.1 * (once - four)
    assert predicted_loss(1e7, unique, unique) == predicted_loss(1e7, unique)


@pytest.mark.parametrize(
    ("text", "seconds"), [("14d", 14 * DAY), ("36h", 1.5 * DAY), (" 2w ", 14 * DAY), ("0.5d", DAY / 2)]
)
def test_budgets_are_times(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["14", "d", "0d", "-1d", "14days", "14d 3h", "１４日", "nan d", "1e3d"])
def test_other_budgets_are_refused(text):
    with pytest.raises(UserError, match="--budget"):
        parse_budget(text)


def test_numbers_of_gpus_to_choose_from():
    t4 = find_devices("t4")
    assert [each.count for each in choices(t4, 3)] == [1, 2, 3]
    assert [each.name for each in choices(t4, 2)] == ["t4", "t4x2"]
    assert choices(t4, None) == [t4]
    with pytest.raises(UserError, match="--max-devices 0"):
        choices(t4, 0)
    with pytest.raises(UserError, match="v3-8 has 8"):
        choices(find_devices("v3-8"), 4)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(module, "WIDTHS", (128, 256))
    monkeypatch.setattr(module, "DEPTHS", (2, 4, 8))
    monkeypatch.setattr(module, "BATCHES", (64, 256))


T4 = find_devices("t4")


def test_lines_hit_what_was_not_traced():
    lines = module._Lines.of(CTRL_NANO, T4, 128, "float16", "none", "none")
    there = cost_of(module.shaped(CTRL_NANO, 6, 128, 16, 1, "float16", "none", "none"), T4)
    told = lines.at(6, 16, 1)
    assert told.parameters == there.parameters
    assert told.products == pytest.approx(there.products, rel=0.005)
    assert told.arguments == pytest.approx(there.arguments, rel=0.005)
    assert told.memory == pytest.approx(there.memory, rel=0.1)
    assert told.moved == pytest.approx(there.moved, rel=0.1)


def test_the_best_comes_first_and_keeps_to_the_budget(few):
    found = search(CTRL_NANO, [T4], Budget(seconds=3_600))
    assert [each.loss for each in found] == sorted(each.loss for each in found)
    for each in found:
        assert each.days <= 3_600 / DAY * 1.001
        assert each.tokens == each.steps * each.batch * CTRL_NANO.model.length
        assert each.precision == "float16"
    longer = search(CTRL_NANO, [T4], Budget(seconds=36_000))
    assert longer[0].loss < found[0].loss


def test_two_devices_do_more(few):
    one, two = (search(CTRL_NANO, [find_devices(name)], Budget(seconds=36_000))[0] for name in ("t4", "t4x2"))
    assert two.loss < one.loss


def test_a_small_text_ends_the_training_and_is_told(few):
    budget = Budget(seconds=14 * DAY, unique_tokens=1e6)
    best = search(CTRL_NANO, [T4], budget)[0]
    assert best.epochs == pytest.approx(MOST_EPOCHS, rel=0.02)
    assert best.days < 14
    assert any("used up" in note for note in warnings_of(best, budget))


def test_money_needs_a_price(few, tmp_path):
    with pytest.raises(UserError, match="--usd: no price of t4"):
        search(CTRL_NANO, [T4], Budget(usd=10))
    prices = tmp_path / "prices.toml"
    prices.write_text('[t4]\non_demand = 0.5\ndate = "2026-12"\nsource = "test"\n', encoding="utf-8")
    best = search(CTRL_NANO, [T4], Budget(usd=10), prices=prices)[0]
    assert best.usd == pytest.approx(10, rel=0.02)
    assert best.days == pytest.approx(20 / 24, rel=0.02)


def test_nothing_that_fits_is_told(few, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.0001")
    with pytest.raises(UserError, match="no model of the search fits"):
        search(CTRL_NANO, [find_devices("t4")], Budget(seconds=DAY))


def test_the_chosen_recipe_can_be_read_and_planned(few, tmp_path):
    found = search(CTRL_NANO, [T4], Budget(seconds=3_600), batch=64)
    chosen = chosen_recipe(CTRL_NANO, found[0])
    write_search(tmp_path / "out", chosen, {"chosen": 1}, {"all": found})
    again = read_recipe(tmp_path / "out" / "recipe.json")
    assert again == chosen
    assert again.train.batch == 64
    assert again.train.steps == found[0].steps
    assert again.optimizer.warmup_steps < again.train.steps
    assert (tmp_path / "out" / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "plan.json").read_text(encoding="utf-8")) == {"chosen": 1}
    assert cost_of(again, T4).parameters == found[0].parameters


def test_the_table_has_a_line_for_each(few):
    found = search(CTRL_NANO, [T4], Budget(seconds=3_600))
    lines = table(found).splitlines()
    assert len(lines) == len(found) + 1
    assert len({len(line) for line in lines}) == 1
    assert found[0].epochs is None
    assert not math.isinf(found[0].loss)
