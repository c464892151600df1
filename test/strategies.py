"""Hypothesis strategies for rotations and poses, rich in the angles where formulas break."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

SHAPES = [(), (5,), (2, 3)]
NEAR_ZERO = [0.0, 1e-300, 1e-160, 1e-16, 1e-8, 1e-4]
NEAR_PI = [np.pi - gap for gap in (1e-3, 1e-6, 1e-8, 1e-10, 1e-12)]

unit_floats = st.floats(-1.0, 1.0, width=32)
ordinary_angles = st.floats(0.0, np.pi - 1e-3)
angles_below_pi = st.one_of(st.sampled_from(NEAR_ZERO + NEAR_PI), ordinary_angles)
angles = st.one_of(st.just(np.pi), angles_below_pi)


@st.composite
def directions(draw, count):
    """(count, 3) unit vectors, the axes among them."""
    v = np.array(draw(st.lists(unit_floats, min_size=3 * count, max_size=3 * count)))
    v = v.reshape(count, 3)
    v[np.linalg.norm(v, axis=1) < 1e-3] = (0.0, 0.0, 1.0)
    return v / np.linalg.norm(v, axis=1, keepdims=True)


@st.composite
def rotation_vectors(draw, count=None, angles=angles):
    """(*batch, 3), or `count` of them on a first axis to unpack."""
    shape = (*(() if count is None else (count,)), *draw(st.sampled_from(SHAPES)))
    size = int(np.prod(shape))
    angle = np.array(draw(st.lists(angles, min_size=size, max_size=size)))
    return (angle[:, None] * draw(directions(size))).reshape(*shape, 3)


@st.composite
def twists(draw, count=None, angles=angles):
    """(*batch, 6) with up to 10 m per axis, or `count` of them on a first axis to unpack."""
    phi = draw(rotation_vectors(count, angles))
    rho = draw(st.lists(unit_floats, min_size=phi.size, max_size=phi.size))
    return np.concatenate([10.0 * np.reshape(rho, phi.shape), phi], axis=-1)


@st.composite
def covariances(draw, size):
    """Symmetric positive definite, with standard deviations from 1e-6 to 1e3 in one matrix."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    deviations = 10.0 ** np.array(draw(st.lists(st.floats(-6, 3), min_size=size, max_size=size)))
    factor = rng.normal(size=(size, size)) + 2.0 * np.eye(size)
    correlated = factor @ factor.T + 1e-3 * np.eye(size)
    return correlated * np.outer(deviations, deviations)
