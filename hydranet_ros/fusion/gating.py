"""Which measurements to believe: normalised innovations squared, and which source to reject.

The NIS of a difference nu with covariance S is nu' S^-1 nu. If the covariances are honest its mean
is the dimension of nu, and it exceeds the gate with a chance of `gate_probability`.

Each source is tested against all that is known without it: the motion prior, and the other source
where it is of the same interval. If one of two fails, the one that the motion prior alone makes
less likely is rejected, by the full test: six dimensions for odometry, three for a rotation.
Where an IMU has turned as one of two that disagree, the other is outvoted, however often. Wheels
that are outvoted slip: their turn and way are used no further than they are off.

Between an honest measurement and one beyond the gate there are doubtful ones, which an honest
source sends once in a thousand (the root of `gate_probability`), and a wrong one as soon as it is
not far off. They are used, and no more sure than they are near: nu nu' (1 / n - 1 / NIS) is added
to the covariance, which makes their NIS the dimension n.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from hydranet_ros.fusion.arrival import IMU, ODOMETRY, ROTATION
from hydranet_ros.fusion.normal_equations import solve_positive
from hydranet_ros.geometry import chi_square, lie
from hydranet_ros.geometry.lie import Array

HISTORY = 100
FEW_VOTES = 20
# Wheels that slip may slide this far in a step, also where they do not turn.
SLIP_M = 0.02
# A direction whose variance is larger than so many times the smallest is not measured.
MEASURED = 10.0


@dataclass(frozen=True, eq=False)
class Innovation:
    """A difference nu with its covariance S."""

    difference: Array
    covariance: Array

    @property
    def nis(self) -> float:
        """Nu' S^-1 nu."""
        return float(self.difference @ np.linalg.solve(self.covariance, self.difference))

    def along(self, directions: Array) -> float:
        """The NIS over some directions, rows of (k, n), as if all n were like them."""
        difference = directions @ self.difference
        covariance = directions @ self.covariance @ directions.T
        nis = float(difference @ np.linalg.solve(covariance, difference))
        return nis * len(self.difference) / len(directions)

    @property
    def widening(self) -> Array:
        """What makes the NIS of a doubtful measurement its dimension, added to its covariance."""
        share = 1.0 / len(self.difference) - 1.0 / self.nis
        return max(share, 0.0) * np.outer(self.difference, self.difference)


@dataclass(frozen=True, eq=False)
class Judgement:
    """The NIS of what could be tested, and by source why it failed or how far it is doubtful."""

    nis: dict[str, float]
    failed: dict[str, str]
    doubtful: dict[str, Array]


@dataclass(frozen=True, eq=False)
class Turn:
    """A relative rotation C_2_1 with a 3x3 covariance."""

    C: Array
    covariance: Array

    def to(self, other: Turn) -> Innovation:
        """How far apart two rotations are, 3 dimensions."""
        return Innovation(lie.so3_log(other.C @ self.C.T), self.covariance + other.covariance)


@dataclass(frozen=True, eq=False)
class RelativeMotion:
    """A relative motion C_2_1, r_2_1 with a 6x6 covariance: a measurement, or a prediction."""

    C: Array
    r: Array
    covariance: Array

    @property
    def turn(self) -> Turn:
        """Its rotation."""
        return Turn(self.C, self.covariance[3:, 3:])

    def to(self, other: RelativeMotion) -> Innovation:
        """How far apart two motions are, 6 dimensions."""
        C = other.C @ self.C.T
        xi = lie.se3_log(lie.se3_from(C, other.r - C @ self.r))
        return Innovation(xi, self.covariance + other.covariance)

    def given(self, turn: Turn) -> RelativeMotion:
        """The motion once a rotation has been measured too."""
        both = self.covariance[3:, 3:] + turn.covariance
        gain = solve_positive(both, self.covariance[3:]).T
        xi = gain @ lie.so3_log(turn.C @ self.C.T)
        pose = lie.se3_exp(xi) @ lie.se3_from(self.C, self.r)
        covariance = self.covariance - gain @ self.covariance[3:]
        return RelativeMotion(pose[:3, :3], pose[:3, 3], 0.5 * (covariance + covariance.T))

    def then(self, later: RelativeMotion) -> RelativeMotion:
        """The motion over both, the two taken as independent."""
        adjoint = lie.se3_adjoint(lie.se3_from(later.C, later.r))
        covariance = later.covariance + adjoint @ self.covariance @ adjoint.T
        return RelativeMotion(later.C @ self.C, later.C @ self.r + later.r, covariance)


def widened(slipping: RelativeMotion, turn: Turn) -> RelativeMotion:
    """A motion whose turn is known to be wrong: no surer of it, and of its way, than it is off."""
    off = float(np.linalg.norm(lie.so3_log(turn.C @ slipping.C.T)))
    way = float(np.linalg.norm(slipping.r))
    sigmas = np.array([max(way, SLIP_M)] * 3 + [off] * 3)
    covariance = slipping.covariance + np.diag(sigmas**2)
    return RelativeMotion(slipping.C, slipping.r, covariance)


@dataclass
class SourceStatistics:
    """Running NIS of one source, its rejections, and whether it may be rejected at all."""

    dimension: int
    probability: float
    patience: int
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    accepted: int = 0
    rejected: int = 0
    _in_a_row: int = 0

    def __post_init__(self) -> None:
        self.apply(self.probability, self.patience)

    def apply(self, probability: float, patience: int) -> None:
        """Take other settings; the statistics stay."""
        self.probability, self.patience = probability, patience
        self.gate = chi_square.quantile(self.dimension, probability)
        self.doubt = chi_square.quantile(self.dimension, probability**0.5)

    @property
    def mean_nis(self) -> float:
        """Mean of the last 100 NIS, nan before the first."""
        return float(np.mean(self.recent)) if self.recent else float("nan")

    @property
    def due(self) -> bool:
        """Whether the source was rejected so often in a row that it is believed again."""
        return self._in_a_row >= self.patience

    def count(self, *, rejected: bool) -> None:
        """Count a decision."""
        self.rejected += rejected
        self.accepted += not rejected
        self._in_a_row = self._in_a_row + 1 if rejected else 0


class Gate:
    """The running statistics of both sources, and the judgement over each interval."""

    def __init__(self, probability: float, patience: int) -> None:
        self.odometry = SourceStatistics(6, probability, patience)
        self.rotation = SourceStatistics(3, probability, patience)
        self.slips = 0
        self._against_imu: deque[bool] = deque(maxlen=FEW_VOTES)

    def apply(self, probability: float, patience: int) -> None:
        """Take other settings; the statistics stay."""
        for source in (self.odometry, self.rotation):
            source.apply(probability, patience)

    def __getitem__(self, source: str) -> SourceStatistics:
        return self.odometry if source == ODOMETRY else self.rotation

    def judge(
        self,
        odometry: RelativeMotion | None,
        turn: Turn | None,
        prior: RelativeMotion | None,
        *,
        chained: bool = False,
    ) -> Judgement:
        """Test what is said of one interval.

        `odometry` and `turn` are of the same interval; `prior` is what the motion prior expects.
        If `odometry` is `chained` from edges that were each judged before, it is not rejected.
        """
        found = self._innovations(odometry, turn, prior)
        values = {source: each.nis for source, each in found.items()}
        beyond = [source for source, value in values.items() if value > self[source].gate]
        failed: dict[str, str] = {}
        if beyond:
            rejected = beyond[0]
            if odometry is not None and turn is not None:
                rejected = ROTATION if chained else _less_likely(prior, odometry, turn)
            if not self[rejected].due:
                failed[rejected] = self._reason(rejected, beyond, values)
        # What disagreed with a source that was rejected has nothing left to be doubted for, and
        # what is believed again is believed.
        doubtful = {
            source: found[source].widening
            for source, value in values.items()
            if value > self[source].doubt and not beyond
        }
        return Judgement(values, failed, doubtful)

    def agreement(
        self, odometry: RelativeMotion, turn: Turn, prior: RelativeMotion
    ) -> dict[str, float]:
        """The NIS of sources with the covariances of single steps: these are kept and told.

        Only what odometry measures counts: wheels know their turn about one axis, and that they do
        not leave the ground is an assumption, which nothing tests.
        """
        turns = _measured(odometry.covariance[3:, 3:])
        ways = _measured(odometry.covariance[:3, :3])
        both = np.zeros((len(ways) + len(turns), 6))
        both[: len(ways), :3], both[len(ways) :, 3:] = ways, turns
        found = self._innovations(odometry, turn, prior)
        values = {
            source: each.along(both if source == ODOMETRY else turns)
            for source, each in found.items()
        }
        for source, value in values.items():
            self[source].recent.append(value)
        return values

    def _innovations(
        self, odometry: RelativeMotion | None, turn: Turn | None, prior: RelativeMotion | None
    ) -> dict[str, Innovation]:
        found: dict[str, Innovation] = {}
        if odometry is not None and prior is not None:
            found[ODOMETRY] = (prior if turn is None else prior.given(turn)).to(odometry)
        if turn is not None and (odometry is not None or prior is not None):
            found[ROTATION] = self._without(turn, odometry, prior).to(turn)
        return found

    def count_vote(self, *, against_imu: bool) -> None:
        """Count a vote of odometry and rotation on the IMU."""
        self._against_imu.append(against_imu)

    @property
    def imu_is_doubtful(self) -> bool:
        """Whether the IMU was outvoted in half of the last votes: wrong axes, or broken."""
        return sum(self._against_imu) >= FEW_VOTES // 2

    def _reason(self, rejected: str, beyond: list[str], values: dict[str, float]) -> str:
        tested = rejected if rejected in beyond else beyond[0]
        reason = f"NIS {values[tested]:.3g}, gate {self[tested].gate:.3g}"
        if tested == rejected:
            return reason
        return f"disagrees with the {tested} ({reason}), and is less likely by the motion before"

    def _without(
        self, turn: Turn, odometry: RelativeMotion | None, prior: RelativeMotion | None
    ) -> Turn:
        """What is known of the rotation but for `turn`."""
        if odometry is None or prior is None:
            known = odometry if odometry is not None else prior
            assert known is not None
            return known.turn
        return prior.given(odometry.turn).turn


def outvoted(
    odometry: Turn | None, rotation: Turn | None, imu: Turn | None, gate: float, wheels: bool
) -> str | None:
    """Which of three turns over one interval two others contradict that agree; None: none.

    Wheels that only an IMU contradicts are outvoted too: they slip, a gyro does not.
    """
    if imu is None or odometry is None:
        return None
    slips = odometry.to(imu).nis > gate
    if rotation is None:
        return ODOMETRY if slips and wheels else None
    strays = rotation.to(imu).nis > gate
    agree = odometry.to(rotation).nis <= gate
    if slips and strays and agree:
        return IMU
    if slips and not strays and not agree:
        return ODOMETRY
    return ROTATION if strays and not slips and not agree else None


def _measured(Sigma: Array) -> Array:
    """(k, 3), the directions in which a source knows more than a tenth of what it knows best."""
    variances, axes = np.linalg.eigh(Sigma)
    return np.asarray(axes.T[variances <= MEASURED * variances[0]])


def _less_likely(prior: RelativeMotion | None, odometry: RelativeMotion, turn: Turn) -> str:
    """Which of two that disagree is less likely by the motion prior; without one, the rotation."""
    if prior is None:
        return ROTATION
    odometry_tail = chi_square.log_tail(6, prior.to(odometry).nis)
    rotation_tail = chi_square.log_tail(3, prior.turn.to(turn).nis)
    return ODOMETRY if odometry_tail < rotation_tail else ROTATION
