"""What explains a plan: the parts of its time, its timeline, how its power swings."""
