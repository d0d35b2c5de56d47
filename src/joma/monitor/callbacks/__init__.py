"""Monitors inside other people's trainers: one file per library, imported only when it is used."""
