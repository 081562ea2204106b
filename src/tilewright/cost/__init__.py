"""What work costs, computed rather than observed."""
