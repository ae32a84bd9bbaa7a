"""The tests of toolnexus."""
