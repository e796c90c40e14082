"""Runs of scripts: how they are fed, and the settings that control them."""
