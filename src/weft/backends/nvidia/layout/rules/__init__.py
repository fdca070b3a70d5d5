"""Layout rules, by family of ops."""
