"""Hierarchies that are there: the syntax of Python source."""
