"""The program that torchrun starts: one training under one plan, measured. Only here is torch imported."""
