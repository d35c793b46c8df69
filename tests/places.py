"""Folders that tests read: the checkout, and the measured tables beside it where there are such."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
