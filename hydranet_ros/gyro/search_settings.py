"""Numbers of the search for a motion, and units of what the network sees of it.

Shared by `epipolar` and `network` in torch and in NumPy.
"""

from __future__ import annotations

EPIPOLE = 0.02  # where |d| is less, at the epipole, the direction of d means little
NOISE = 5e-4  # of flow, a seventh of a pixel of the canonical image
DIRECTIONS = 64  # spread over half of the sphere: no direction is further than 12 deg from one
COARSE_CELLS, FINE_CELLS = 128, 256  # to choose directions by; to solve for them
# A robust scale for each step: wide at first, to be caught; narrow in the end, to be exact.
ROTATION_SCALES = (0.3, 0.1, 0.03, 0.015)  # as if there were no parallax
# With the direction of motion held. Where parallax is large only wide scales see it, where it is
# small wide ones see what moves by itself: the best directions of every stage go on.
HELD_STAGES = ((0.1, 0.03), (0.01,), (0.004,))
KEPT = 8  # directions of a stage
FREE_STAGES = (  # the scales after each of those
    (0.03, 0.01, 0.003, 0.0015, 0.0007),
    (0.008, 0.004, 0.002, 0.001, 0.0007),
    (0.003, 0.002, 0.001, 0.0007, 0.0007),
)
FINALISTS = 3  # compared on all cells: a plane's two solutions are nearly equal
FINAL_SCALES = (0.0007, 0.0007)
TEMPERATURE = 5.0  # costs of FINE_CELLS that differ by this are hardly told apart
ALIKE_RAD = 0.005  # rotations closer than this are one solution
FAR = 1e6  # a cost that nothing has
STIFF = 10.0  # of the length of t, against the mean of the normal matrix
COST_SCALE = 0.001  # what is beyond it counts little when directions are compared
HELD = 1e3  # information that holds a direction, against the mean of the normal matrix
DAMPING = 1e-4  # of a step, relative to the mean of the normal matrix
LEAST_INFORMATION = 1e-7  # per unit of weight: without any flow, steps are 0
CELLS_PER_ERROR = 40.0  # errors of this many neighbouring cells are one error
PRIOR_SIGMA_RAD = 0.05  # a covariance never exceeds this

# Flow covariance from texture: S = WELL_TEXTURED / (G + noise), G the cell's structure tensor.
NOISE_GRADIENT = 4.0  # grey levels^2 per pixel^2: what sensor noise adds to the tensor
LEAST_VARIANCE = 0.3  # no cell is better than this: flow is smooth, patches overlap

# What the body for flow looks at.
FLOW_UNIT = 0.03  # typical flow between frames: inputs of order 1
RESIDUAL_UNIT = 1e-3  # typical error of flow across the epipolar lines
NOISE_UNIT = 5e-4
TEXTURE_UNIT = 20.0  # typical eigenvalue of a structure tensor, grey levels^2 per pixel^2
REFINEMENTS = 3
REFINED_SCALE = 7e-4
DEEP = 24  # channels of what is pooled
STATISTICS, QUALITIES = 15, 9  # of the solution: see FlowBody
# Priors see the flow on so coarse a grid that the body can follow, and cancel, them.
PRIOR_ROWS, PRIOR_COLUMNS = 6, 8
