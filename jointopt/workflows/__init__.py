"""One file per verb: where the rooms below meet."""
