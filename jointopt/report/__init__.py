"""What people and programs read: result objects, tables, JSON documents."""
