"""How moments become a direction: Adam, Adafactor, Adam-mini, Muon, on coefficients of any kind."""

from memopt.rules.base import RULES, Direction, Rule, rule

__all__ = ["RULES", "Direction", "Rule", "rule"]
