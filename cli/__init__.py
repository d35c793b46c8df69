"""The commands: each parses, calls one function of the library, and prints."""
