"""What readings of a GPU at a few clocks and power limits tell of it: tables, fits, and what they add up to."""
