"""Types of the compiled module; csrc/python is where they are defined."""
