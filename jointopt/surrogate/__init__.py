"""Learned corrections of the physics: log(measured / predicted), with intervals that say how sure they are."""
