// The page of a whole run: its figures, one after the other.
report.start();
