"""Servers and helpers that several tests share; none of it ships."""
