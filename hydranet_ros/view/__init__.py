"""The page in the browser: what is known of each frame, live or recorded."""
