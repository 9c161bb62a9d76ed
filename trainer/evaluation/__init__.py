"""Evaluations of policies: the protocol, results, tables and plots."""
