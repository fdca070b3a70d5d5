"""The verifier: it proves a schedule free of hazards before anything runs, and knows nothing of the compiler."""
