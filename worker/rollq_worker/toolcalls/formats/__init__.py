"""The formats of calls that rollq reads, one a file."""
