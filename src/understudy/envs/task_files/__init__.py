"""Tasks from files: readers of rows, and the sources that play them."""
