"""The demonstration: the real nodes as processes, fed by a player, heard by a recorder."""
