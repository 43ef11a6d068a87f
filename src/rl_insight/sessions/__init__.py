"""Session fields, and how an owner's reports and the phases from all processes become one record."""
