"""Launchers: what starts one plan and reads its result; `base` has the protocol."""
