"""Launchers, which run a plan and measure it; `jointopt.measure.base` is the protocol."""

from jointopt.measure.base import Launcher, load_launcher

__all__ = ["Launcher", "load_launcher"]
