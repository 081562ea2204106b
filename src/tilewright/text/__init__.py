"""Text for people: tables, names from files made safe to show, close matches."""
