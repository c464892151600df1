"""The training: epochs of steps, validation, checkpoints; repeatable from one seed.

Random numbers depend on the seed and the number of the step alone, so that a training that was
interrupted, or split over processes, goes on as if it had not been.
"""

from __future__ import annotations

import copy
import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from hydranet_ros.errors import FileError
from hydranet_ros.files import whole_file
from hydranet_ros.gyro.epipolar import grid_points
from hydranet_ros.gyro.network import HydraNet, HydraOutput
from hydranet_ros.settings import dump
from hydranet_ros.training.augment import Augmentation
from hydranet_ros.training.calibration import Figures, evaluate
from hydranet_ros.training.config import TrainingConfig
from hydranet_ros.training.data import Batch, FlowDataset
from hydranet_ros.training.distributed import Processes
from hydranet_ros.training.loss import bootstrap_weights, disagreement_loss, head_offsets, loss

_VALIDATION_PAIRS = 1500
_LEAST_RATE = 0.01  # of the learning rate, at the end of the cosine
LOG = "log.csv"


class Training:
    """A network, its average, its optimiser, and the epoch they have reached."""

    def __init__(
        self,
        config: TrainingConfig,
        data: FlowDataset,
        validation: FlowDataset,
        out: Path,
        device: torch.device | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.config, self.data, self.validation, self.out = config, data, validation, out
        self.device = device or torch.device("cpu")
        self.processes = processes or Processes()
        torch.manual_seed(config.seed)
        network = config.network_config()
        self.network = HydraNet(network).to(self.device)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.model = self.processes.model(self.network)
        self.optimiser = torch.optim.AdamW(
            self.network.parameters(), config.learning_rate, weight_decay=config.weight_decay
        )
        self.steps = config.steps_per_epoch or max(1, len(data) // config.batch_size)
        self.augment = None
        if network.grid is not None:
            self.augment = Augmentation(grid_points(network.grid), config.augment)
        size = math.radians(config.unusual_deg)
        self.offsets = head_offsets(network.heads, size, config.seed).to(self.device)
        self.epoch = 0
        self.best: Figures | None = None
        self.best_epoch = 0
        self.best_state: dict[str, Tensor] = {}
        self.rows: list[dict[str, Any]] = []
        self._resume()

    def run(self) -> None:
        """Train to the end, or until the validation has not improved for long."""
        while self.epoch < self.config.epochs and not self.stalled:
            value = self._train_epoch()
            self.epoch += 1
            self._validate(value)
            if self.processes.first:
                save_checkpoint(self.out, self._state())
                self._write_log()
            self.processes.wait()

    @property
    def stalled(self) -> bool:
        """Whether it is time to stop early."""
        return self.epoch - self.best_epoch >= self.config.patience

    def best_network(self) -> HydraNet:
        """The averaged network of the epoch with the best validation NLL."""
        self.average.load_state_dict(self.best_state)
        return self.average.eval()

    # --- a step ----------------------------------------------------------------------------------

    def _train_epoch(self) -> float:
        self.network.train()
        total = 0.0
        shown = tqdm(
            self._batches(),
            total=self.steps,
            desc=f"epoch {self.epoch + 1}/{self.config.epochs}",
            unit="step",
            disable=None if self.processes.first else True,
            leave=False,
        )
        for step, numbers in enumerate(shown, start=self.epoch * self.steps):
            value = self._step(step, numbers)
            total += value
            shown.set_postfix(loss=f"{value:.2f}")
        return total / self.steps

    def _batches(self) -> Iterator[NDArray[np.intp]]:
        """The numbers of the pairs of each step of the epoch, for all processes together."""
        size, step = self.config.batch_size, self.epoch * self.steps
        per_pass = max(1, len(self.data) // size)
        order, of_pass = np.zeros(0, dtype=np.intp), -1
        for number in range(step, step + self.steps):
            if number // per_pass != of_pass:
                of_pass = number // per_pass
                order = np.random.default_rng([self.config.seed, of_pass]).permutation(
                    len(self.data)
                )
            at = number % per_pass * size
            yield order[at : at + size]

    def _step(self, step: int, numbers: NDArray[np.intp]) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = self._learning_rate(step)
        value = self._loss(step, numbers)
        self.optimiser.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip_norm)
        self.optimiser.step()
        self._take_average(step)
        return float(value.detach())

    def _loss(self, step: int, numbers: NDArray[np.intp]) -> Tensor:
        config, mine = self.config, self.processes.share(len(numbers))
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        batch = self.data.batch(numbers)
        if self.augment is not None:
            batch = self.augment(batch, generator)
        channels = self.network.config.input_shape[0]
        ordinary = len(numbers[mine])
        odd = self._unusual(len(numbers), generator)
        together = Batch(*(torch.cat([a[mine], b]) for a, b in zip(batch, odd, strict=True)))
        inputs = together.inputs(channels)
        output = HydraOutput(*self.model(*(each.to(self.device) for each in inputs)))
        weights = bootstrap_weights(
            self.data.drive[numbers[mine]],
            self.network.config.heads,
            self.network.config.bootstrap,
            config.seed,
        )
        value = loss(
            HydraOutput(output.quaternions[:ordinary], output.root[:ordinary]),
            batch.target[mine].to(self.device),
            None if weights is None else weights.to(self.device),
            config.loss,
        )
        if len(odd.flow):
            apart = HydraOutput(output.quaternions[ordinary:], output.root[ordinary:])
            value = value + config.unusual_weight * disagreement_loss(apart, self.offsets)
        return value

    def _unusual(self, batch: int, generator: torch.Generator) -> Batch:
        count = round(self.config.unusual_share * batch) if self.data.unusual_count else 0
        numbers = torch.randint(max(self.data.unusual_count, 1), (count,), generator=generator)
        mine = self.processes.share(count)
        return self.data.unusual(numbers[mine].numpy())

    def _learning_rate(self, step: int) -> float:
        config = self.config
        warm = min(1.0, (step + 1) / (config.warmup_steps + 1))
        done = step / (config.epochs * self.steps)
        cosine = 0.5 * (1.0 + math.cos(math.pi * done))
        return config.learning_rate * warm * (_LEAST_RATE + (1.0 - _LEAST_RATE) * cosine)

    @torch.no_grad()
    def _take_average(self, step: int) -> None:
        keep = min(self.config.average_decay, (step + 1) / (step + 10))
        for mean, now in zip(
            self.average.state_dict().values(), self.network.state_dict().values(), strict=True
        ):
            if mean.is_floating_point():
                mean.lerp_(now, 1.0 - keep)
            else:
                mean.copy_(now)

    # --- an epoch --------------------------------------------------------------------------------

    def _validate(self, value: float) -> None:
        figures = evaluate(self.average, self.validation, _VALIDATION_PAIRS).figures()
        if self.best is None or figures.nll < self.best.nll:
            self.best, self.best_epoch = figures, self.epoch
            state = self.average.state_dict()
            self.best_state = {name: each.detach().cpu().clone() for name, each in state.items()}
        row = {"epoch": self.epoch, "train_loss": round(value, 6), **figures.as_dict()}
        self.rows.append(row)
        if self.processes.first:
            tqdm.write("  ".join(f"{name} {each:.4g}" for name, each in row.items()))

    def _write_log(self) -> None:
        lines = io.StringIO()
        writer = csv.DictWriter(lines, list(self.rows[0]))
        writer.writeheader()
        writer.writerows(self.rows)
        with whole_file(self.out / LOG) as file:
            file.write(lines.getvalue().encode())

    def _state(self) -> dict[str, Any]:
        assert self.best is not None
        return {
            "settings": dump(self.config),
            "epoch": self.epoch,
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "best": self.best.__dict__,
            "best_epoch": self.best_epoch,
            "best_state": self.best_state,
            "rows": self.rows,
        }

    def _resume(self) -> None:
        state = load_checkpoint(self.out, dump(self.config))
        if state is None:
            return
        try:
            self.network.load_state_dict(state["network"])
            self.average.load_state_dict(state["average"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.best, self.best_state = Figures(**state["best"]), dict(state["best_state"])
            self.epoch, self.best_epoch = int(state["epoch"]), int(state["best_epoch"])
            self.rows = list(state["rows"])
            self._check_resumed()
        except Exception as error:  # whatever torch has for what does not belong together
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise damaged(self.out / CHECKPOINT, reason) from error

    def _check_resumed(self) -> None:
        """A checkpoint may be whole and still not be one of this training."""
        if not 0 <= self.best_epoch <= self.epoch or len(self.rows) != self.epoch:
            raise ValueError(f"epoch {self.epoch}, best {self.best_epoch}, {len(self.rows)} rows")
        for state in (self.network.state_dict(), self.average.state_dict(), self.best_state):
            for name, value in state.items():
                if not torch.isfinite(value).all():
                    raise ValueError(f"{name} is not finite")
        if self.best_state.keys() != self.average.state_dict().keys():
            raise ValueError("the best state is of another network")


# --- checkpoints ---------------------------------------------------------------------------------

CHECKPOINT = "checkpoint.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write whole or not at all."""
    with whole_file(folder / CHECKPOINT) as file:
        torch.save(state, file)


def load_checkpoint(folder: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The state, None where there is none yet; one of other settings is refused."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch, zipfile and pickle have many for a damaged file
        raise damaged(path, str(error).partition("\n")[0] or type(error).__name__) from error
    if not isinstance(state, dict):
        raise damaged(path, "it holds something else")
    if state.get("settings") != settings:
        raise FileError(
            path, "is of a training with other settings: choose another --out, or delete it"
        )
    return state


def damaged(path: Path, reason: str) -> FileError:
    """What to do about a checkpoint that cannot be used."""
    return FileError(
        path, f"is damaged ({reason}): delete it to start again; rendered streets are kept"
    )
