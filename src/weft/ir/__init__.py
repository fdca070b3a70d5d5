"""What both dialects share: sizes, types, attributes, locations and passes, on xDSL."""
