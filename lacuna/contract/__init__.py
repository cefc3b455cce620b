"""What crosses HTTP and Redis: pydantic models and the error tree."""
