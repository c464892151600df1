"""HydraNet: flow in, a rotation with an honest covariance out.

`Predictor(FILE).predict(flow, mask)` for inference; `HydraNet(preset("default"))`, `loss` and
`bootstrap_weights` for training; `save_weights` and `load_weights` between them.
"""

from hydranet_ros.network.bootstrap import bootstrap_weights
from hydranet_ros.network.config import Calibration, NetworkConfig, preset
from hydranet_ros.network.loss import LossConfig, loss
from hydranet_ros.network.model import HydraNet, HydraOutput
from hydranet_ros.network.prediction import Prediction, combine
from hydranet_ros.network.predictor import Predictor, network_input
from hydranet_ros.network.resnet import load_imagenet
from hydranet_ros.network.stereo import combine_stereo, error_correlation
from hydranet_ros.network.weights import Provenance, Weights, load_weights, save_weights

__all__ = [
    "Calibration",
    "HydraNet",
    "HydraOutput",
    "LossConfig",
    "NetworkConfig",
    "Prediction",
    "Predictor",
    "Provenance",
    "Weights",
    "bootstrap_weights",
    "combine",
    "combine_stereo",
    "error_correlation",
    "load_imagenet",
    "load_weights",
    "loss",
    "network_input",
    "preset",
    "save_weights",
]
