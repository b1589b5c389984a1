"""How much users may keep, bring and ask for at one time, and how much room the stores have left."""
