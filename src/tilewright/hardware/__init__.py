"""What a machine is: its description, presets, and what this host says about itself."""
