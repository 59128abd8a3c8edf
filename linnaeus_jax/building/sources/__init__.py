"""One reader for each kind of source: its records and pictures as `reading.schema.SourceRows`."""
