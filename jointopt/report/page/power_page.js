// The page of power over time or between jobs: its figures, one after the other.
report.start();
