"""Five kinds of uncertainty on a function of one variable: the paper's figures of section 3.2.

    hydranet experiment one-d --preset published --check     100 repetitions, 12 min on two cores
    hydranet experiment one-d --preset paper                 as the paper's text has it
    hydranet experiment one-d --quick                        seconds; trained for a tenth

Expected of `published`, median NLL over the repetitions: bagging 1.3 to 1.75, HydraNet 1.5 to 1.8,
direct sigma 1.8 to 3.4, dropout 3.3 to 9.5, HydraNet without sigma_a above 6: the paper's ranking.
The methods and the function are in one_d_methods.py. All repetitions of a method train at once, as
one batched computation (one_d_networks.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import inf
from multiprocessing import get_context
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from tqdm import tqdm

from hydranet_ros.experiments.one_d_methods import (
    METHODS,
    PRESETS,
    TEST_RANGE,
    FunctionSamples,
    Method,
    Predicted,
    function,
    predict,
    test_set,
    train,
    training_set,
)
from hydranet_ros.experiments.outcome import Expected, Outcome, Row, boxes, grid, sigma_shades
from hydranet_ros.gyro.device import set_threads
from hydranet_ros.settings import Configuration, dump, setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


EXPECTED: dict[tuple[str, bool], Expected] = {
    ("published", False): {
        "median_nll.bagging": (1.3, 1.75),
        "median_nll.hydranet": (1.5, 1.8),
        "median_nll.direct": (1.8, 3.4),
        "median_nll.dropout": (3.3, 9.5),
        "median_nll.hydranet_no_sigma": (6.0, inf),
        "ranking_holds": (1.0, 1.0),
    },
}
# From the best on; the paper calls the first two similar, and they change places with the seed.
RANKING = ({"bagging", "hydranet"}, {"direct"}, {"dropout"}, {"hydranet_no_sigma"})
NOISY = ("hydranet_no_sigma", "hydranet")
TRAINING_SAMPLES, TEST_SAMPLES = 1000, 100


@dataclass(frozen=True)
class OneDSettings(Configuration):
    """What is run."""

    preset: Literal["paper", "published"] = setting("paper", "the function and its noise")
    seed: int = setting(0, "seed of samples and weights")
    repetitions: int = setting(100, "trainings of each method", 1)
    epochs: int = setting(3000, "epochs of each training", 1)
    target_noise: tuple[float, ...] = setting(
        (0.0, 0.1, 0.5, 1.0), "standard deviations of the noise on each head's targets"
    )
    noise_repetitions: int = setting(25, "trainings at each level of that noise", 1)
    alone_epochs: int = setting(
        300, "epochs of the one training that runs alone, to compare times", 1
    )
    workers: int = setting(2, "processes", 1)

    def quick(self) -> OneDSettings:
        """A tenth of the training, few repetitions, one process."""
        return replace(
            self, repetitions=6, epochs=200, noise_repetitions=3, alone_epochs=20, workers=1
        )


@dataclass(frozen=True)
class Job:
    """A method, all of its repetitions, at once; target noise of each, if any."""

    method: Method
    settings: OneDSettings
    repetitions: int
    target_noise: tuple[float, ...] = (0.0,)
    epochs: int = 0

    @property
    def cost(self) -> int:
        """About proportional to the time."""
        shape = self.method.shape(self.repetitions * len(self.target_noise))
        draws = 2 if self.method.dropout > 0.0 else 1  # of random numbers, at every step
        return draws * shape.networks * (1 + shape.heads)


@dataclass(frozen=True, eq=False)
class Trained:
    """What the networks of a job say about the test set, and how long their training took."""

    test: FunctionSamples
    predicted: Predicted
    seconds: float

    @property
    def nll(self) -> Tensor:
        """(repetitions,), infinite where a training has diverged."""
        return self.predicted.nll(self.test.y).nan_to_num(nan=inf)

    @property
    def mse(self) -> Tensor:
        """(repetitions,), infinite likewise."""
        return self.predicted.mse(self.test.y).nan_to_num(nan=inf)


def run(settings: OneDSettings, quick: bool = False) -> Outcome:
    """Train everything, evaluate, compare."""
    settings = settings.quick() if quick else settings
    start = time.perf_counter()
    jobs = _jobs(settings)
    done = dict(zip(jobs, _run_all(list(jobs.values()), settings.workers), strict=True))
    elapsed = time.perf_counter() - start
    alone = {name: _alone(settings, METHODS[name]) for name in METHODS}
    main = {name: done[name] for name in METHODS}
    noisy = {name: _by_noise(settings, done[name], done[f"{name}+noise"]) for name in NOISY}
    figures = _figures(main, noisy)
    timing = _timing(settings, main, alone, elapsed)
    return Outcome(
        figures,
        _report(main, timing),
        {"quick": quick, **dump(settings)},
        EXPECTED.get((settings.preset, quick), {}),
        {"repetitions": _rows(main), "target_noise": _noise_rows(noisy)},
        _plots(_training_data(settings), main, noisy),
        timing,
    )


# --- training ------------------------------------------------------------------------------------


def _jobs(settings: OneDSettings) -> dict[str, Job]:
    preset = PRESETS[settings.preset]
    direct = replace(METHODS["direct"], optimiser=preset.direct_optimiser)
    methods = METHODS | {"direct": direct}
    jobs = {
        name: Job(method, settings, settings.repetitions, epochs=settings.epochs)
        for name, method in methods.items()
    }
    noise = tuple(level for level in settings.target_noise if level > 0.0)
    for name in NOISY:  # the level 0 is the main job's
        count = settings.noise_repetitions
        jobs[f"{name}+noise"] = Job(methods[name], settings, count, noise, settings.epochs)
    return jobs


def _run_all(jobs: list[Job], workers: int) -> list[Trained]:
    """Run jobs in processes of one thread each, the longest first; results in the jobs' order."""
    if workers == 1:
        return [train_job(job, True) for job in jobs]
    # spawn: a forked child may inherit locks of threads that it does not have
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        order = sorted(range(len(jobs)), key=lambda i: -jobs[i].cost)
        futures = {pool.submit(train_job, jobs[i], False): i for i in order}
        found: dict[int, Trained] = {}
        with tqdm(total=sum(job.cost for job in jobs), desc="one-d", disable=None) as bar:
            for future in as_completed(futures):
                found[futures[future]] = future.result()
                bar.update(jobs[futures[future]].cost)
    return [found[i] for i in range(len(jobs))]


def train_job(job: Job, show: bool) -> Trained:
    """Train and test; in a process of its own, or here with a bar."""
    set_threads(1)  # the matrices are small: a second thread mostly waits
    rng = torch.Generator().manual_seed(job.settings.seed)
    preset, levels = PRESETS[job.settings.preset], len(job.target_noise)
    data = training_set(preset, job.repetitions, TRAINING_SAMPLES, rng)
    test = test_set(preset, job.repetitions, TEST_SAMPLES, rng)
    data, test = _repeated(data, levels), _repeated(test, levels)
    data = with_target_noise(data, job, rng)
    start = time.perf_counter()
    stacks = train(job.method, data, job.epochs, rng, partial(_bar, job.method.name, show))
    seconds = time.perf_counter() - start
    return Trained(test, predict(job.method, stacks, test.x), seconds)


def _repeated(samples: FunctionSamples, times: int) -> FunctionSamples:
    return FunctionSamples(
        samples.x.repeat(times, 1), samples.y.repeat(times, *[1] * (samples.y.ndim - 1))
    )


def with_target_noise(data: FunctionSamples, job: Job, rng: torch.Generator) -> FunctionSamples:
    """Give every head targets of its own, with noise of the level of its repetition."""
    sigma = torch.tensor(job.target_noise).repeat_interleave(job.repetitions)
    if not sigma.any():
        return data
    heads = job.method.heads - job.method.likelihood
    noise = torch.randn(len(data.y), heads, data.y.shape[-1], generator=rng)
    return FunctionSamples(data.x, data.y[:, None] + sigma[:, None, None] * noise)


def _bar(what: str, show: bool, epochs: range) -> Iterator[int]:
    yield from tqdm(epochs, desc=what, unit="epoch", disable=None if show else True, leave=False)


def _alone(settings: OneDSettings, method: Method) -> float:
    """Seconds that one repetition takes when it is trained by itself, from a part of it."""
    job = Job(method, settings, 1, epochs=settings.alone_epochs)
    return train_job(job, False).seconds * settings.epochs / settings.alone_epochs


def _by_noise(settings: OneDSettings, clean: Trained, noisy: Trained) -> dict[float, Tensor]:
    """NLL of the repetitions at each level of target noise."""
    count = settings.noise_repetitions
    parts = iter(torch.split(noisy.nll, count))
    return {level: next(parts) if level else clean.nll[:count] for level in settings.target_noise}


def _training_data(settings: OneDSettings) -> FunctionSamples:
    rng = torch.Generator().manual_seed(settings.seed)
    return training_set(PRESETS[settings.preset], settings.repetitions, TRAINING_SAMPLES, rng)


# --- results -------------------------------------------------------------------------------------


def _figures(main: dict[str, Trained], noisy: dict[str, dict[float, Tensor]]) -> dict[str, float]:
    figures = {}
    for name, trained in main.items():
        for label, share in (("q25", 0.25), ("median", 0.5), ("q75", 0.75)):
            figures[f"{label}_nll.{name}"] = float(trained.nll.quantile(share))
        figures[f"median_mse.{name}"] = float(trained.mse.median())
    for name, levels in noisy.items():
        for level, nll in levels.items():
            figures[f"median_nll.{name}.target_noise_{level:g}"] = float(nll.median())
    groups = [[figures[f"median_nll.{name}"] for name in group] for group in RANKING]
    holds = all(max(a) < min(b) for a, b in pairwise(groups))
    figures["ranking_holds"] = float(holds)
    return figures


def _timing(
    settings: OneDSettings, main: dict[str, Trained], alone: dict[str, float], elapsed: float
) -> dict[str, float]:
    timing = {f"seconds.{name}": trained.seconds for name, trained in main.items()}
    timing |= {f"alone_seconds.{name}": seconds for name, seconds in alone.items()}
    together = sum(trained.seconds for trained in main.values())
    timing["total_seconds"] = elapsed
    timing["ratio"] = settings.repetitions * sum(alone.values()) / together
    return timing


def _report(main: dict[str, Trained], timing: dict[str, float]) -> str:
    lines = [f"{'':<22}{'NLL median [quartiles]':>26}{'MSE median':>12}{'s':>8}{'s alone':>9}"]
    for name, trained in main.items():
        low, middle, high = (float(trained.nll.quantile(q)) for q in (0.25, 0.5, 0.75))
        nll = f"{middle:.2f} [{low:.2f}, {high:.2f}]"
        mse, alone = float(trained.mse.median()), timing[f"alone_seconds.{name}"]
        title = METHODS[name].title
        lines.append(f"{title:<22}{nll:>26}{mse:>12.1f}{trained.seconds:>8.0f}{alone:>9.1f}")
    for name, trained in main.items():
        diverged = int(trained.nll.isinf().sum())
        if diverged:
            lines.append(f"{METHODS[name].title}: {diverged} of {len(trained.nll)} diverged")
    count = len(main["hydranet"].nll)
    lines.append(
        f"{timing['total_seconds']:.0f} s in all; {count} repetitions one after the other would "
        f"take {timing['ratio']:.1f} times the time of training them together"
    )
    return "\n".join(lines)


def _rows(main: dict[str, Trained]) -> list[Row]:
    return [
        {"method": name, "repetition": i, "nll": float(nll), "mse": float(mse)}
        for name, trained in main.items()
        for i, (nll, mse) in enumerate(zip(trained.nll, trained.mse, strict=True))
    ]


def _noise_rows(noisy: dict[str, dict[float, Tensor]]) -> list[Row]:
    return [
        {"method": name, "target_noise": level, "repetition": i, "nll": float(value)}
        for name, levels in noisy.items()
        for level, nll in levels.items()
        for i, value in enumerate(nll)
    ]


# --- figures -------------------------------------------------------------------------------------

SAMPLES = 4
_HEIGHT = 12.0


def _plots(
    data: FunctionSamples, main: dict[str, Trained], noisy: dict[str, dict[float, Tensor]]
) -> dict[str, Callable[[], Figure]]:
    """Every figure of the paper, by the name of its file."""
    titles = {METHODS[name].title: trained for name, trained in main.items()}
    return {
        "data": lambda: _data(data, main["hydranet"].test),
        "uncertainty": lambda: _uncertainty(data, titles),
        "nll": lambda: boxes(
            {t: _finite(each.nll) for t, each in titles.items()}, "NLL", log=True
        ),
        "mse": lambda: boxes(
            {t: _finite(each.mse) for t, each in titles.items()}, "MSE", log=True
        ),
        "samples": lambda: _samples(data, titles),
        "target_noise": lambda: _target_noise(noisy),
    }


def _finite(values: Tensor) -> list[float]:
    return [float(each) for each in values[values.isfinite()]]


def _data(data: FunctionSamples, test: FunctionSamples) -> Figure:
    figure, ((axes,),) = grid(1, 1, 6.0, 4.0)
    _truth(axes)
    axes.plot(data.x[0], data.y[0], ".", markersize=2, label="training set")
    axes.plot(test.x[0], test.y[0], "x", markersize=3, label="test set")
    axes.legend()
    return figure


def _uncertainty(data: FunctionSamples, trained: dict[str, Trained]) -> Figure:
    """Of each method, the repetition whose NLL is the median one."""
    figure, axes = grid(1, len(trained))
    for each, (title, result) in zip(axes[0], trained.items(), strict=True):
        _prediction(each, data, result, int(result.nll.argsort()[len(result.nll) // 2]))
        each.set_title(title)
    return figure


def _samples(data: FunctionSamples, trained: dict[str, Trained]) -> Figure:
    count = min(SAMPLES, len(data.x))
    figure, axes = grid(len(trained), count)
    for row, (title, result) in zip(axes, trained.items(), strict=True):
        for repetition, each in enumerate(row):
            _prediction(each, data, result, repetition)
        row[0].set_ylabel(title)
    return figure


def _prediction(axes: Axes, data: FunctionSamples, trained: Trained, repetition: int) -> None:
    _truth(axes)
    axes.plot(data.x[repetition], data.y[repetition], ".", color="black", markersize=1)
    found = trained.predicted
    sigma = found.variance[repetition].sqrt()
    x = trained.test.x[repetition]
    sigma_shades(axes, x.numpy(), found.mean[repetition].numpy(), sigma.numpy())
    axes.set_ylim(-_HEIGHT, _HEIGHT)


def _truth(axes: Axes) -> None:
    x = torch.linspace(*TEST_RANGE, 500)
    axes.plot(x, function(x), color="tab:red", linewidth=0.8)


def _target_noise(noisy: dict[str, dict[float, Tensor]]) -> Figure:
    figure, axes = grid(1, len(noisy), 4.0, 3.5)
    for each, (name, levels) in zip(axes[0], noisy.items(), strict=True):
        each.boxplot([nll.numpy() for nll in levels.values()], showfliers=False)
        each.set_xticks(range(1, len(levels) + 1), [f"{level:g}" for level in levels])
        each.set_title(METHODS[name].title)
        each.set_xlabel("noise on the targets")
        each.set_ylabel("NLL")
        each.set_yscale(
            "log" if min(float(nll.min()) for nll in levels.values()) > 0 else "linear"
        )
    return figure
