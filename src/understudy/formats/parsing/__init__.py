"""Parsing of tool calls in text: scanning, JSON repair and argument types."""
