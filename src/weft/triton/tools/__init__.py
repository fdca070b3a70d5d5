"""What Triton has for the host's side of a kernel."""
