"""BadInput by its former name."""

from hydranet_ros.errors import BadInput

__all__ = ["BadInput"]
