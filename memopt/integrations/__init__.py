"""Doors to other libraries' training loops; none of them is imported before it is used."""
