"""The types of a relation's columns: inferred where a view is defined, and checked against what operators take."""
