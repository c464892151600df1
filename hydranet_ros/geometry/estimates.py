"""Relative motion estimates: a value, its covariance, and the two stamps it spans.

Both types are frozen and validated where they are made, so that whatever receives one can rely on
a proper rotation, a finite symmetric positive definite covariance, and stamps in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hydranet_ros.geometry import lie
from hydranet_ros.geometry.lie import Array

# How far R R^T may be from the identity: float32 messages and text files round to about 1e-6.
ROTATION_TOLERANCE = 1e-4
# How far correlations may be from their transpose. Correlations, because in a covariance of a pose
# square metres hide any fault in square radians.
SYMMETRY_TOLERANCE = 1e-6
# The least eigenvalue of the correlations: below it a covariance is singular to rounding, although
# its Cholesky factor may still come out.
DEFINITE_TOLERANCE = 1e-14
# How far a part of a covariance may be from positive, or above the whole, relative to the whole.
PART_TOLERANCE = 1e-3
# Where R R^T is the identity to rounding, the projection to SO(3) would change nothing else.
EXACT = 1e-14


def checked_rotation(matrix: ArrayLike, name: str) -> Array:
    """A read-only float64 copy on SO(3), or a ValueError that says what is wrong with `name`."""
    value = _checked_array(matrix, (3, 3), name)
    defect = float(np.abs(value @ value.T - np.eye(3)).max())
    if defect > ROTATION_TOLERANCE:
        raise ValueError(f"{name} is not a rotation: |R R^T - I| is {defect:.2g}")
    if np.linalg.det(value) < 0.0:
        raise ValueError(f"{name} is not a rotation but a reflection: its determinant is -1")
    return _read_only(value if defect < EXACT else lie.project_to_so3(value))


def checked_covariance(matrix: ArrayLike, size: int, name: str) -> Array:
    """A read-only symmetric positive definite copy, or a ValueError that says why not."""
    value = _checked_array(matrix, (size, size), name)
    variances = np.diagonal(value)
    if not (variances > 0.0).all():
        raise ValueError(f"{name} is not positive definite: a variance is {variances.min():.2g}")
    deviations = np.sqrt(variances)
    correlations = value / np.outer(deviations, deviations)
    asymmetry = float(np.abs(correlations - correlations.T).max())
    if asymmetry > SYMMETRY_TOLERANCE:
        raise ValueError(f"{name} is not symmetric: correlations differ by {asymmetry:.2g}")
    least = float(np.linalg.eigvalsh(0.5 * (correlations + correlations.T))[0])
    if least < DEFINITE_TOLERANCE:
        raise ValueError(
            f"{name} is not positive definite: its correlations have eigenvalue {least:.2g}"
        )
    return _read_only(0.5 * (value + value.T))


def _checked_part(matrix: ArrayLike, whole: Array, name: str) -> Array:
    """A read-only symmetric copy, such that it and `whole` - it are positive semidefinite."""
    part = _checked_array(matrix, whole.shape, name)
    if np.abs(part - part.T).max() > SYMMETRY_TOLERANCE * np.abs(part).max():
        raise ValueError(f"{name} is not symmetric")
    part = 0.5 * (part + part.T)
    tolerated = part + PART_TOLERANCE * whole
    try:
        np.linalg.cholesky(np.stack([tolerated, (1.0 + 2.0 * PART_TOLERANCE) * whole - tolerated]))
    except np.linalg.LinAlgError:
        root = np.linalg.cholesky(whole)
        shares = np.linalg.eigvalsh(np.linalg.solve(root, np.linalg.solve(root, part).T))
        raise ValueError(
            f"{name} is not a part of the covariance: its shares of it run from "
            f"{shares[0]:.2g} to {shares[-1]:.2g}, outside 0 to 1"
        ) from None
    return _read_only(part)


def _checked_array(value: ArrayLike, shape: tuple[int, ...], name: str) -> Array:
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is not an array of numbers: {error}") from None
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has elements that are not finite")
    return array


def _read_only(array: Array) -> Array:
    array.setflags(write=False)
    return array


def _check_stamps(stamp_1_ns: int, stamp_2_ns: int) -> None:
    for name, stamp in (("stamp_1_ns", stamp_1_ns), ("stamp_2_ns", stamp_2_ns)):
        if not isinstance(stamp, (int, np.integer)):
            raise ValueError(f"{name} must be an int of nanoseconds, got {stamp!r}")
    if not stamp_1_ns < stamp_2_ns:
        raise ValueError(
            f"stamp_2_ns must be after stamp_1_ns, got {stamp_1_ns} then {stamp_2_ns}"
        )


def invert_with_covariance(value: Array, covariance: Array) -> tuple[Array, Array]:
    """(X^-1, A Sigma A^T), A = Ad(X^-1), for (..., 3, 3) rotations or (..., 4, 4) poses."""
    if value.shape[-1] == 3:
        inverse, adjoint = lie.so3_inverse(value), lie.so3_inverse(value)
    else:
        inverse = lie.se3_inverse(value)
        adjoint = lie.se3_adjoint(inverse)
    return inverse, adjoint @ covariance @ np.swapaxes(adjoint, -1, -2)


def compose_with_covariance(
    value_c_b: Array, covariance_c_b: Array, value_b_a: Array, covariance_b_a: Array
) -> tuple[Array, Array]:
    """(X_c_b X_b_a, Sigma_c_b + A Sigma_b_a A^T), A = Ad(X_c_b), for independent estimates."""
    adjoint = value_c_b if value_c_b.shape[-1] == 3 else lie.se3_adjoint(value_c_b)
    carried = adjoint @ covariance_b_a @ np.swapaxes(adjoint, -1, -2)
    return value_c_b @ value_b_a, covariance_c_b + carried


def change_frame(T_b_c: Array, T_2_1: Array, Sigma_2_1: Array) -> tuple[Array, Array]:
    """The motion of b from that of c, rigidly mounted: T_b_c T_2_1 T_c_b, Ad Sigma Ad^T."""
    adjoint = lie.se3_adjoint(T_b_c)
    return T_b_c @ T_2_1 @ lie.se3_inverse(T_b_c), adjoint @ Sigma_2_1 @ adjoint.T


@dataclass(frozen=True, eq=False)
class RelativeRotation:
    """C_2_1 between two stamps, with the covariance of its left perturbation in rad^2.

    `epistemic` is the part of `Sigma_2_1` that comes from the model not knowing the input; the
    rest is aleatoric. `persistent` is the part that the next estimates share, as a rate error that
    lasts for `persistent_s` seconds would make them; the rest is white. None where the source does
    not tell them apart.
    """

    C_2_1: Array
    Sigma_2_1: Array
    stamp_1_ns: int
    stamp_2_ns: int
    epistemic: Array | None = None
    persistent: Array | None = None
    persistent_s: float = 0.0

    def __post_init__(self) -> None:
        _check_stamps(self.stamp_1_ns, self.stamp_2_ns)
        object.__setattr__(self, "C_2_1", checked_rotation(self.C_2_1, "C_2_1"))
        object.__setattr__(self, "Sigma_2_1", checked_covariance(self.Sigma_2_1, 3, "Sigma_2_1"))
        for name in ("epistemic", "persistent"):
            part = getattr(self, name)
            if part is not None:
                object.__setattr__(self, name, _checked_part(part, self.Sigma_2_1, name))
        if self.persistent is not None and not 0.0 < self.persistent_s < np.inf:
            raise ValueError(f"persistent_s must be a time above 0, got {self.persistent_s!r}")

    @property
    def seconds(self) -> float:
        """How long the motion took."""
        return (self.stamp_2_ns - self.stamp_1_ns) * 1e-9

    @property
    def quaternion(self) -> Array:
        """C_2_1 as w x y z, w >= 0."""
        return lie.quaternion_from_matrix(self.C_2_1)

    @property
    def aleatoric(self) -> Array | None:
        """Sigma_2_1 - epistemic."""
        return None if self.epistemic is None else self.Sigma_2_1 - self.epistemic

    def inverse(self) -> tuple[Array, Array]:
        """(C_1_2, Sigma_1_2). Not a RelativeRotation: an estimate always runs forward in time."""
        return invert_with_covariance(self.C_2_1, self.Sigma_2_1)

    def then(self, later: RelativeRotation) -> RelativeRotation:
        """C_3_1 = C_3_2 C_2_1, the two taken as independent but for what persists in both.

        A rate error of variance s^2 that is forgotten within tau = `persistent_s` (an
        Ornstein-Uhlenbeck process) makes P = s^2 g(t) of a rotation over t seconds,

            g(t) = 2 tau^2 (t / tau - 1 + exp(-t / tau)),

        which is t^2 below tau, where errors add up, and 2 tau t above, where their squares do. So
        both tell their s^2, and the mean of these over time makes the P of the whole.
        """
        _check_adjoining(self.stamp_2_ns, later.stamp_1_ns)
        C = later.C_2_1
        value, covariance = compose_with_covariance(C, later.Sigma_2_1, self.C_2_1, self.Sigma_2_1)
        epistemic = persistent = None
        lasting = 0.0
        if self.epistemic is not None and later.epistemic is not None:
            epistemic = later.epistemic + C @ self.epistemic @ C.T
        if self.persistent is not None and later.persistent is not None:
            times, parts = (
                (self.seconds, later.seconds),
                (C @ self.persistent @ C.T, later.persistent),
            )
            lasting = float(np.average([self.persistent_s, later.persistent_s], weights=times))
            first, second = (
                t / sum(times) / _lasting_growth(t, each.persistent_s) * part
                for t, each, part in zip(times, (self, later), parts, strict=True)
            )
            persistent = _lasting_growth(sum(times), lasting) * (first + second)
            covariance = covariance - parts[0] - parts[1] + persistent
        return RelativeRotation(
            value,
            covariance,
            self.stamp_1_ns,
            later.stamp_2_ns,
            epistemic,
            persistent,
            lasting,
        )


def _lasting_growth(seconds: float, lasting_s: float) -> float:
    """The variance of an integrated rate error of unit variance: see `RelativeRotation.then`."""
    x = seconds / lasting_s
    if x < 1e-3:  # the difference below would be rounding
        return seconds**2 * (1.0 - x / 3.0)
    return float(2.0 * lasting_s**2 * (x + np.expm1(-x)))


@dataclass(frozen=True, eq=False)
class RelativePose:
    """T_2_1 between two stamps, with the covariance of its left perturbation (rho m, phi rad).

    `scale_sigma` is the relative standard deviation of the length of the translation that all
    motions of a source share, as a wrong baseline or a wrong wheel makes it: t = (1 + s) t_true.
    `Sigma_2_1` allows for it as well. 0 where the source does not tell.
    """

    T_2_1: Array
    Sigma_2_1: Array
    stamp_1_ns: int
    stamp_2_ns: int
    scale_sigma: float = 0.0

    def __post_init__(self) -> None:
        _check_stamps(self.stamp_1_ns, self.stamp_2_ns)
        pose = _checked_array(self.T_2_1, (4, 4), "T_2_1")
        if not np.allclose(pose[3], [0.0, 0.0, 0.0, 1.0], atol=1e-9):
            raise ValueError(f"T_2_1 must have last row 0 0 0 1, got {pose[3]}")
        pose[:3, :3] = checked_rotation(pose[:3, :3], "the rotation of T_2_1")
        pose[3] = 0.0, 0.0, 0.0, 1.0
        object.__setattr__(self, "T_2_1", _read_only(pose))
        object.__setattr__(self, "Sigma_2_1", checked_covariance(self.Sigma_2_1, 6, "Sigma_2_1"))
        if not 0.0 <= self.scale_sigma < np.inf:
            raise ValueError(f"scale_sigma must be finite and not negative: {self.scale_sigma!r}")

    @property
    def seconds(self) -> float:
        """How long the motion took."""
        return (self.stamp_2_ns - self.stamp_1_ns) * 1e-9

    @property
    def rotation(self) -> RelativeRotation:
        """The marginal over the rotation."""
        return RelativeRotation(
            self.T_2_1[:3, :3], self.Sigma_2_1[3:, 3:], self.stamp_1_ns, self.stamp_2_ns
        )

    def inverse(self) -> tuple[Array, Array]:
        """(T_1_2, Sigma_1_2). Not a RelativePose: an estimate always runs forward in time."""
        return invert_with_covariance(self.T_2_1, self.Sigma_2_1)

    def then(self, later: RelativePose) -> RelativePose:
        """T_3_1 = T_3_2 T_2_1, the two taken as independent, of one source."""
        _check_adjoining(self.stamp_2_ns, later.stamp_1_ns)
        scale = min(self.scale_sigma, later.scale_sigma)  # what both share
        value, covariance = compose_with_covariance(
            later.T_2_1, later.Sigma_2_1, self.T_2_1, self.Sigma_2_1
        )
        return RelativePose(value, covariance, self.stamp_1_ns, later.stamp_2_ns, scale)


def _check_adjoining(end_ns: int, start_ns: int) -> None:
    if end_ns != start_ns:
        raise ValueError(
            f"estimates do not adjoin: one ends at {end_ns} ns, the next starts at {start_ns} ns"
        )
