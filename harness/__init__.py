"""What tests and bench both stand on; neither imports the other."""
