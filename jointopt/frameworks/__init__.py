"""Frameworks and batch systems, one file each: how a plan is stated there, and what their scripts and logs say.

`TARGETS` of `targets` are those that plans are exported to; each has one function from an `Intent` and a version to an
`Export`, without that framework on this machine.
"""
