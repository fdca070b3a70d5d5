"""Graph → graph, a file a pass, named verb_noun."""
