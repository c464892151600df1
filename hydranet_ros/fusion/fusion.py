"""The fusion as nodes and commands run it: rules of arrival, then the sliding window. No ROS.

Measurements go in as they come, states come out as they are ready:

    fusion = Fusion(FusionConfig(odometry="wheels"))
    for measurement in arrivals:
        for state in fusion.add(measurement):
            ...
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from hydranet_ros.errors import BadInput
from hydranet_ros.fusion.arrival import (
    IMU,
    ODOMETRY,
    SOURCES,
    Group,
    Measurement,
    MeasurementPairing,
    source_of,
)
from hydranet_ros.fusion.config import FusionConfig
from hydranet_ros.fusion.edges import FusedState
from hydranet_ros.fusion.error_models import UP, hold_to_ground
from hydranet_ros.fusion.imu import ImuSample
from hydranet_ros.fusion.live_output import LiveOutput
from hydranet_ros.fusion.odometry_input import OdometryInputConfig, OdometryReader
from hydranet_ros.fusion.rates import OwnRates
from hydranet_ros.fusion.sliding_window import SlidingWindowFusion
from hydranet_ros.fusion.twist_agreement import OdometrySample
from hydranet_ros.fusion.window import warm_up
from hydranet_ros.geometry.estimates import RelativePose, change_frame
from hydranet_ros.geometry.lie import Array, se3_inverse
from hydranet_ros.geometry.stamps import StampOrder

Process = Callable[[], None]
# A measurement may begin before the last of its source ended, by this share of what it adds.
OVERLAP = 0.5


class Fusion:
    """Fuse motions and rotations of the camera as they arrive, by stated rules.

    Each call gives the states that it has made, in the order of their stamps. A state is made
    where something was measured, and nowhere else; `predict` tells the pose in between. Odometry
    of wheels has its own rate: besides the states that were solved, where rotations end, there is
    one at every motion, at once, which goes over to a new solution within `smooth_s`. A lone
    stamp out of order is dropped. Where stamps go back for good, the pose goes on from where it
    was, with a covariance that says 'lost', and `on_reset` is told why; `reset` starts again.
    What cannot be fused is a BadInput, or goes to `warn` as kind and text where that is given.
    """

    def __init__(
        self,
        config: FusionConfig | None = None,
        T_w_c: Array | None = None,
        odometry: OdometryInputConfig | None = None,
        on_reset: Callable[[str], None] | None = None,
        warn: Callable[[str, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        smooth_s: float = 0.0,
    ) -> None:
        self.config = config or FusionConfig()
        self.window = SlidingWindowFusion(self.config, T_w_c)
        self.state: FusedState | None = None
        """The newest."""
        self._reader = OdometryReader(odometry)
        self._noted: set[str] = set()
        self._odometry_came: tuple[int, float] | None = None  # stamp and moment of the last
        self._compared: set[str] = set()  # whose clock was compared with it
        self._imu_order: StampOrder[ImuSample] = StampOrder()
        self._ends: dict[str, int] = {}  # of the last measurement of each source
        self._on_reset, self._warn, self._clock = on_reset, warn, clock
        self._order: StampOrder[Process] = StampOrder()
        self._smooth_s = smooth_s
        self._live: LiveOutput | None = None
        self._set_rules()
        warm_up()

    def _set_rules(self) -> None:
        """The rules of arrival: odometry at its own rate, or paired with the rotations."""
        self._pairing: MeasurementPairing | OwnRates
        if self.config.own_rates:
            self._pairing = OwnRates(self.window, self._clock)
            self._live = LiveOutput(self._pairing.odometry, self._smooth_s)
        else:
            tolerance_ns = round(self.config.stamp_tolerance_s * 1e9)
            self._pairing = MeasurementPairing(tolerance_ns, self.config.max_wait_s, self._clock)
            self._live = None

    def _clear_waiting(self) -> None:
        self._pairing.clear()
        if self._live is not None:
            self._live.clear()

    def reset(self) -> None:
        """Forget everything, and begin again at the start."""
        self.window.reset()
        self._clear_waiting()
        self._reader.clear()
        self._order.clear()
        self._imu_order.clear()
        self._odometry_came = None
        self._ends.clear()
        self.state = None

    def set_pose(self, T_w_c: Array, Sigma_c_w: Array) -> None:
        """Go on from another pose with its covariance, with the next measurement."""
        self.window.place(T_w_c, Sigma_c_w)
        self._clear_waiting()
        self.state = None

    def apply(
        self,
        config: FusionConfig,
        odometry: OdometryInputConfig | None = None,
        smooth_s: float | None = None,
    ) -> None:
        """Go on with other settings; the estimate stays."""
        told, started = self.state, self.window.started
        own_rates = isinstance(self._pairing, OwnRates)
        self.config = config
        self.window.apply(config)
        self._smooth_s = self._smooth_s if smooth_s is None else smooth_s
        if own_rates != config.own_rates:
            self._set_rules()
        self._pairing.apply(config)
        if own_rates and started and not self.window.started and told is not None:
            # The window begins again: where odometry is now, not where the last solution was.
            self.window.place(told.T_w_c, told.Sigma_c_w, self.window.window.up_w)
            self._clear_waiting()
        if self._live is not None:
            self._live.smooth_s = self._smooth_s
        if odometry is not None:
            self._reader.config = odometry

    @property
    def waiting(self) -> int:
        """How many intervals wait for their other source."""
        return len(self._pairing)

    # --- measurements in, states out -------------------------------------------------------------

    def add(self, *measurements: Measurement) -> list[FusedState]:
        """Take motions and rotations of the camera in; what comes together is fused together."""
        for measurement in measurements:
            source, stamp = source_of(measurement), measurement.stamp_2_ns
            self._arrive(source, stamp, partial(self._add, source, measurement))
        return self.poll()

    def add_odometry(self, sample: OdometrySample, T_b_c: Array | None) -> list[FusedState]:
        """Take a pose of odometry in; the camera is at T_b_c in its frame, None where unknown.

        A BadInput says why it gives no motion.
        """
        self._arrive(ODOMETRY, sample.stamp_ns, partial(self._read_odometry, sample, T_b_c))
        return self.poll()

    def add_imu(self, sample: ImuSample, C_c_i: Array | None) -> None:
        """Take a sample of an IMU in; its axes are turned to the camera's by C_c_i."""
        if C_c_i is None or not self.config.imu.use:
            return
        try:
            arrival = self._imu_order.add(IMU, sample.stamp_ns, sample.turned(C_c_i))
        except BadInput as error:
            self._say("imu", str(error))
            return
        if arrival.items:
            self._compare_clocks(IMU, sample.stamp_ns)
        for stamp in arrival.outliers:
            self._say("imu", f"sample at {stamp} ns is not used: a lone stamp")
        if arrival.went_back:
            self._say("imu", f"stamps went back to {sample.stamp_ns} ns: goes on from there")
            self.window.imu.clear()
        for _, each in arrival.items:
            if not self.window.add_imu(each):
                self._say("imu", f"sample at {each.stamp_ns} ns is not used: late, or no numbers")

    def lose_odometry(self, stamp_ns: int) -> list[FusedState]:
        """Note that odometry came without a sound pose: the next motion begins with the next."""
        self._arrive(ODOMETRY, stamp_ns, partial(self._lose_odometry, stamp_ns))
        return self.poll()

    def passed(self, stamp_ns: int, *sources: str) -> list[FusedState]:
        """Note that sources, by default both, have nothing more to say up to a stamp."""
        for source in sources or SOURCES:
            self._pairing.passed(source, stamp_ns)
        return self.poll()

    def poll(self) -> list[FusedState]:
        """The states that are ready now, also because a source was awaited for long enough."""
        began = self._clock()
        states = [self._fuse(group) for group in self._pairing.ready()]
        found = [state for state in states if state is not None]
        if self._live is not None:
            found = [self._live.solve(state) for state in found]
            now = self._live.now(self.config)
            if now is not None:
                found.append(replace(now, waited_s=self._clock() - began))
        for state in found:
            if self.state is None or state.stamp_ns >= self.state.stamp_ns:
                self.state = state
        return found

    def predict(self, stamp_ns: int) -> Array | None:
        """T_w_c at a stamp, at the last velocity beyond the newest state; None before a start."""
        return self.window.predict(stamp_ns) if self.window.started else None

    # --- steps -----------------------------------------------------------------------------------

    def _arrive(self, source: str, stamp_ns: int, process: Callable[[], None]) -> None:
        """Process what is due now that a message came: it, others before it, or nothing."""
        arrival = self._order.add(source, stamp_ns, process)
        for stamp in arrival.outliers:
            self._say("stamp outlier", f"{source} at {stamp} ns is not used: a lone stamp")
        if arrival.went_back:
            self._clear_waiting()
            self._reader.clear()
            self._ends.clear()
            self._odometry_came = None
            self.window.restart()
            self.state = None
            if self._on_reset is not None:
                self._on_reset(f"stamps of {source} went back to {stamp_ns} ns")
        if arrival.items:
            self._compare_clocks(source, stamp_ns)
        failed: BadInput | None = None
        for _, due in arrival.items:
            try:
                due()
            except BadInput as error:
                failed = error  # what comes after it is processed all the same
        if failed is not None:
            raise failed

    def _compare_clocks(self, source: str, stamp_ns: int) -> None:
        """Say where rotations and odometry both come, and their stamps are far apart."""
        now, config = self._clock(), self.config
        if source == ODOMETRY:
            self._odometry_came = stamp_ns, now
            self._compared.clear()
            return
        if self._odometry_came is None or source in self._compared:
            return  # it goes on, and odometry does not: there is a gap, or the end
        self._compared.add(source)
        stamp, moment = self._odometry_came
        apart = (stamp_ns - stamp) * 1e-9
        if now - moment < 0.5 and not -config.window_s < apart <= max(config.max_wait_s, 0.5):
            where = "ahead of" if apart > 0.0 else "behind"
            self._say(
                "clocks",
                f"{source} is {abs(apart):.1f} s {where} odometry that comes with it: set the "
                "clocks of both together",
            )

    def _add(self, source: str, measurement: Measurement) -> None:
        """Pair a measurement; one that begins before the last of its source ended is refused."""
        begin, end = measurement.stamp_1_ns, measurement.stamp_2_ns
        last, self._ends[source] = self._ends.get(source, begin), end
        if last - begin > max(self._tolerance_ns, OVERLAP * (end - last)):
            self._say("overlap", f"{source} from {begin} ns covers the one before it: not used")
            self._pairing.passed(source, end)
            return
        self._pairing.add(measurement)

    def _read_odometry(self, sample: OdometrySample, T_b_c: Array | None) -> None:
        self._pairing.passed(ODOMETRY, sample.stamp_ns)
        motion = self._reader.read(sample)
        for note in self._reader.notes - self._noted:
            self._noted.add(note)
            self._say("odometry", note)
        if motion is not None and T_b_c is not None:
            try:
                if self.config.planar and self.config.odometry == "wheels":
                    motion = hold_to_ground(motion, UP)
                T_2_1, Sigma = change_frame(se3_inverse(T_b_c), motion.T_2_1, motion.Sigma_2_1)
                moved = RelativePose(T_2_1, Sigma, motion.stamp_1_ns, motion.stamp_2_ns)
            except ValueError as error:  # singular to rounding, seen from the camera
                raise BadInput("covariance", f"motion as seen from the camera: {error}") from None
            self._pairing.add(moved)

    @property
    def _tolerance_ns(self) -> int:
        return round(self.config.stamp_tolerance_s * 1e9)

    def _lose_odometry(self, stamp_ns: int) -> None:
        self._reader.clear()
        self._pairing.passed(ODOMETRY, stamp_ns)

    def _say(self, kind: str, text: str) -> None:
        if self._warn is not None:
            self._warn(kind, text)

    def _fuse(self, group: Group) -> FusedState | None:
        # The motion first: it defines the states.
        ordered = sorted(group.measurements.values(), key=lambda m: source_of(m) != ODOMETRY)
        try:
            state = self.window.update(*ordered)
        except (ValueError, np.linalg.LinAlgError) as error:
            if self._warn is None:
                raise BadInput("not fused", str(error)) from None
            self._warn("not fused", str(error))
            return None
        return replace(state, waited_s=self._clock() - group.arrived)
