"""The audio demo model: a small temporal CNN that recognises one spoken digit."""
