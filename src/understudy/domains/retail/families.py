FAMILIES: dict[str, object] = {}
