"""Hard light on a rendered street: what it costs is measured, and may not get worse.

The bounds are a third above what was measured when they were written: mean errors per frame of
0.8 m, in millimetres and degrees. In the clear it is 2.1 mm and 0.0042 deg.
"""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.camera import Frame
from hydranet_ros.simulation import Street, StreetConfig
from hydranet_ros.stereo_vo.odometry import StereoVO

FRAMES = 41
Picture = np.ndarray
Change = Callable[[Picture, Picture, int, np.random.Generator], tuple[Picture, Picture]]


def scaled(image: Picture, gain: float) -> Picture:
    return np.clip(image.astype(np.float32) * gain, 0, 255).astype(np.uint8)


def steps_together(left: Picture, right: Picture, k: int, _: object) -> tuple[Picture, Picture]:
    gain = (1.0, 0.55, 1.5)[k % 3]
    return scaled(left, gain), scaled(right, gain)


def steps_apart(left: Picture, right: Picture, k: int, _: object) -> tuple[Picture, Picture]:
    return scaled(left, (1.0, 0.6, 1.4)[k % 3]), scaled(right, (1.3, 1.0, 0.7)[k % 3])


def other_gamma(left: Picture, right: Picture, _k: int, _: object) -> tuple[Picture, Picture]:
    return left, np.asarray(255.0 * (right / 255.0) ** 0.7, dtype=np.uint8)


def rain(count: int) -> Change:
    """Bright streaks, others in every image."""

    def fall(image: Picture, rng: np.random.Generator) -> Picture:
        layer = np.zeros(image.shape, dtype=np.float32)
        for _ in range(count):
            u, v = rng.uniform(0, image.shape[1]), rng.uniform(0, image.shape[0])
            length, slope = rng.uniform(8, 30), rng.uniform(-0.2, 0.2)
            end = int(u + slope * length), int(v + length)
            bright = float(rng.uniform(25, 80))
            cv2.line(layer, (int(u), int(v)), end, bright, 1, cv2.LINE_AA)
        return np.clip(image + layer, 0, 255).astype(np.uint8)

    return lambda left, right, _, rng: (fall(left, rng), fall(right, rng))


def errors(change: Change | None, **settings: object) -> tuple[float, float, int]:
    """Millimetres, degrees and lost frames."""
    street, rng = (
        Street(StreetConfig(frames=FRAMES, seed=17, **settings)),
        np.random.default_rng(3),
    )
    vo, found, lost, stamps = StereoVO(street.camera), [], 0, {}
    for k, each in enumerate(street):
        stamps[each.stamp_ns] = k
        left, right = each.left, each.right
        if change is not None:
            left, right = change(left, right, k, rng)
        result = vo.update(Frame(each.stamp_ns, left, right))
        if result.pose is None:
            lost += k > 0
            continue
        assert result.stamp_1_ns is not None
        first = street.T_w_c[stamps[result.stamp_1_ns]]
        true = lie.se3_inverse(street.T_w_c[k]) @ first
        found.append(lie.se3_log(result.pose.T_2_1 @ lie.se3_inverse(true)))
    wrong = np.array(found)
    metres, radians = (np.linalg.norm(wrong[:, s], axis=1).mean() for s in (slice(3), slice(3, 6)))
    return 1e3 * float(metres), float(np.degrees(radians)), int(lost)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "change", "most_mm", "most_deg"),
    [
        pytest.param({"right_gain": 0.6}, None, 3.0, 0.006, id="right image darker"),
        pytest.param({"gain_drift": 0.6}, None, 2.8, 0.006, id="exposure drifts"),
        pytest.param({}, steps_together, 2.7, 0.0067, id="exposure steps"),
        pytest.param({}, steps_apart, 3.0, 0.0065, id="exposure steps apart"),
        pytest.param({}, other_gamma, 6.0, 0.006, id="another gamma on the right"),
        pytest.param({"shutter_s": 0.03}, None, 3.6, 0.006, id="motion blur"),
        pytest.param({"blur_sigma_px": 2.0}, None, 5.4, 0.0095, id="out of focus"),
        pytest.param({"noise_sigma": 8.0}, None, 4.6, 0.0095, id="noise"),
        pytest.param({"texture_contrast": 0.25}, None, 4.8, 0.0088, id="little texture"),
        pytest.param({}, rain(150), 6.1, 0.011, id="rain"),
        pytest.param({}, rain(500), 13.2, 0.02, id="heavy rain"),
    ],
)
def test_hard_light(
    settings: dict[str, object], change: Change | None, most_mm: float, most_deg: float
) -> None:
    millimetres, degrees, lost = errors(change, **settings)
    assert lost == 0
    assert millimetres < most_mm
    assert degrees < most_deg


def test_a_pair_of_unequal_exposure_starts() -> None:
    street = Street(StreetConfig(frames=2, seed=17, right_gain=0.6))
    vo = StereoVO(street.camera)
    results = [vo.update(Frame(each.stamp_ns, each.left, each.right)) for each in street]
    assert results[1].ok, results[1].lost
