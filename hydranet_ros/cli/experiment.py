"""`hydranet experiment NAME`: the paper's tables and figures, made again."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hydranet_ros.cli.arguments import Parser, add_command, add_json, add_out, whole_number
from hydranet_ros.errors import HydraNetError, printable, require

if TYPE_CHECKING:
    from hydranet_ros.cli.arguments import Commands
    from hydranet_ros.experiments.outcome import Outcome

EXAMPLES = """\
  hydranet experiment one-d --quick
  hydranet experiment one-d --preset published --check --out out/one-d
"""


def add_parser(commands: Commands) -> None:
    """Declare the experiments and their arguments."""
    parser = add_command(
        commands,
        "experiment",
        run,
        "make a table or figure of the paper again",
        "Run one of the paper's experiments; docs/results/reproduction.md has the results.",
        EXAMPLES,
    )
    names = parser.add_subparsers(dest="experiment", required=True, metavar="NAME")
    _one_d(names)
    _hemisphere(names)
    _seven_scenes(names)
    _kitti(names)
    averaging = _add(names, "rotation-averaging", "three metrics on rotations and their means")
    averaging.set_defaults(make=_run_rotation_averaging)


def _add(names: Commands, name: str, text: str) -> Parser:
    """An experiment with the arguments that all of them have."""
    parser: Parser = names.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    parser.add_argument("--quick", action="store_true", help="a reduced version, under a minute")
    parser.add_argument(
        "--check", action="store_true", help="fail where a figure is not what is expected"
    )
    add_out(parser, f"write the results there (default: out/{name})")
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N")
    parser.add_argument(
        "--threads",
        type=whole_number(),
        metavar="N",
        help="threads of torch (default: torch's own)",
    )
    add_json(parser)
    return parser


def _one_d(names: Commands) -> None:
    parser = _add(names, "one-d", "five kinds of uncertainty on a function of one variable")
    _add_preset(parser)
    parser.add_argument("--repetitions", type=whole_number(), default=100, metavar="N")
    parser.add_argument(
        "--workers", type=whole_number(), default=2, metavar="N", help="processes (default: 2)"
    )
    parser.set_defaults(make=_run_one_d)


def _hemisphere(names: Commands) -> None:
    parser = _add(names, "hemisphere", "a camera's orientation from noisy pixels of landmarks")
    _add_preset(parser)
    parser.add_argument(
        "--training",
        choices=("default", "paper"),
        default="default",
        help="the paper's network and training, or heads that differ by design (default)",
    )
    parser.set_defaults(make=_run_hemisphere)


def _kitti(names: Commands) -> None:
    parser = _add(names, "kitti", "rotations on KITTI and their fusion with stereo VO")
    _add_data(parser, "--recordings", "kitti_fusion", "kitti_00.npz, kitti_02.npz, kitti_05.npz")
    parser.add_argument(
        "--dataset",
        type=Path,
        metavar="DIR",
        help="train instead, on DIR/sequences/NN with DIR/poses/NN.txt",
    )
    parser.add_argument("--test", metavar="NN", help="the sequence to leave out of the training")
    parser.set_defaults(make=_run_kitti)


def _seven_scenes(names: Commands) -> None:
    parser = _add(names, "seven-scenes", "a camera's orientation from one colour image")
    _add_data(parser, "--dataset", "seven_scenes", "the folder of the scenes, or one of frames")
    parser.add_argument(
        "--scenes", nargs="+", default=(), metavar="NAME", help="which ones (default: all there)"
    )
    parser.add_argument(
        "--imagenet", type=Path, metavar="FILE", help="a state dict of torchvision's resnet34"
    )
    parser.set_defaults(make=_run_seven_scenes)


def _add_preset(parser: Parser) -> None:
    parser.add_argument(
        "--preset",
        choices=("paper", "published"),
        default="paper",
        help="the paper's text, or what made its figures (default: %(default)s)",
    )


def _add_data(parser: Parser, option: str, folder: str, text: str) -> None:
    """A folder to read, by default one of $HYDRANET_DATA."""
    data = Path(os.environ.get("HYDRANET_DATA", "data"))
    text = f"{text} (default: $HYDRANET_DATA/{folder})"
    parser.add_argument(option, type=Path, default=data / folder, metavar="DIR", help=text)


def run(options: argparse.Namespace) -> None:
    """Run, write, print, check."""
    require("an experiment", "torch", "safetensors", "matplotlib")
    from hydranet_ros.experiments.outcome import write_outcome
    from hydranet_ros.gyro.device import set_threads

    if options.threads is not None:
        set_threads(options.threads)
    outcome: Outcome = options.make(options)
    folder = _folder(options)
    write_outcome(folder, options.experiment, outcome)
    if options.json:
        print(json.dumps(outcome.figures, indent=2))
    else:
        print(f"{outcome.report}\nwritten to {printable(str(folder))}")
    if options.check:
        outcome.check()


def _folder(options: argparse.Namespace) -> Path:
    return options.out or Path("out") / options.experiment


def _run_one_d(options: argparse.Namespace) -> Outcome:
    from hydranet_ros.experiments import one_d

    settings = one_d.OneDSettings(
        options.preset, options.seed, options.repetitions, workers=options.workers
    )
    return one_d.run(settings, options.quick)


def _run_rotation_averaging(options: argparse.Namespace) -> Outcome:
    from hydranet_ros.experiments import rotation_averaging

    settings = rotation_averaging.RotationAveragingSettings(seed=options.seed)
    return rotation_averaging.run(settings, options.quick)


def _run_hemisphere(options: argparse.Namespace) -> Outcome:
    from hydranet_ros.experiments import hemisphere

    settings = hemisphere.HemisphereSettings(options.preset, options.training, options.seed)
    return hemisphere.run(settings, options.quick)


def _run_kitti(options: argparse.Namespace) -> Outcome:
    from hydranet_ros.experiments import kitti, kitti_training

    if options.dataset is None:
        if options.test is not None:
            raise HydraNetError("--test names a sequence of --dataset DIR: give that as well")
        return kitti.run(options.recordings, options.quick)
    settings = kitti_training.KittiTrainingSettings(
        options.dataset, _folder(options), options.test, options.seed
    )
    return kitti_training.run(settings, options.quick)


def _run_seven_scenes(options: argparse.Namespace) -> Outcome:
    from hydranet_ros.experiments import seven_scenes

    settings = seven_scenes.SevenScenesSettings(
        options.dataset, tuple(options.scenes), options.imagenet, options.seed
    )
    return seven_scenes.run(settings, options.quick)
