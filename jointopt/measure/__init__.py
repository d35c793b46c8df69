"""Launchers: what runs a plan and measures it; `jointopt.measure.launcher` is the protocol."""

from jointopt.measure.launcher import RESULTS, Launcher, load_launcher

__all__ = ["RESULTS", "Launcher", "load_launcher"]
