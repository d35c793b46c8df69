"""Configs of training programs as tables: a YAML for each kin of programs, and the one reader of all of them."""
