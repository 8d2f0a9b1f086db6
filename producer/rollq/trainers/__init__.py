"""What connects trainers to rollq: adapters, one trainer each."""
