"""Other people's benchmarks, out of a user's own checkout. A module is the only importer of what it is named after."""
