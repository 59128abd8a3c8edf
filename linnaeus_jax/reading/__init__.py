"""What people's files say: text, tables, columns, folders, EXIF, dates; read safely, and never guessed."""
