"""Before a graph is imported: what AOTAutograd takes apart, and where graphs are cut."""
