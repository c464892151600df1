from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from hydranet_ros.experiments import one_d, one_d_methods
from hydranet_ros.experiments.one_d_methods import (
    METHODS,
    PRESETS,
    FunctionSamples,
    Predicted,
    function,
    predict,
    resampled,
    train,
    training_set,
)
from hydranet_ros.experiments.one_d_methods import test_set as drawn_test_set

SMALL = one_d.OneDSettings(
    "published",
    repetitions=4,
    epochs=15,
    target_noise=(0.0, 1.0),
    noise_repetitions=2,
    alone_epochs=2,
    workers=1,
)


@pytest.fixture(scope="module")
def outcome() -> one_d.Outcome:
    torch.set_num_threads(1)
    return one_d.run(SMALL)


def test_the_function() -> None:
    x = 0.3
    expected = x + np.sin(4 * (x + 0.1)) + np.sin(13 * (x + 0.1)) + 0.1
    assert float(function(torch.tensor(x), 0.1)) == pytest.approx(expected, rel=1e-6)


def test_inputs_are_uniform_over_both_intervals() -> None:
    data = training_set(PRESETS["published"], 50, 1000, torch.Generator().manual_seed(0))
    low = data.x <= 0.6
    assert bool((low & (data.x >= 0.0) | (data.x >= 0.8) & (data.x <= 1.0)).all())
    assert float(low.float().mean()) == pytest.approx(0.75, abs=0.01)
    assert not torch.equal(data.x[0], data.x[1])


@pytest.mark.parametrize(("name", "sigma"), [("paper", 3.0), ("published", 0.03)])
def test_noise_of_the_presets(name: str, sigma: float) -> None:
    # Far from the sines: their slopes are left out by averaging over all phases.
    data = training_set(PRESETS[name], 20, 1000, torch.Generator().manual_seed(0))
    residual = (data.y - function(data.x)).std()
    slope = 1.0 if name == "paper" else np.sqrt(1.0 + 4.0**2 / 2.0 + 13.0**2 / 2.0)
    assert float(residual) == pytest.approx(sigma * slope, rel=0.15)


def test_test_sets_of_the_presets() -> None:
    rng = torch.Generator().manual_seed(0)
    grid = drawn_test_set(PRESETS["published"], 2, 100, rng)
    np.testing.assert_allclose(grid.x[1], np.linspace(-2.0, 2.0, 100), atol=1e-6)
    assert torch.equal(grid.y, function(grid.x))
    drawn = drawn_test_set(PRESETS["paper"], 2, 100, rng)
    assert not torch.equal(drawn.x[0], drawn.x[1])
    assert float((drawn.y - function(drawn.x)).abs().mean()) > 1.0


def test_likelihood_is_the_normal_one() -> None:
    rng = np.random.default_rng(0)
    mean, y = rng.normal(size=(2, 3, 50))
    epistemic, aleatoric = rng.uniform(0.1, 2.0, (2, 3, 50))
    found = Predicted(*(torch.tensor(each) for each in (mean, epistemic, aleatoric)))
    expected = -stats.norm.logpdf(y, mean, np.sqrt(epistemic + aleatoric)).mean(axis=1)
    np.testing.assert_allclose(found.nll(torch.tensor(y)), expected)


def test_what_has_diverged_counts_as_infinitely_wrong() -> None:
    mean = torch.zeros(5, 8)
    mean[3] = torch.nan
    ones = torch.ones_like(mean)
    rows = FunctionSamples(ones, ones)
    trained = one_d.Trained(rows, Predicted(mean, ones, ones), seconds=1.0)
    assert trained.nll.isinf().tolist() == [False, False, False, True, False]
    assert trained.mse.isinf().tolist() == [False, False, False, True, False]
    assert torch.isfinite(trained.nll.quantile(torch.tensor([0.25, 0.5, 0.75]))).all()


def test_every_member_of_a_bag_has_a_sample_of_its_own() -> None:
    x = torch.arange(100.0).repeat(2, 1)
    drawn = resampled(FunctionSamples(x, 2.0 * x), 10, torch.Generator().manual_seed(0))
    assert drawn.x.shape == (20, 100)
    assert torch.equal(drawn.y, 2.0 * drawn.x)
    distinct = [len(row.unique()) for row in drawn.x]
    assert np.mean(distinct) == pytest.approx(100 * (1 - np.exp(-1)), abs=3)
    assert len({tuple(row.tolist()) for row in drawn.x}) == 20


@pytest.mark.parametrize("block", [one_d_methods.BLOCK, 2, 1])
def test_batched_training_is_training_one_by_one(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same data, same first weights, same order: a network does not notice its neighbours."""
    monkeypatch.setattr(one_d_methods, "BLOCK", block)
    method = METHODS["hydranet"]
    data = training_set(PRESETS["published"], 3, 200, torch.Generator().manual_seed(0))
    both = [train(method, data, 3, torch.Generator().manual_seed(1)) for _ in range(2)]
    x = torch.linspace(-1.0, 1.0, 20).repeat(3, 1)
    first, again = (predict(method, stacks, x) for stacks in both)
    torch.testing.assert_close(first.mean, again.mean, rtol=0.0, atol=0.0)
    other = FunctionSamples(data.x, torch.cat([data.y[:1], 5.0 + data.y[1:]]))
    changed = predict(method, train(method, other, 3, torch.Generator().manual_seed(1)), x)
    torch.testing.assert_close(changed.mean[0], first.mean[0])
    assert float((changed.mean[1:] - first.mean[1:]).abs().amax(dim=1).min()) > 0.1


def test_methods_learn_and_differ_in_what_they_say(outcome: one_d.Outcome) -> None:
    figures = outcome.figures
    assert all(np.isfinite(value) for value in figures.values())
    for name in METHODS:
        rows = [row for row in outcome.tables["repetitions"] if row["method"] == name]
        nll = [float(str(row["nll"])) for row in rows]
        assert len(nll) == SMALL.repetitions
        median = float(np.quantile(nll, 0.5))
        assert figures[f"median_nll.{name}"] == pytest.approx(median, rel=1e-5)


@pytest.mark.parametrize("name", one_d.NOISY)
def test_every_head_has_noise_of_its_own_on_its_targets(name: str) -> None:
    job = one_d.Job(METHODS[name], SMALL, 3, (0.1, 1.0))
    data = FunctionSamples(torch.zeros(6, 1000), torch.zeros(6, 1000))
    noisy = one_d.with_target_noise(data, job, torch.Generator().manual_seed(0))
    assert noisy.y.shape == (6, 10, 1000)
    deviation = noisy.y.std(dim=2)
    np.testing.assert_allclose(deviation[:3], 0.1, rtol=0.15)
    np.testing.assert_allclose(deviation[3:], 1.0, rtol=0.15)
    assert float(torch.corrcoef(noisy.y[0])[0, 1].abs()) < 0.15


def test_target_noise_is_compared_with_the_clean_repetitions(outcome: one_d.Outcome) -> None:
    rows = outcome.tables["target_noise"]
    assert [row["target_noise"] for row in rows] == [0.0, 0.0, 1.0, 1.0] * 2
    clean = [row["nll"] for row in outcome.tables["repetitions"] if row["method"] == "hydranet"]
    same = [row["nll"] for row in rows if (row["method"], row["target_noise"]) == ("hydranet", 0)]
    assert same == clean[:2]


def test_times_are_compared(outcome: one_d.Outcome) -> None:
    together = sum(outcome.timing[f"seconds.{name}"] for name in METHODS)
    alone = sum(outcome.timing[f"alone_seconds.{name}"] for name in METHODS)
    assert outcome.timing["ratio"] == pytest.approx(SMALL.repetitions * alone / together)
    assert "times the time of training them together" in outcome.report


def test_processes_give_the_same_numbers() -> None:
    settings = replace(SMALL, repetitions=2, epochs=2, noise_repetitions=1)
    alone = one_d.run(settings).figures
    assert one_d.run(replace(settings, workers=2)).figures == alone
