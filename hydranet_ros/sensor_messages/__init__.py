"""Messages of sensor_msgs to pixels and cameras, whether ROS or a bag made them."""
