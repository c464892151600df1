"""Units of what the body for flow looks at, shared by the network in torch and in NumPy."""

from __future__ import annotations

FLOW_UNIT = 0.03  # typical flow between frames: inputs of order 1
RESIDUAL_UNIT = 1e-3  # typical error of flow across the epipolar lines
NOISE_UNIT = 5e-4
TEXTURE_UNIT = 20.0  # typical eigenvalue of a structure tensor, grey levels^2 per pixel^2
REFINEMENTS = 3
REFINED_SCALE = 7e-4
# Priors see the flow on so coarse a grid that the body can follow, and cancel, them.
PRIOR_ROWS, PRIOR_COLUMNS = 6, 8
