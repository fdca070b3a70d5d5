"""The zoo: every model family of an installed library from a small random configuration, judged against eager."""
