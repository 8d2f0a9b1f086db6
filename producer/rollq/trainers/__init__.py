"""What connects trainers to rollq: adapters, one file each, and the weight update of a fleet of engines."""
