"""Orders of chunks compared on the user's own questions: all of it but the reading."""
