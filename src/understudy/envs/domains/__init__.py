"""Service domains: one folder each."""
