"""Timeline trace and its picture."""
