"""Programs with addresses, as they are loaded, stored and sent."""
