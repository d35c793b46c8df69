"""Clock law of a GPU and its work from readings at a few clocks and power limits: tables, fits, results."""
