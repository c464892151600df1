"""Stereo visual odometry: two stereo frames in, a relative pose with covariance out.

`StereoVO(camera).update(frame)` once per frame gives a `VOResult`: a pose between
two stamps, or the reason why there is none. odometry.py is the whole method on one screen.
"""

from hydranet_ros.stereo_vo.config import StereoVOConfig
from hydranet_ros.stereo_vo.odometry import StereoVO
from hydranet_ros.stereo_vo.result import Lost, VOResult, VOStatistics

__all__ = ["Lost", "StereoVO", "StereoVOConfig", "VOResult", "VOStatistics"]
