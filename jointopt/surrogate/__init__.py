"""Learned corrections of the physics: log(measured / predicted), with intervals that state how sure they are."""
