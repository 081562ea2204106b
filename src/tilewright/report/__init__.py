"""Results → people: tables, pages and documents made from what the other rooms return."""
