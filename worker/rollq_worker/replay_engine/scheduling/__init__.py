"""When tokens are released: evenly over a time that was drawn, or as the model of an engine says."""
