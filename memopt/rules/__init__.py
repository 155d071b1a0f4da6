"""How moments become a direction."""
