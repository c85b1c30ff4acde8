"""What we expect: pure predictors, each with units, formula, source and error."""
