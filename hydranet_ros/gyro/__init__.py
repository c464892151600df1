"""The visual gyro: images in, rotations with covariance out.

Read in this order: visual_gyro, flow and grid, network (body, heads), prediction, predictor.
"""
