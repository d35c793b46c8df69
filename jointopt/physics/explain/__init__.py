"""The parts of a plan's time, its timeline, and how its power swings."""
