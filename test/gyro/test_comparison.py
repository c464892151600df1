"""Frames compared on a device: as OpenCV compares them, and with one array that comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode

from hydranet_ros.datasets.kitti import KittiFolder
from hydranet_ros.errors import HydraNetError
from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Camera, Frame, Image, StereoCamera
from hydranet_ros.gyro import dis_torch, predictor
from hydranet_ros.gyro.comparison_torch import DeviceComparison
from hydranet_ros.gyro.flow import DisConfig, FlowConfig, FlowEstimator, dis
from hydranet_ros.gyro.grid import CanonicalGrid, GridFlow
from hydranet_ros.gyro.visual_gyro import GyroConfig, GyroLost, VisualGyro, open_predictor
from hydranet_ros.simulation.config import StreetConfig
from hydranet_ros.simulation.street import Street

PREDICTOR = open_predictor(GyroConfig(device="cpu"))
ON_DEVICE = ["dis_torch", "farneback_torch"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Torch with more threads than free cores is many times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def street() -> tuple[StereoCamera, list[Frame]]:
    made = Street(StreetConfig(frames=5))
    return made.camera, [Frame(each.stamp_ns, each.left, each.right) for each in made]


def gyro_with(camera: Camera | StereoCamera, method: str, cameras: str = "mono") -> VisualGyro:
    config = GyroConfig(cameras=cameras, flow=FlowConfig(method))  # type: ignore[arg-type]
    return VisualGyro(camera, config, PREDICTOR)


# --- the search ----------------------------------------------------------------------------------


def on_cpu(image: Image) -> Any:
    return torch.from_numpy(image)[None]


def apart(one: GridFlow, other: GridFlow) -> float:
    """Mean difference in pixels, of cells that both trust."""
    assert one.trusted is not None
    assert other.trusted is not None
    both = one.trusted & other.trusted
    assert both.sum() > 0.9 * one.trusted.sum() > 0.0
    return float(288.0 * np.linalg.norm(one.flow - other.flow, axis=0)[both].mean())


@pytest.mark.parametrize("config", [DisConfig(), DisConfig(finest_scale=1, patch_stride=4)])
def test_the_search_is_opencvs(
    street: tuple[StereoCamera, list[Frame]], config: DisConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = street[1]
    small = [cv2.resize(each.left, (260, 120), interpolation=cv2.INTER_AREA) for each in frames]
    found = dis_torch.dis(on_cpu(small[0]), on_cpu(small[1]), config)[0].permute(1, 2, 0).numpy()
    expected = dis(small[0], small[1], config)
    near = np.linalg.norm(found - expected, axis=-1) < 0.1
    assert near.mean() > 0.65  # elsewhere there is little to tell one flow from another
    monkeypatch.setattr(dis_torch, "SWEEPS", 1)
    found = dis_torch.dis(on_cpu(small[0]), on_cpu(small[1]), config)[0].permute(1, 2, 0).numpy()
    assert (np.linalg.norm(found - expected, axis=-1) < 0.1).mean() < near.mean() - 0.1


def test_both_ways_are_the_two_ways(street: tuple[StereoCamera, list[Frame]]) -> None:
    a, b = (on_cpu(each.left[:120, :200]) for each in street[1][:2])
    forth, back = dis_torch.dis_both_ways(a, b)
    torch.testing.assert_close(forth, dis_torch.dis(a, b), rtol=0, atol=1e-3)
    coarser = replace(DisConfig(), finest_scale=1)
    torch.testing.assert_close(back, dis_torch.dis(b, a, coarser), rtol=0, atol=1e-3)


def test_a_small_image_has_few_levels() -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)
    forth, back = dis_torch.dis_both_ways(on_cpu(image), on_cpu(image))
    assert forth.shape == back.shape == (1, 2, 32, 32)
    assert float(forth.abs().max()) < 0.1


def test_refinement_is_opencvs_alone() -> None:
    image = torch.zeros(1, 64, 64)
    with pytest.raises(ValueError, match="refinements must be 0, got 5; or use method 'dis'"):
        dis_torch.dis(image, image, DisConfig(refinements=5))


def kitti_pairs(data: Path) -> list[tuple[Camera, Image, Image]]:
    pairs = []
    for name, first, step in (("09", 10, 48), ("06", 20, 60)):
        folder = data / "kitti" / "sequences" / name
        if not folder.is_dir():
            pytest.skip(f"no sequence {name} of KITTI in {folder}")
        source = KittiFolder(folder)
        images = sorted((folder / "image_0").iterdir())
        for k in range(first, len(images) - 1, step):
            a, b = (cv2.imread(str(each), cv2.IMREAD_GRAYSCALE) for each in images[k : k + 2])
            pairs.append((source.camera.left, np.asarray(a, np.uint8), np.asarray(b, np.uint8)))
    return pairs


def test_the_flow_is_opencvs_on_real_pairs(data: Path) -> None:
    pairs = kitti_pairs(data)
    assert len(pairs) >= 20
    differences = []
    for camera, a, b in pairs:
        height, width = a.shape
        grid = CanonicalGrid().covering(camera, (height, width))
        one, other = (
            FlowEstimator(camera, (height, width), FlowConfig(method), grid)(a, b)
            for method in ("dis", "dis_torch")
        )
        differences.append(apart(one, other))
        assert one.texture is not None
        assert other.texture is not None
        assert np.abs(one.texture - other.texture).mean() < 0.01 * one.texture.mean()
    assert np.mean(differences) < 0.1


# --- the whole chain -----------------------------------------------------------------------------


@pytest.mark.parametrize("cameras", ["mono", "stereo"])
def test_rotations_are_those_of_opencvs_flow(
    street: tuple[StereoCamera, list[Frame]], cameras: str
) -> None:
    camera, frames = street
    host, device = (gyro_with(camera, method, cameras) for method in ("dis", "dis_torch"))
    for frame in frames:
        one, other = host.update(frame), device.update(frame)
        if one is None or other is None:
            assert one is other is None
            assert host.lost is device.lost is GyroLost.FIRST_IMAGE
            continue
        assert host.flow is not None
        assert device.flow is not None
        assert apart(host.flow, device.flow) < 0.1
        error = np.linalg.norm(lie.so3_log(one.C_2_1 @ other.C_2_1.T))
        assert error < 0.3 * np.sqrt(np.trace(one.Sigma_2_1))
        np.testing.assert_allclose(np.trace(other.Sigma_2_1), np.trace(one.Sigma_2_1), rtol=0.3)


@pytest.mark.parametrize("method", ["dis", *ON_DEVICE])
def test_what_cannot_be_compared_is_told_alike(
    street: tuple[StereoCamera, list[Frame]], method: str
) -> None:
    camera, frames = street
    blank = np.full_like(frames[0].left, 90)
    noise = np.random.default_rng(0).integers(0, 256, blank.shape, dtype=np.uint8)
    gyro = gyro_with(camera, method)
    for image, expected in (
        (blank, GyroLost.NO_TEXTURE),
        (frames[0].left, GyroLost.FIRST_IMAGE),
        (frames[1].left, None),
        (blank, GyroLost.NO_TEXTURE),
        (noise, GyroLost.NO_MATCH),
    ):
        stamp = gyro._last.stamp_ns + 100 if gyro._last is not None else 0
        gyro.update(Frame(stamp, image))
        assert gyro.lost is expected


def test_shares_and_correlation_are_those_of_the_host(
    street: tuple[StereoCamera, list[Frame]],
) -> None:
    camera, frames = street
    compared = []
    for method in ("dis", "dis_torch"):
        gyro = gyro_with(camera.left, method)
        height, width = frames[0].left.shape
        compared.append(gyro._comparison((height, width))(frames[0], frames[1], 1.0))
    one, other = compared
    assert other.textured == pytest.approx(one.textured, abs=0.01)
    assert other.known == pytest.approx(one.known, abs=0.02)
    assert other.alike() == pytest.approx(one.alike(), abs=0.01)


class Crossings(TorchDispatchMode):
    """Count what goes to a device and what comes back; refuse what would wait for it.

    The meta device has shapes and no values: to look at one, or to make a shape of one, fails by
    itself. A copy back would fail as well, and gives zeros here.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.count = device, Counter[str]()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        where = [each.device.type for each in args if isinstance(each, torch.Tensor)]
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal"):
            self.count["waits"] += self.device in where
        if name == "index" and self.device in where:
            chosen = [each for each in args[1] if each is not None]
            self.count["waits"] += any(each.dtype == torch.bool for each in chosen)
        if name in ("_to_copy", "copy_"):
            to = kwargs.get("device") or (args[0].device if name == "copy_" else None)
            source = where[-1]
            if to is not None and to.type != source:
                self.count["back" if source == self.device else "there"] += 1
                if source == self.device:
                    self.sizes.append(args[0].numel())
                    return torch.zeros(args[0].shape, dtype=args[0].dtype)
        return func(*args, **kwargs)


@pytest.mark.parametrize("method", ON_DEVICE)
@pytest.mark.parametrize("cameras", [pytest.param("mono", marks=pytest.mark.slow), "stereo"])
def test_one_array_comes_back_for_a_frame_and_nothing_waits(
    street: tuple[StereoCamera, list[Frame]],
    monkeypatch: pytest.MonkeyPatch,
    cameras: str,
    method: str,
) -> None:
    monkeypatch.setattr(predictor, "choose_device", torch.device)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # meta has none
    # Not traced: a trace repeats the same operations out of sight.
    monkeypatch.setattr(predictor, "Traced", lambda model: model)
    on_meta = predictor.Predictor(PREDICTOR.weights, "meta")  # type: ignore[union-attr]
    camera, frames = street
    height, width = frames[0].left.shape
    grid = CanonicalGrid().covering(camera.left, (height, width))
    stereo = cameras == "stereo"
    compare = DeviceComparison(
        camera.left,
        (height, width),
        FlowConfig(method),  # type: ignore[arg-type]
        grid,
        on_meta,
        stereo,
    )
    made = []  # from numbers of Python: a copy that meta does not show
    for owner, name in ((torch, "tensor"), (torch.Tensor, "new_tensor")):
        make = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *given, make=make, **more: made.append(1) or make(*given, **more)
        )
    with Crossings("meta"):  # constants are made once
        compare(frames[0], frames[1], 1.0)
    made.clear()
    with Crossings("meta") as seen:
        for k in (2, 3):
            compare(frames[k - 1], frames[k], 1.0)
    assert not made
    assert seen.count["waits"] == 0
    assert seen.count["there"] == 2 * (1 + stereo)  # each image once
    assert seen.count["back"] == 2
    assert max(seen.sizes) == min(seen.sizes) < 4 * grid.rows * grid.columns


def test_the_count_sees_what_waits() -> None:
    on_cpu_device = Crossings("cpu")
    with on_cpu_device:
        values = torch.arange(4.0)
        float(values.sum())
        values[values > 1.0]
        torch.nonzero(values)
    assert on_cpu_device.count["waits"] >= 3
    away = Crossings("meta")
    with away:
        torch.zeros(3).to("meta").cpu()
    assert (away.count["there"], away.count["back"]) == (1, 1)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_leaves_flow_as_it_is(
    street: tuple[StereoCamera, list[Frame]], kind: Any
) -> None:
    """There is nothing in the search that autocast would round."""
    a, b = (on_cpu(each.left[:120, :200]) for each in street[1][:2])
    whole = dis_torch.dis(a, b)
    with torch.autocast("cpu", dtype=kind):
        torch.testing.assert_close(dis_torch.dis(a, b), whole, rtol=0, atol=1e-3)


def test_half_precision_on_the_device_stays_close(
    street: tuple[StereoCamera, list[Frame]],
) -> None:
    camera, frames = street
    config = GyroConfig(device="cpu", half=True, flow=FlowConfig("dis_torch"))
    half, whole = VisualGyro(camera.left, config), gyro_with(camera.left, "dis_torch")
    a, b = (gyro.between(frames[0].left, frames[1].left) for gyro in (half, whole))
    error = np.linalg.norm(lie.so3_log(a.C_2_1 @ b.C_2_1.T))
    assert error < 0.1 * np.sqrt(np.trace(b.Sigma_2_1))
    np.testing.assert_allclose(np.trace(a.Sigma_2_1), np.trace(b.Sigma_2_1), rtol=0.1)


# --- which flow, where ---------------------------------------------------------------------------


class OnGpu:
    """A network that says it is on a GPU."""

    flow_device = "cuda:0"
    config, provenance = PREDICTOR.config, PREDICTOR.provenance


def test_a_gpu_gets_the_flow_of_the_weights_in_torch() -> None:
    camera = Camera(700.0, 700.0, 600.0, 180.0)
    assert VisualGyro(camera, GyroConfig(), PREDICTOR).method == "dis"
    assert VisualGyro(camera, GyroConfig(), OnGpu()).method == "dis_torch"  # type: ignore[arg-type]
    asked = GyroConfig(flow=FlowConfig("dis"))
    assert VisualGyro(camera, asked, OnGpu()).method == "dis"  # type: ignore[arg-type]


def test_flow_on_a_device_needs_its_network_there() -> None:
    config = GyroConfig(device="numpy", flow=FlowConfig("dis_torch"))
    image = np.random.default_rng(0).integers(0, 256, (180, 600), dtype=np.uint8)
    with pytest.raises(HydraNetError, match="dis_torch goes with a network in torch: use device"):
        VisualGyro(Camera(330.0, 310.0, 300.0, 90.0), config).between(image, image)
