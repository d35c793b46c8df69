"""Results of the verbs as objects, tables, texts and JSON documents."""
