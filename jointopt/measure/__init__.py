"""Launchers, which run a plan and measure it; `jointopt.measure.launchers.base` is the protocol."""

from jointopt.measure.launchers.base import Launcher, load_launcher

__all__ = ["Launcher", "load_launcher"]
