"""The joint space: which layouts a job allows, where their groups and layers lie, and plans as text."""
