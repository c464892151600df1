"""Where frames come from: folders, bags, the simulation; and what messages hold."""
