"""Faults at logical coordinates and the shims that inject them. Imports ranks and selector only."""
