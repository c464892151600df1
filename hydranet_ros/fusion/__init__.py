"""Fusion of odometry with rotations: the paper's pairwise relaxation, and a sliding window.

Read in this order: fusion (what nodes and commands call), arrival, rates, error_models,
preintegration, live_output, sliding_window, gating, window, factors, calibration.
"""
