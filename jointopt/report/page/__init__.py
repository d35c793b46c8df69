"""A proposal as one HTML file that needs no network: its choice of plans, figures, tables and template."""
