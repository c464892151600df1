"""What the nodes of a demonstration find around them: a domain of their own, large buffers."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

from hydranet_ros import fast_dds
from hydranet_ros.demo.nodes import WHEELS_GUARD
from hydranet_ros.errors import HydraNetError

# DDS: participant p of domain d has UDP ports 7400 + 250 d + 10 + 2 p and the next one. Domains
# above 101 reach into the ports that Linux gives away.
DOMAINS = range(1, 102)
PARTICIPANTS = 8


def environment(logs: Path) -> dict[str, str]:
    """For every process: this machine only, a free domain, the profile for large images."""
    known = {name: value for name, value in os.environ.items() if name != WHEELS_GUARD}
    return {
        **known,
        "ROS_DOMAIN_ID": str(free_domain()),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "ROS_LOG_DIR": str(logs.resolve() / "ros"),
        **fast_dds.profile(),
        "PYTHONUNBUFFERED": "1",
    }


def free_domain() -> int:
    """A domain that nobody on this machine is in; another demonstration starts elsewhere."""
    domains = list(DOMAINS)
    random.shuffle(domains)
    for domain in domains:
        if all(_is_free(7410 + 250 * domain + offset) for offset in range(2 * PARTICIPANTS)):
            return domain
    raise HydraNetError(
        f"no ROS domain from {DOMAINS[0]} to {DOMAINS[-1]} has its UDP ports free: end other nodes"
    )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
