"""Launchers: what runs a plan and measures it; `jointopt.measure.launchers.base` is the protocol."""

from jointopt.measure.launchers.base import RESULTS, Launcher, load_launcher

__all__ = ["RESULTS", "Launcher", "load_launcher"]
