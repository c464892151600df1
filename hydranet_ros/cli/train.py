"""`hydranet train`: from a configuration to weights, on simulated worlds or KITTI folders."""

from __future__ import annotations

import argparse
import shlex
import sys
from math import radians
from pathlib import Path
from typing import TYPE_CHECKING

from hydranet_ros import __version__
from hydranet_ros.cli.arguments import add_command, add_settings, dumped
from hydranet_ros.errors import HydraNetError, printable, require

if TYPE_CHECKING:
    from hydranet_ros.cli.arguments import Commands
    from hydranet_ros.evaluation.output import ResultsFolder
    from hydranet_ros.training.config import TrainingConfig
    from hydranet_ros.training.data import Data
    from hydranet_ros.training.distributed import Processes
    from hydranet_ros.training.loop import Training

WEIGHTS = "weights.safetensors"
EXAMPLES = f"""\
  hydranet train --out out/default                     what made the weights that ship
  hydranet train --config mine.yaml --out out/mine     other settings; see below
  hydranet train --config paper --set epochs=10 --out out/paper
  torchrun --nproc-per-node 2 -m hydranet_ros.cli train --out out/default

A configuration names what differs from its base, 'default' (simulated worlds) or 'paper':
  base: default
  seed: 3
  epochs: 10
  data: {{streets: 200, gaps: [1, 2]}}
An interrupted training goes on where it was when started again with the same --out, which then has
{WEIGHTS}, config.yaml, log.csv (a line per epoch) and checkpoint.pt.
"""


def add_parser(commands: Commands) -> None:
    """Declare the arguments."""
    parser = add_command(
        commands,
        "train",
        run,
        "train a network on simulated worlds or KITTI folders",
        "Train HydraNet, calibrate its covariances, and write its weights.",
        EXAMPLES,
    )
    add_settings(parser, "NAME|FILE", "default")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the results go; needed")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="where flow is kept (~/.cache/hydranet)"
    )


def run(options: argparse.Namespace) -> None:
    """Prepare the data, train, calibrate, write."""
    from hydranet_ros.settings import configured
    from hydranet_ros.training.config import read_config

    config = configured(read_config(options.config), None, options.assignments)
    if dumped(options, config):
        return
    if options.out is None:
        raise HydraNetError("--out DIR is needed: where the weights are written")
    require("training", "torch", "safetensors")
    from hydranet_ros.evaluation.output import ResultsFolder
    from hydranet_ros.gyro.device import choose_device
    from hydranet_ros.training.distributed import joined_processes

    device = choose_device(options.device)
    folder = ResultsFolder(options.out)
    with joined_processes(device) as processes:
        from hydranet_ros.training.loop import Training

        data = _data(config, options, processes)
        training = Training(config, data.training, data.validation, options.out, device, processes)
        training.run()
        if processes.first:
            _finish(config, training, data, options, folder)


def _data(config: TrainingConfig, options: argparse.Namespace, processes: Processes) -> Data:
    """Each process makes its part of what is missing."""
    from hydranet_ros.training.data import default_cache, prepare

    return prepare(config, options.cache or default_cache(), processes=processes)


def _finish(
    config: TrainingConfig,
    training: Training,
    data: Data,
    options: argparse.Namespace,
    folder: ResultsFolder,
) -> None:
    from hydranet_ros.gyro.weights import Weights, save_weights
    from hydranet_ros.gyro.weights_file import Provenance
    from hydranet_ros.settings import to_yaml
    from hydranet_ros.training.calibration import calibrate, evaluate

    model = training.best_network().cpu()
    evaluation = evaluate(model, data.validation)
    strange = None
    if data.calibration is not None:
        left, right = data.calibration
        strange = evaluate(model, left), evaluate(model, right)
    calibration = calibrate(evaluation, strange, radians(config.floor_deg))
    figures = evaluation.figures(calibration)
    source = "KITTI folders" if config.data.kitti else "simulated worlds"
    changes = [word for each in options.assignments for word in ("--set", each)]
    provenance = Provenance(
        flow_method=config.data.flow,
        command=shlex.join(["hydranet", "train", "--config", options.config, *changes]),
        data=source,
        seed=config.seed,
        validation=figures.as_dict(),
    )
    save_weights(options.out / WEIGHTS, Weights(model, calibration, provenance))
    folder.text("config.yaml", to_yaml(config, f"hydranet_ros: {__version__}"))
    print(f"epoch {training.best_epoch} of {training.epoch} on {source}, validation:")
    for name, value in figures.as_dict().items():
        print(f"  {name:>15} {value:.4f}")
    print(f"written to {printable(str(options.out / WEIGHTS))}", file=sys.stderr)
