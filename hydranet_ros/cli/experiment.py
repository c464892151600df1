"""`hydranet experiment NAME`: the paper's tables and figures, made again."""

from __future__ import annotations

import argparse
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hydranet_ros.errors import HydraNetError

if TYPE_CHECKING:
    from hydranet_ros.experiments.outcome import Outcome

EXAMPLES = """\
examples:
  hydranet experiment one-d --quick
  hydranet experiment one-d --preset published --check --out out/one-d
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the experiments and their arguments."""
    parser = commands.add_parser(
        "experiment",
        help="make a table or figure of the paper again",
        description="Run one of the paper's experiments; docs/reproduction.md has the results.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = parser.add_subparsers(dest="experiment", required=True, metavar="NAME")
    _one_d(names)
    _hemisphere(names)
    _seven_scenes(names)
    _kitti(names)
    averaging = _add(names, "rotation-averaging", "three metrics on rotations and their means")
    averaging.set_defaults(make=_run_rotation_averaging)
    parser.set_defaults(run=run)


def _add(
    names: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    """An experiment with the arguments that all of them have."""
    parser = names.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--quick", action="store_true", help="a reduced version, under a minute")
    parser.add_argument(
        "--check", action="store_true", help="fail where a figure is not what is expected"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help=f"write the results there (default: out/{name})"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--threads", type=_positive, metavar="N", help="threads of torch (default: torch's own)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def _one_d(names: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(names, "one-d", "five kinds of uncertainty on a function of one variable")
    _add_preset(parser)
    parser.add_argument("--repetitions", type=_positive, default=100, metavar="N")
    parser.add_argument(
        "--workers", type=_positive, default=2, metavar="N", help="processes (default: 2)"
    )
    parser.set_defaults(make=_run_one_d)


def _hemisphere(names: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(names, "hemisphere", "a camera's orientation from noisy pixels of landmarks")
    _add_preset(parser)
    parser.add_argument(
        "--training",
        choices=("default", "paper"),
        default="default",
        help="the paper's network and training, or heads that differ by design (default)",
    )
    parser.set_defaults(make=_run_hemisphere)


def _kitti(names: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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


def _seven_scenes(names: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(names, "seven-scenes", "a camera's orientation from one colour image")
    _add_data(parser, "--dataset", "seven_scenes", "the folder of the scenes, or one of frames")
    parser.add_argument(
        "--scenes", nargs="+", default=(), metavar="NAME", help="which ones (default: all there)"
    )
    parser.add_argument(
        "--imagenet", type=Path, metavar="FILE", help="a state dict of torchvision's resnet34"
    )
    parser.set_defaults(make=_run_seven_scenes)


def _add_preset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preset",
        choices=("paper", "published"),
        default="paper",
        help="the paper's text, or what made its figures (default: %(default)s)",
    )


def _add_data(parser: argparse.ArgumentParser, option: str, folder: str, text: str) -> None:
    """A folder to read, by default one of $HYDRANET_DATA."""
    data = Path(os.environ.get("HYDRANET_DATA", "data"))
    text = f"{text} (default: $HYDRANET_DATA/{folder})"
    parser.add_argument(option, type=Path, default=data / folder, metavar="DIR", help=text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)


def run(options: argparse.Namespace) -> None:
    """Run, write, print, check."""
    if find_spec("torch") is None or find_spec("safetensors") is None:
        raise HydraNetError("experiments need torch: pip install 'hydranet_ros[learning,report]'")
    from hydranet_ros.experiments.fit import use_threads
    from hydranet_ros.experiments.outcome import write_outcome

    if options.threads is not None:
        use_threads(options.threads)
    outcome: Outcome = options.make(options)
    folder = _folder(options)
    write_outcome(folder, options.experiment, outcome)
    if options.json:
        print(json.dumps(outcome.figures, indent=2))
    else:
        print(f"{outcome.report}\nwritten to {folder}")
    if options.check:
        outcome.check()


def _folder(options: argparse.Namespace) -> Path:
    return options.out or Path("out") / options.experiment


def _run_one_d(options: argparse.Namespace) -> Outcome:
    from hydranet_ros.experiments import one_d

    settings = one_d.Settings(
        options.preset, options.seed, options.repetitions, workers=options.workers
    )
    return one_d.run(settings, options.quick)


def _run_rotation_averaging(options: argparse.Namespace) -> Outcome:
    from hydranet_ros.experiments import rotation_averaging

    settings = rotation_averaging.Settings(seed=options.seed)
    return rotation_averaging.run(settings, options.quick)


def _run_hemisphere(options: argparse.Namespace) -> Outcome:
    from hydranet_ros.experiments import hemisphere

    settings = hemisphere.Settings(options.preset, options.training, options.seed)
    return hemisphere.run(settings, options.quick)


def _run_kitti(options: argparse.Namespace) -> Outcome:
    from hydranet_ros.experiments import kitti, kitti_training

    if options.dataset is None:
        if options.test is not None:
            raise HydraNetError("--test names a sequence of --dataset DIR: give that as well")
        return kitti.run(options.recordings, options.quick)
    settings = kitti_training.Settings(
        options.dataset, _folder(options), options.test, options.seed
    )
    return kitti_training.run(settings, options.quick)


def _run_seven_scenes(options: argparse.Namespace) -> Outcome:
    from hydranet_ros.experiments import seven_scenes

    settings = seven_scenes.Settings(
        options.dataset, tuple(options.scenes), options.imagenet, options.seed
    )
    return seven_scenes.run(settings, options.quick)
