// The page of real runs: its figures, one after the other.
report.start();
