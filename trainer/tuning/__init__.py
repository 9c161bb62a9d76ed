"""Many runs: search over settings, populations, A2C as a baseline."""
