"""What fills the terminal, one at a time. A screen draws what the model has, and asks the app for the rest."""
