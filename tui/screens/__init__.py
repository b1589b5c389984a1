"""Screens, one at a time in the terminal. A screen draws the model, and asks the app for the rest."""
