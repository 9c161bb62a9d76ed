"""What a policy is worth: the protocol, its results, tables and plots."""
