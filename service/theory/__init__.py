"""The mathematics: numpy and scipy only."""
