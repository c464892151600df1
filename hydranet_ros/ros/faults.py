"""Bad input with a kind: a node logs the first of each kind, and counts them all."""

from __future__ import annotations

from hydranet_ros.errors import HydraNetError


class BadInput(HydraNetError):  # noqa: N818 - it is the input that is bad
    """A message that cannot be used; `kind` is one of few, `str()` says what is wrong with it."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
