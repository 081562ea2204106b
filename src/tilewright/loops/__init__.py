"""The loops of one operator, and how a mapping tiles them over levels of memory."""
