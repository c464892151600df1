"""Plots of a run, and one HTML page with all of them.

write_report(folder, RunRecord(title, stamps_ns, {"vo": T_w_c_vo, "fused": T_w_c}, T_w_c_gt))
"""

from __future__ import annotations

from hydranet_ros.report.page import require_matplotlib, write_report
from hydranet_ros.report.record import Consistency, RotationErrors, RunRecord

__all__ = ["Consistency", "RotationErrors", "RunRecord", "require_matplotlib", "write_report"]
