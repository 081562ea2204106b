"""A network on chip cycle by cycle: a mesh of processing elements around one memory."""
