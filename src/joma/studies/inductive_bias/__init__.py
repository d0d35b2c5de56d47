"""Inductive bias decides what is learned: the two tables that the talk opens with."""
