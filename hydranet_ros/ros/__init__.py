"""The ROS 2 nodes: convert, compute, publish. The computing is in the rest of the package."""
