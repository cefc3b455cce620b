"""The only translators between wire models and theory."""
