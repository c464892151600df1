"""`hydranet run SOURCE`: the method over a sequence of frames, offline and repeatable."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hydranet_ros import __version__
from hydranet_ros.cli.arguments import (
    Parser,
    add_camera,
    add_command,
    add_frames,
    add_imu,
    add_json,
    add_network,
    add_out,
    add_poses,
    add_settings,
    add_source,
    add_topics,
    add_view,
    chosen_settings,
    dumped,
    network_settings,
    open_chosen,
    refused_frames,
    whole_number,
)
from hydranet_ros.errors import HydraNetError, printable, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hydranet_ros.cli.arguments import Commands
    from hydranet_ros.datasets.source import Source
    from hydranet_ros.evaluation.output import ResultsFolder
    from hydranet_ros.evaluation.run import RunResults
    from hydranet_ros.fusion.imu import ImuSample
    from hydranet_ros.geometry.camera import Frame
    from hydranet_ros.geometry.estimates import RelativePose
    from hydranet_ros.geometry.lie import Array
    from hydranet_ros.pipeline import Pipeline, PipelineConfig, Step
    from hydranet_ros.view.frames import SceneMaker
    from hydranet_ros.view.scene import History

EXAMPLES = """\
  hydranet run                                             the simulated street
  hydranet run dataset/sequences/09 --out out/09
  hydranet run dataset/sequences/09 --config out/09/config.yaml --set fusion.window_size=20
  hydranet run dataset/sequences/10 --calibration out/09/calibration.yaml
  hydranet run recording.mcap --only vo --frames 200
  hydranet run dataset/sequences/09 --only rotation --cameras stereo --json
  hydranet run MH_01_easy --only rotation                  EuRoC: the left camera, undistorted
  hydranet run rgbd_dataset_freiburg1_xyz --cameras mono   TUM; 7-Scenes: chess/seq-01
  hydranet run rgbd_dataset_freiburg1_xyz --cameras rgbd --only vo
  hydranet run realsense.mcap --cameras rgbd --left-topic /camera/color/image_raw
  hydranet run my_images --cameras mono --camera camera_info.yaml
  hydranet run dataset/sequences/09 --odometry wheels      one camera and simulated wheels
  hydranet run robot --camera robot.yaml --odometry robot/wheel.csv --imu robot/imu.csv
  hydranet run dataset/sequences/09 --view                 beside a page in the browser
  hydranet run dataset/sequences/0? --jobs 2 --out out     into out/00, out/01 and so on
"""


def add_parser(commands: Commands) -> None:
    """Declare the arguments."""
    parser: Parser = add_command(
        commands,
        "run",
        run,
        "run over a folder of images, a bag, or the simulated street",
        "Run visual odometry, the visual gyro and their fusion over the frames of SOURCE: a "
        "folder of images (KITTI: image_0, image_1, calib.txt, times.txt; EuRoC: mav0/cam0, cam1; "
        "TUM RGB-D: rgb.txt; 7-Scenes: frame-*.color.*; others: images.txt), a rosbag2, or "
        "'street', the simulated one. With --cameras mono and no pair, the rotation alone; with "
        "--cameras rgbd, images with depth (TUM: depth.txt; 7-Scenes: frame-*.depth.png; bags) "
        "instead of a pair.",
        EXAMPLES,
    )
    add_source(parser, many=True)
    parser.add_argument(
        "--jobs",
        type=whole_number(1),
        metavar="N",
        help="of several sources, so many at once (default: as many as there are cores)",
    )
    parser.add_argument("--only", choices=("vo", "rotation"), help="one part, without fusion")
    parser.add_argument(
        "--odometry",
        metavar="own|wheels|FILE",
        help="our own stereo odometry; wheels, which are simulated from the true poses; or "
        "recorded: wheel counts (csv), poses of the base (TUM), a recording (npz) (default: own)",
    )
    add_imu(parser)
    add_network(parser, cameras="mono", depth=True)
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="self-calibration of the pair to start from: calibration.yaml of an earlier result",
    )
    add_poses(parser)
    add_camera(parser)
    add_topics(parser)
    add_frames(parser)
    add_settings(parser)
    add_view(parser)
    add_out(parser)
    parser.add_argument("--details", action="store_true", help="print every figure")
    add_json(parser)


class Outcome(NamedTuple):
    """What a run has to say: for programs, for people, and whether it was interrupted."""

    printed: dict[str, Any]
    text: str
    interrupted: bool


def run(options: argparse.Namespace) -> None:
    """Run one source, or several in processes of their own; print what came out."""
    if len(options.source) > 1:
        from hydranet_ros.cli.many_runs import run_many

        run_many(options)
        return
    (options.source,) = options.source
    outcome = run_one(options, _with_bar)
    if outcome is None:
        return
    print(json.dumps(outcome.printed) if options.json else outcome.text)
    if outcome.interrupted:
        raise KeyboardInterrupt


def run_one(
    options: argparse.Namespace, watched: Callable[[Source], Iterable[Frame]]
) -> Outcome | None:
    """Read, track, evaluate, write. An interruption keeps what is done, but the plots.

    `watched` hands the frames of a source on, and shows how far it is. None where the settings
    were all that was asked for.
    """
    from hydranet_ros.pipeline import Pipeline, PipelineConfig

    shorthands = {
        "parts": options.only,
        "fusion.odometry": _odometry_kind(options.odometry),
        "vo.calibration": options.calibration,
        **network_settings(options),
    }
    if options.cameras == "rgbd":  # the network sees the one image
        shorthands["gyro.cameras"] = "mono"
    config = chosen_settings(options, PipelineConfig(), shorthands)
    if dumped(options, config):
        return None
    source, config = _open_source(options, config)
    config = _known_scales(options, config)
    pipeline = Pipeline(
        source.camera,
        config,
        odometry=_odometry(options, config, source),
        imu=() if config.parts != "all" else _imu(options, config, source),
    )
    from hydranet_ros.cli.view import opened, wait_for_leave
    from hydranet_ros.evaluation.output import ResultsFolder
    from hydranet_ros.evaluation.run import RunResults
    from hydranet_ros.view.frames import LATENCY
    from hydranet_ros.view.recorded import VIEW_FILE
    from hydranet_ros.view.scene import History

    folder = None if options.out is None else ResultsFolder(options.out)
    results = RunResults(source, pipeline)
    history = None if folder is None and not options.view else History()
    interrupted = False
    with (
        nullcontext()
        if history is None or not options.view
        else opened(options, history, source.name)
    ):
        try:
            _follow(source, watched(source), pipeline, results, history)
            if options.view:
                wait_for_leave()
        except KeyboardInterrupt:
            # Whoever leaves the view of a whole run has not interrupted it.
            interrupted = len(results.stamps_ns) < len(source)
    if not results.stamps_ns:
        raise KeyboardInterrupt
    figures = results.figures()
    if folder is not None:
        with folder.whole() as place:
            settings = _config_text(pipeline, source, results)
            results.write(place, figures, settings)
            if history is not None:
                place.data(VIEW_FILE, history.dumps(without=(LATENCY,)))
            if not interrupted:  # plots take longer than one who wants to leave would wait
                _write_report(place, results, figures, settings)
    timing = {"ms_median": results.timing["ms_median"]}
    printed = {"frames": figures["frames"]} | timing | figures
    return Outcome(printed, _text(results, figures, options), interrupted)


def _with_bar(source: Source) -> Iterable[Frame]:
    from hydranet_ros.evaluation.output import progress

    return progress(source, len(source), "run")


def _open_source(
    options: argparse.Namespace, config: PipelineConfig
) -> tuple[Source, PipelineConfig]:
    """A pair where the odometry or the gyro needs one, else one camera is enough.

    One who asks for one camera of a source that has no pair gets the rotation alone.
    """
    if options.cameras == "rgbd":
        return open_chosen(options, "rgbd"), config
    if config.parts == "rotation" or (config.parts == "all" and config.fusion.odometry != "own"):
        return open_chosen(options, config.gyro.cameras), config
    try:
        return open_chosen(options), config
    except HydraNetError as error:
        alone = options.cameras == "mono" and config.parts == "all"
        try:
            mono = open_chosen(options, "mono")
        except HydraNetError as other:
            raise (other if alone else error) from None
        if alone:
            return mono, replace(config, parts="rotation")
        raise HydraNetError(
            f"{error}; stereo odometry needs a pair: with one camera use --cameras mono, for the "
            "rotation alone"
        ) from None


def _odometry_kind(given: str | None) -> str | None:
    """Which error model --odometry means: recordings of VO are npz files, all else is wheels."""
    if given in (None, "own", "wheels"):
        return given
    return "visual" if given.endswith(".npz") else "wheels"


def _odometry(
    options: argparse.Namespace, config: PipelineConfig, source: Source
) -> list[RelativePose] | None:
    """The motions of odometry that is not ours; None where it is."""
    if config.parts != "all" or config.fusion.odometry == "own":
        return None
    from hydranet_ros.datasets.wheels import read_odometry
    from hydranet_ros.evaluation.run import on_ground, wheels_of_truth

    try:
        if options.odometry not in (None, "wheels"):
            motions = read_odometry(options.odometry, config.wheels)
            return on_ground(motions, config, config.wheels.up_c)
        return wheels_of_truth(source, config)
    except ValueError as error:
        raise HydraNetError(f"wheels.{error}") from None


def _known_scales(options: argparse.Namespace, config: PipelineConfig) -> PipelineConfig:
    """With priors for the scales of turns: a track that was measured, a camera that was not."""
    from hydranet_ros.datasets.camera_files import read_camera

    calibration = config.fusion.calibration
    if options.odometry is not None and options.odometry.endswith(".csv"):
        calibration = replace(calibration, yaw_sigma=config.wheels.track_sigma)
    if options.camera is not None and not read_camera(options.camera).calibrated:
        calibration = replace(calibration, gyro_sigma=calibration.nominal_sigma)
    return replace(config, fusion=replace(config.fusion, calibration=calibration))


def _imu(
    options: argparse.Namespace, config: PipelineConfig, source: Source
) -> Iterable[ImuSample]:
    """The samples of --imu, in the axes of the camera."""
    if options.imu is None:
        return ()
    from hydranet_ros.datasets.imu import euroc_mount, read_imu, refuse_elsewhere
    from hydranet_ros.simulation.imu import simulate_imu

    if options.imu != "simulated":
        mount = euroc_mount(options.imu)
        C_c_i = config.wheels.T_b_c[:3, :3].T if mount is None else mount
        samples = read_imu(options.imu, C_c_i)
        refuse_elsewhere(options.imu, samples, source.stamps_ns)
        return samples
    if source.T_w_c is None or len(source.T_w_c) < 2:
        raise HydraNetError(
            f"{source.name}: has no true poses to simulate an IMU from: use --imu FILE"
        )
    stamps = source.stamps_ns[: len(source.T_w_c)]
    up_w = source.T_w_c[0, :3, :3] @ config.wheels.up_c
    return simulate_imu(source.T_w_c, stamps, config.simulated_imu, up_w)


def _follow(
    source: Source,
    frames: Iterable[Frame],
    pipeline: Pipeline,
    results: RunResults,
    history: History | None,
) -> None:
    from hydranet_ros.stereo_vo.result import Lost
    from hydranet_ros.view.frames import SceneMaker

    scenes = SceneMaker()
    for frame in frames:
        start = time.perf_counter()
        with refused_frames(source.name, frame.stamp_ns):
            step = pipeline.update(frame)
        milliseconds = 1e3 * (time.perf_counter() - start)
        results.add(step, milliseconds)
        if history is not None:
            _tell(history, scenes, source, pipeline, results, frame, step, milliseconds)
        swapped = step.vo is not None and step.vo.lost is Lost.SWAPPED_CAMERAS
        if swapped and results.odometry is not None and not results.odometry.motions:
            raise HydraNetError(f"{source.name}: {Lost.SWAPPED_CAMERAS.value}")


def _tell(
    history: History,
    scenes: SceneMaker,
    source: Source,
    pipeline: Pipeline,
    results: RunResults,
    frame: Frame,
    step: Step,
    milliseconds: float,
) -> None:
    """Add the scene of a frame, with its flow drawn over it."""
    from hydranet_ros.view.frames import known_of_step

    number = len(results.stamps_ns) - 1
    truth = None if source.T_w_c is None else from_start(source.T_w_c, number)
    odometry = None if results.odometry is None else results.odometry.T_w_c[-1]
    fused = None if results.fused is None else results.fused.T_w_c[-1]
    state = results.fused.states[-1] if results.fused and results.fused.states else None
    known = known_of_step(step, pipeline, truth, odometry, fused, state, milliseconds)
    if known.truth is not None:
        scenes.know(step.stamp_ns, known.truth)
    picture = None if pipeline.gyro is None else pipeline.gyro.picture(frame.left)
    history.add(scenes.make(known), frame.left if picture is None else picture)


def from_start(T_w_c: Array, number: int) -> Array | None:
    """The pose of a frame as seen from the first one; None where either is not known."""
    import numpy as np

    from hydranet_ros.geometry import lie

    if number >= len(T_w_c) or not np.isfinite(T_w_c[[0, number]]).all():
        return None
    return lie.se3_inverse(T_w_c[0]) @ T_w_c[number]


def _config_text(pipeline: Pipeline, source: Source, results: RunResults) -> str:
    """The settings, to be read back by --config, under what else the results depend on."""
    from dataclasses import asdict

    from hydranet_ros.gyro.visual_gyro import describe
    from hydranet_ros.settings import to_yaml

    about: dict[str, Any] = {
        "hydranet_ros": __version__,
        "source": source.name,
        "frames": len(results.stamps_ns),
        "camera": asdict(source.camera),
    }
    if pipeline.gyro is not None:
        about["network"] = describe(pipeline.gyro)
    comment = "\n".join(f"{name}: {value}" for name, value in about.items())
    return to_yaml(pipeline.config, comment)


def _write_report(
    folder: ResultsFolder, results: RunResults, figures: dict[str, Any], settings: str
) -> None:
    try:
        require("the report", "matplotlib")
    except HydraNetError as error:
        print(f"no report.html: {error}", file=sys.stderr)
    else:
        results.write_report(folder, figures, settings)


def _text(results: RunResults, figures: dict[str, Any], options: argparse.Namespace) -> str:
    """What a person wants to read: at most ten lines, or with --details all of it."""
    from hydranet_ros.evaluation.record import rotation_errors
    from hydranet_ros.evaluation.tables import calibration_table, figures_table, run_table

    median = results.timing["ms_median"]
    speed = "" if median is None else f"; {median:.1f} ms each, {1e3 / median:.0f} a second"
    lines = [f"{figures['frames']} frames{_counts(figures)}{speed}"]
    if options.cameras == "mono" and options.only is None and results.odometry is None:
        lines.append("no pair of cameras: the rotation alone")
    lines += [] if results.doubt is None else [f"warning: {results.doubt}"]
    if results.truth is None:
        lines.append("no true poses found: nothing to compare with (--poses FILE)")
    elif options.details:
        lines.append(figures_table(figures))
        errors = rotation_errors(results.rotations, results.truth)
        if errors is not None:
            lines.append(calibration_table(errors))
    else:
        lines.append(run_table(figures))
    if options.out is not None:
        lines.append(f"written to {printable(str(options.out))}")
    return "\n".join(lines)


def _counts(figures: dict[str, Any]) -> str:
    lost = f", {figures['lost']} lost" if "lost" in figures else ""
    unmatched = figures["unmatched"]
    pairs = f", {unmatched} images without the other of their pair" if unmatched else ""
    unused = "".join(f", {n} x {kind}" for kind, n in figures.get("not_used", {}).items())
    return lost + pairs + unused
